"""Options that several commands share, and the files that they load.

* `completed_names`: names that a shell completes: shapes, devices.
* `general`: options that several commands share.
* `help_sections`: help texts with options in sections, and examples.
* `input_sources`: a file, standard input or a web address as the source of an import.
* `output_files`: files that commands write: checked before any work, replaced only where that loses little.
* `printing`: results, warnings, notes and progress.
* `settings_options`: options made from the fields of a settings class.
* `setup_file`: options that describe an engine and its models, read from a file and written to it.
* `value_types`: finite numbers, numbers of tokens, lists of numbers, files for tables.
* `what_to_draft`: a static tree, or the settings of a dynamic policy.
"""
