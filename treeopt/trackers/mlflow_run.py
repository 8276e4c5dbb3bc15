"""Values logged as a run of MLflow; `MLFLOW_TRACKING_URI` says where, as for every program that uses it."""

from treeopt.errors import UsageError
from treeopt.trackers.logged_values import FILE, LoggedValues

HINT = "MLFLOW_TRACKING_URI names a server; a local database needs pip install mlflow"


def check_mlflow() -> None:
    """Check before any work that runs can be logged.

    Raises:
        ModuleNotFoundError: mlflow is not installed.
        UsageError: where runs are logged cannot be opened.
    """
    import mlflow

    try:
        mlflow.MlflowClient().search_experiments(max_results=1)
    except (mlflow.MlflowException, ImportError, OSError) as error:
        raise UsageError(f"--log mlflow: {_first_sentence(error)}; {HINT}") from error


def log_to_mlflow(values: LoggedValues) -> str:
    """Log a run with parameters, tags, metrics whose step is the batch size, and the record; return its id.

    Raises:
        ModuleNotFoundError: mlflow is not installed.
        UsageError: the run cannot be logged.
    """
    import mlflow

    try:
        with mlflow.start_run(run_name=values.name) as run:
            mlflow.log_params(dict(values.params))
            mlflow.set_tags(dict(values.tags))
            for batch, metrics in values.by_batch.items():
                mlflow.log_metrics(dict(metrics), step=batch)
            mlflow.log_metrics(dict(values.summary))
            mlflow.log_text(values.text, FILE)
    except (mlflow.MlflowException, ImportError, OSError) as error:
        raise UsageError(f"--log mlflow: {_first_sentence(error)}; {HINT}") from error
    return str(run.info.run_id)


def _first_sentence(error: Exception) -> str:
    return " ".join(str(error).split()).partition(". ")[0]
