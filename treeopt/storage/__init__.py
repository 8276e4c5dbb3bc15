"""Storage: read and write every file of the project.

* `table_files`: tables as CSV and Parquet files.
* `hub_models`: `hf:org/name`, the folder of a model in the Hugging Face hub's cache, fetched where it is not there.
* `user_files`: files that users name, regular and within a limit; writing whole or not at all; shipped files.
* `json_records`: JSON of a schema, and the error of records that break their format.
* `work_file`: what has finished, so that the same command resumes: JSON lines that survive an interruption.
* `provenance`: versions, commit, device and command behind a file, and questions to it; names of models.
* `typed_records`: msgspec structs, and msgspec's errors with the place in the file and the value found.
"""
