"""Experiment trackers: a validation as a run of MLflow or Weights & Biases. The packages are loaded when asked for.

* `logged_values`: a validation as parameters, tags and metrics by batch size.
* `mlflow_run`: these values as a run of MLflow.
* `wandb_run`: these values as a run of Weights & Biases.
* `log_run`: trackers by name, and the check before any work.
"""
