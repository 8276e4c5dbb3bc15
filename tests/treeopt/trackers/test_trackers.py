"""Validations as runs of trackers: every figure arrives, a missing package is one line, real stores hold the run."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import treeopt
from tests.helpers.command_line import refused, run
from treeopt.errors import UsageError
from treeopt.trackers.log_run import check_tracker, log_validation
from treeopt.trackers.logged_values import validation_values

ROOT = Path(__file__).resolve().parent.parent.parent.parent
FILE = "data/validations/medusa-cpu.json"
CELL = "best_tree_of_15/measured_speedup"


@pytest.fixture(scope="module")
def validation():
    return treeopt.load_validation(FILE)


def measured(validation, batch: int) -> float:
    frame = validation.frame().query(f"batch == {batch} and name == 'best tree of 15'")
    return frame["measured_speedup"].item()


def test_every_cell_becomes_metrics_of_its_batch_size(validation):
    values = validation_values(validation)
    frame = validation.frame()
    assert list(values.by_batch) == [1, 2, 4, 8]
    names = [name for cell in frame["name"] for name in cell.split(", ")]
    assert sum(map(len, values.by_batch.values())) == 12 * len(names) > 12 * len(frame)
    for cell in frame.itertuples():
        name = cell.name.split(", ")[-1].replace(" ", "_")
        logged = values.by_batch[cell.batch]
        for figure in ("predicted_speedup", "measured_speedup_high", "measured_step_s", "predicted_tau", "error"):
            assert logged[f"{name}/{figure}"] == getattr(cell, figure)
        assert logged[f"{name}/covered"] == cell.covered
    assert values.summary["mean_error"] == validation["mean_error"]
    assert json.loads(values.text) == validation


def test_conditions_become_parameters_and_provenance_tags(validation):
    values = validation_values(validation)
    assert values.params["target"] == "stdlib-llama"
    assert values.params["device"] == "cpu, 1 threads"
    assert values.params["new_tokens"] == validation["meta"]["new_tokens"]
    assert values.tags["predictions_sha256"] == validation["meta"]["predictions"]["sha256"]
    assert values.name == "validate stdlib-llama medusa"


class FakeMlflow(ModuleType):
    """The functions of mlflow that are called, recorded."""

    class MlflowException(Exception):
        pass

    def __init__(self, broken: str = "") -> None:
        super().__init__("mlflow")
        self.params, self.tags, self.metrics, self.texts = {}, {}, [], {}
        self.broken = broken
        self.set_tags, self.log_params = self.tags.update, self.params.update
        self.MlflowClient = lambda: SimpleNamespace(search_experiments=self.search)

    def search(self, max_results: int) -> list[str]:
        if self.broken:
            raise self.MlflowException(self.broken)
        return []

    @contextmanager
    def start_run(self, run_name: str):
        self.search(1)
        yield SimpleNamespace(info=SimpleNamespace(run_id="r1"))

    def log_metrics(self, metrics, step=None):
        self.metrics.append((step, metrics))

    def log_text(self, text, name):
        self.texts[name] = text


def test_mlflow_gets_parameters_steps_and_the_record(validation, monkeypatch):
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    check_tracker("mlflow")
    assert log_validation(validation, "mlflow") == "r1"
    assert [step for step, _ in fake.metrics] == [1, 2, 4, 8, None]
    assert fake.metrics[2][1][CELL] == measured(validation, 4)
    assert fake.params["target"] == "stdlib-llama"
    assert json.loads(fake.texts["validation.json"]) == validation


def test_a_store_that_cannot_be_opened_is_one_line_before_any_work(validation, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", FakeMlflow("no such\nserver. Read more"))
    message = "--log mlflow: no such server; MLFLOW_TRACKING_URI names a server"
    with pytest.raises(UsageError, match=message):
        check_tracker("mlflow")
    with pytest.raises(UsageError, match=message):
        log_validation(validation, "mlflow")


def test_unknown_trackers_are_refused(validation):
    check_tracker(None)
    with pytest.raises(UsageError, match="must be one of mlflow, wandb, got 'csv'"):
        log_validation(validation, "csv")


@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_a_missing_package_is_one_line_before_any_work(tracker, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, tracker, None)
    words = ("--target", tmp_path, "--drafter", tmp_path, "--prompts", "data/prompts/stdlib.jsonl")
    result = run("validate", *words, "--log", tracker)
    refused(result, f"needs {tracker}: pip install 'treeopt[{tracker}]'", code=1)


def logged_by(tracker: str, code: str, folder: Path, **variables: str) -> str:
    """Return what a program prints that logs the validation to a store in a folder."""
    program = f"import treeopt\nrun = treeopt.log_validation(treeopt.load_validation({FILE!r}), {tracker!r})\n{code}"
    environment = os.environ | {"PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_mlflow_stores_the_run_in_a_folder(validation, tmp_path):
    code = f"""
import mlflow
client = mlflow.MlflowClient()
history = client.get_metric_history(run, {CELL!r})
print([(point.step, point.value) for point in history])
print(client.get_run(run).data.params["target"], [file.path for file in client.list_artifacts(run)])
"""
    store = {"MLFLOW_TRACKING_URI": f"file://{tmp_path}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"}
    printed = logged_by("mlflow", code, tmp_path, MLFLOW_DISABLE_TELEMETRY="true", **store).splitlines()
    assert printed[-2] == str([(batch, measured(validation, batch)) for batch in (1, 2, 4, 8)])
    assert printed[-1] == "stdlib-llama ['validation.json']"


@pytest.mark.slow
def test_wandb_stores_the_run_offline(validation, tmp_path):
    """The summary holds the figures of the largest batch size, which is logged last."""
    settings = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}
    logged_by("wandb", "print(run)", tmp_path, WANDB_ERROR_REPORTING="false", **settings)
    (stored,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = stored.read_bytes()
    for text in (CELL, "mean_error", "stdlib-llama", str(measured(validation, 8))[:12]):
        assert text.encode() in content
