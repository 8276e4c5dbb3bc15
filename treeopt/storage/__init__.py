"""Storage: read and write every file of the project.

* `table_files`: tables as CSV and Parquet files.
* `user_files`: open files that users name: regular ones alone, within a limit of size.
* `atomic_files`: files written whole or not at all, checksums, and the paths of data shipped with treeopt.
* `json_records`: strict reading of JSON: field types, finite numbers, schemas.
* `json_lines`: append-only JSON lines that survive an interruption.
* `work_file`: what a long command has finished, so that the same command resumes.
* `provenance`: versions, commit, device and command behind a file, and questions to stored provenance.
* `model_names`: names of models in provenance, of the shipped ones by their weights.
* `installed_packages`: the packages that treeopt needs, what is installed of them, and what is wrong with that.
* `typed_records`: msgspec structs, and errors that name the field, what must hold and what was found.
"""
