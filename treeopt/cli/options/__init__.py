"""Options that several commands share, and the files that they load.

* `general`: options that several commands share.
* `help_sections`: help texts with options in sections, and examples.
* `output_files`: files that commands write: checked before any work, replaced only where that loses little.
* `printing`: results, warnings, notes and progress.
* `settings_options`: options made from the fields of a settings class.
* `trace_or_figure`: the source of acceptance, a trace or a figure.
* `value_types`: numbers, lists of numbers, files for tables, names that a shell completes, trees and policies.
"""
