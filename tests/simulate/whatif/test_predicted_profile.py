"""Predicted step times as a profile: the model's own at every size, and every command takes the file."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.drafters.eagle import eagle_shape
from executor.drafters.hydra import hydra_shape
from executor.drafters.medusa import medusa_shape
from simulate.model_sizes.model_shape import Shape
from simulate.profiles.profile import BatchTimes, Profile, save_profile
from simulate.roofline.data_sheets import find_hardware
from simulate.roofline.roofline_model import Roofline
from simulate.whatif.unmeasured_profiles import joined, tabulated
from tests.helpers.command_line import done, refused, run
from tests.helpers.strategies import drawn_trace, trees
from tests.simulate.model_sizes.test_hf_config import LLAMA_3_8B
from treeopt.cost_model import StepShape
from treeopt.errors import CostError
from treeopt.traces.trace_files import save_trace
from treeopt.tree import Tree

L3 = Shape.from_config(LLAMA_3_8B)
KINDS = {"eagle": eagle_shape(L3), "medusa": medusa_shape(L3)}
NODES, DEPTH, BATCHES, CONTEXTS = 24, 4, (1, 3, 8), (512, 4096)


def model(kind, device="h100"):
    return Roofline(L3, KINDS[kind], find_hardware(device))


def table(kind, context=512):
    how = {"batches": BATCHES, "nodes": NODES, "depth": DEPTH, "meta": {"drafter": {"kind": kind}}}
    return tabulated(model(kind), context=context, **how)


TABLES = {kind: joined([table(kind, context) for context in CONTEXTS]) for kind in KINDS}


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(sorted(KINDS)),
    trees(width=4, depth=DEPTH, paths=6, min_nodes=1),
    st.sampled_from(BATCHES),
    st.sampled_from(CONTEXTS),
)
def test_times_are_the_models_at_every_size(kind, tree, batch, context):
    shape = StepShape.of(tree, batch=batch, context=context, committed=1.0)
    if tree.nodes > NODES:
        return
    own = model(kind)
    found, due = (each.step_s([shape])[0] for each in (TABLES[kind], own))
    assert found == pytest.approx(due, rel=1e-9)
    assert TABLES[kind].plain_s(batch=batch, context=context) == own.plain_s(batch=batch, context=context)
    assert TABLES[kind].error(shape) == own.error(shape)


def test_levels_of_their_own_are_the_models_within_what_widths_differ_by():
    """Chains of Hydra's heads are; how much a wider level takes is told of one level for all."""
    own = Roofline(L3, hydra_shape(L3), find_hardware("h100"))
    found = tabulated(own, batches=(1, 8), context=512, nodes=NODES, depth=DEPTH, meta={})
    for batch in (1, 8):
        for tree, share in ((Tree.chain(DEPTH), 1e-9), (Tree.full(3, 2), 1e-2)):
            shape = StepShape.of(tree, batch=batch, context=512, committed=1.0)
            assert found.step_s([shape])[0] == pytest.approx(own.step_s([shape])[0], rel=share)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_committing_more_takes_what_it_takes_in_the_mean(kind):
    chain = StepShape(8, DEPTH + 1, (1,) * DEPTH, 512)
    shapes = [replace(chain, committed=kept) for kept in (1.0, 3.0, DEPTH + 1.0)]
    found, due = TABLES[kind].step_s(shapes), model(kind).step_s(shapes)
    assert found[[0, 2]] == pytest.approx(due[[0, 2]], rel=1e-9)
    assert found[1] == pytest.approx(due[1], rel=0.01)  # the model has stairs


def test_what_lies_outside_is_refused():
    profile = TABLES["eagle"]
    for tree, why in ((Tree.chain(5), "depth 5"), (Tree.full(NODES + 1, 1), "tokens 26")):
        with pytest.raises(CostError, match=why):
            profile.step_s([StepShape.of(tree, batch=1, context=512)])
    with pytest.raises(CostError, match="context 8192 lies outside"):
        profile.plain_s(batch=1, context=8192)
    with pytest.raises(CostError, match="rising context"):
        joined([table("eagle"), table("eagle")])


