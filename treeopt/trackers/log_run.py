"""Trackers by name: log a validation, and check before any work that it can be logged."""

from collections.abc import Callable, Mapping
from typing import Any

from treeopt.errors import UsageError
from treeopt.trackers.logged_values import LoggedValues, validation_values
from treeopt.trackers.mlflow_run import check_mlflow, log_to_mlflow
from treeopt.trackers.wandb_run import check_wandb, log_to_wandb

# Tracker -> its check and its function that logs.
TRACKERS: Mapping[str, tuple[Callable[[], None], Callable[[LoggedValues], str]]] = {
    "mlflow": (check_mlflow, log_to_mlflow),
    "wandb": (check_wandb, log_to_wandb),
}


def check_tracker(tracker: str | None) -> None:
    """Check before any work that a run can be logged; None: nothing is.

    Raises:
        ModuleNotFoundError: the tracker's package is not installed.
        UsageError: no such tracker, or it cannot be reached.
    """
    if tracker is not None:
        _tracker(tracker)[0]()


def log_validation(validation: Mapping[str, Any], tracker: str) -> str:
    """Log predicted beside measured figures as a run of "mlflow" or "wandb", and return the run's id.

    Conditions become parameters, and figures become metrics whose step is the batch size, such as
    `best_chain/measured_speedup`. The record itself is attached as `validation.json`.

    Raises:
        ModuleNotFoundError: the tracker's package is not installed.
        UsageError: no such tracker, or the run cannot be logged.
    """
    return _tracker(tracker)[1](validation_values(validation))


def _tracker(name: str) -> tuple[Callable[[], None], Callable[[LoggedValues], str]]:
    if name not in TRACKERS:
        raise UsageError(f"a tracker must be one of {', '.join(TRACKERS)}, got {name!r}")
    return TRACKERS[name]
