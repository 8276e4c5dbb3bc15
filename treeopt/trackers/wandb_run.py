"""Values logged as a run of Weights & Biases; its own variables, such as `WANDB_MODE=offline`, apply."""

import os

from treeopt.errors import UsageError
from treeopt.trackers.logged_values import FILE, LoggedValues

PROJECT = "treeopt"  # unless WANDB_PROJECT names another
STEP = "batch"


def check_wandb() -> None:
    """Check before any work that the package can be imported.

    Raises:
        ModuleNotFoundError: wandb is not installed.
    """
    import wandb  # noqa: F401


def log_to_wandb(values: LoggedValues) -> str:
    """Log a run with its configuration, metrics by batch size, a summary, and the record as artifact; return its id.

    Raises:
        ModuleNotFoundError: wandb is not installed.
        UsageError: the run cannot be logged.
    """
    import wandb

    config = {**values.params, "provenance": dict(values.tags)}
    try:
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        with wandb.init(project=project, name=values.name, job_type="validate", config=config) as run:
            run.define_metric(STEP)
            run.define_metric("*", step_metric=STEP)
            for batch, metrics in values.by_batch.items():
                run.log({STEP: batch, **metrics})
            run.summary.update(dict(values.summary))
            artifact = wandb.Artifact("validation", type="validation")
            with artifact.new_file(FILE, encoding="utf-8") as file:
                file.write(values.text)
            run.log_artifact(artifact)
    except (wandb.Error, OSError) as error:
        raise UsageError(f"--log wandb: {' '.join(str(error).split())}") from error
    return str(run.id)