# --- the commands


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tabulated")
    trace = drawn_trace([[0.6, 0.2], [0.5, 0.1]], [20, 30, 1, 25] * 6, depth=3, rng=np.random.default_rng(0))
    for kind in KINDS:
        meta = {"drafter": {"kind": kind, "weights": kind}, "target": {"weights": "t"}, "text_sha256": "x"}
        save_trace(replace(trace, meta=meta), folder / f"{kind}.npz")
    (folder / "config.json").write_text(json.dumps(LLAMA_3_8B), "utf-8")
    for kind in KINDS:
        words = ("whatif", "--trace", folder / f"{kind}.npz", "--target", folder, "--hardware", "h100,l40s")
        more = ("--batch", "1,8", "--context", "512,4k", "--max-nodes", "8", "--profiles", folder / f"{kind}-times")
        done(*words, *more, "--output", folder / f"{kind}.json")
    return folder


def test_search_finds_what_whatif_found(files):
    cells = json.loads((files / "eagle.json").read_text("utf-8"))["cells"]
    for device, name in (("H100 SXM", "h100-sxm"), ("L40S", "l40s")):
        words = ("--profile", files / "eagle-times" / f"{name}.json", "--batch", "1,8", "--context", "4096", "--json")
        result = done("search", "--trace", files / "eagle.npz", *words)
        plan = json.loads(result.stdout)
        assert "different" not in result.output  # the table is of no weights
        assert any("are predicted from sizes, not measured" in warning for warning in plan["warnings"])
        here = [c for c in cells if (c["device"], c["context"]) == (device, 4096)]
        for entry, cell in zip(plan["entries"], here, strict=True):
            choice = entry["choice"]
            assert choice["speedup"]["value"] == pytest.approx(cell["speedup"]["value"], rel=0.01)
            assert choice["speedup"]["high"] >= cell["speedup"]["high"] * 0.99


def test_what_is_measured_or_read_is_not_written_over(files, tmp_path):
    words = ("whatif", "--trace", files / "eagle.npz", "--hardware", "h100", "--batch", "1", "--max-nodes", "4")
    (tmp_path / "times").mkdir()
    mine = tmp_path / "times" / "h100-sxm.json"
    save_profile(Profile((BatchTimes(1, 0.01, ((1, 0.001),), ((2, 0.01),)),), (0, 9), 0.1, {"device": "H100"}), mine)
    before = mine.read_bytes()
    result = run(*words, "--target", files, "--profiles", tmp_path / "times")
    assert result.exit_code == 2
    assert "h100-sxm.json exists and was not written by `treeopt whatif`" in result.output
    mine.write_text((files / "config.json").read_text())
    result = run(*words, "--target", mine, "--profiles", tmp_path / "times")
    assert "is read as target" in result.output
    mine.write_bytes(before)
    mine.unlink()
    for _ in range(2):  # what the command wrote it may write again
        done(*words, "--target", files, "--profiles", tmp_path / "times", "--plans", tmp_path / "plans")
    assert mine.read_bytes() != before


def test_only_times_that_were_measured_apart_are_carried_over(files, tmp_path):
    words = ("whatif", "--trace", files / "eagle.npz", "--target", files, "--hardware", "l40s", "--measured-on", "h100")
    (tmp_path / "t.csv").write_text("batch,drafted,step_ms\n1,0,9\n1,1,10\n1,2,11\n")
    done("times", tmp_path / "t.csv", "--device", "x", "--context", "8-16", "--output", tmp_path / "p.json")
    result = run(*words, "--profile", tmp_path / "p.json")
    refused(result, "does not separate drafting from verification", code=2)
    result = run(*words, "--profile", files / "eagle-times" / "h100-sxm.json")
    refused(result, "predictions, not measurements; omit --profile", code=2)
