"""The names of shipped models are those of the weights that files record."""

import json

import pytest

from executor.checkpoints import load_drafter
from executor.models import identity
from executor.target.load_hf_model import load_target
from treeopt.results.words import describe_models
from treeopt.storage.provenance import SHIPPED, drafter_name, target_name
from treeopt.storage.user_files import shipped
from treeopt.traces.resumable_shards import load_file_or_shards

MODELS, TRACES = shipped("models"), sorted(shipped("traces").glob("*.npz"))


def test_names_are_those_of_the_weights():
    """All of them: a model that is trained again has another hash."""
    own = MODELS / "stdlib-medusa2" / "target"
    targets = {name: load_target(path, dtype="float32") for name, path in (("", MODELS / "stdlib-llama"), ("own", own))}
    names = {identity(targets[""], None)["target"]["weights"]: "stdlib-llama"}
    names[identity(targets["own"], None)["target"]["weights"]] = "stdlib-medusa2/target"
    for folder in sorted(MODELS.iterdir()):
        if folder.name != "stdlib-llama":
            target = targets["own" if folder.name == "stdlib-medusa2" else ""]
            record = identity(target, load_drafter(folder, target))["drafter"]
            names[record["weights"]] = folder.name
            assert record["name"] == folder.name
    assert json.loads(shipped(SHIPPED).read_text("utf-8")) == names


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_shipped_traces_name_their_drafter(path):
    meta = load_file_or_shards(path).meta
    name = path.stem.rpartition("-")[0].removeprefix("smollm2-").removesuffix("-candidates")
    described = describe_models(meta)
    assert name in described or drafter_name(meta) == f"stdlib-{name}", described
    if name == "medusa2":
        assert target_name(meta) == "stdlib-medusa2/target"
    assert "ngram as drafter" not in described
    assert not (name in ("coral", "hass", "coral-router") and "eagle as drafter" in described)
