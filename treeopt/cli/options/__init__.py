"""Options that several commands share, and the files that they load.

* `completed_names`: names that a shell completes: shapes, devices.
* `decoded_output`: stdout as text or JSON, or a file that can be resumed.
* `engine_choice`: options that name an inference engine to run in place of the loop.
* `general`: options that several commands share.
* `help_sections`: help texts with options in sections, and examples.
* `input_sources`: a file, standard input or a web address as the source of an import.
* `models_and_prompts`: options that name the models and prompts of a run.
* `output_files`: files that commands write: checked before any work, replaced only where that loses little.
* `printing`: results, warnings, notes and progress.
* `settings_options`: options made from the fields of a settings class.
* `value_types`: finite numbers, numbers of tokens, lists of numbers, files for tables.
* `verification_rule`: the verification rule, temperature, top-k and top-p.
* `what_to_draft`: a plan's choice, a static tree, or the settings of a dynamic policy.
"""
