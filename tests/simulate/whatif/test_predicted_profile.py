"""Predicted step times as a profile that every command takes; what two measured step times shift them to."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.drafters.eagle import eagle_shape
from executor.drafters.hydra import hydra_shape
from executor.drafters.medusa import medusa_shape
from simulate.profiles.profile import BatchTimes, Profile, save_profile
from simulate.roofline.data_sheets import find_hardware
from simulate.roofline.host_overhead import Overheads
from simulate.roofline.roofline_model import Roofline
from simulate.whatif.observed_steps import ERROR, Observed, shifted
from simulate.whatif.unmeasured_profiles import joined, tabulated
from simulate.whatif.whatif_settings import WhatIfSettings
from tests.benchmarks.published_steps import model_of, published_rows
from tests.helpers.command_line import done, refused, run
from tests.helpers.strategies import drawn_trace, trees
from tests.simulate.model_sizes.test_hf_config import LLAMA_3_8B
from tests.simulate.roofline.test_roofline_model import L3, roofline
from treeopt.cost_model import StepShape
from treeopt.errors import CostError, UsageError
from treeopt.traces.trace_files import save_trace
from treeopt.tree import Tree

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


def step_s(model, batch, length):
    if length == 0:
        return model.plain_s(batch=batch)
    return float(model.step_s([StepShape.of(Tree.chain(length), batch=batch)])[0])


@settings(max_examples=20, deadline=None)
@given(plain_s=st.floats(0, 2e-3), step=st.floats(0, 5e-3), level_s=st.floats(0, 1e-3), slower=st.floats(0.8, 1.3))
def test_a_machine_that_differs_in_the_four_numbers_is_found(plain_s, step, level_s, slower):
    assumed = roofline(L3, eagle_shape(L3))
    device = assumed.device
    slow = replace(device, bandwidth=device.bandwidth / slower, flops=device.flops / slower)
    true = replace(assumed, device=slow, overheads=Overheads(plain_s=plain_s, step_s=step, level_s=level_s))
    sizes = [(1, 0), (1, 3), (8, 0), (8, 3), (64, 5), (64, 0), (1, 7)]
    found = shifted(assumed, [Observed(batch, length, step_s(true, batch, length)) for batch, length in sizes])
    for batch, length in [*sizes, (16, 0), (16, 4)]:
        assert step_s(found, batch, length) == pytest.approx(step_s(true, batch, length), rel=0.02)
    assert found.error(StepShape(1, 2, (1,))) == ERROR
    assert found.error(StepShape(1024, 6, (1,))) == pytest.approx(ERROR + 0.015 * np.log2(16))


def test_a_plain_step_alone_leaves_the_error_of_speedups():
    """TensorRT-LLM's steps of both kinds are quicker than assumed; moving the plain ones alone was 33 % off."""
    for row in published_rows():
        if row.study.engine == "tensorrt-llm" and row.plain_ms:
            model = replace(model_of(row.study), context=row.context)
            found = shifted(model, [Observed(row.batch, 0, row.plain_ms / 1e3)])
            plain_s, step = found.plain_s(batch=row.batch), float(found.step_s([row.shape])[0])
            assert plain_s == pytest.approx(row.plain_ms / 1e3, rel=0.02)
            assert row.tau * plain_s / step == pytest.approx(row.speedup, rel=0.1)
            assert found.error(row.shape) == model.error(row.shape)


def test_two_published_steps_predict_the_others():
    """With the overheads of no engine; 95 % are within 8 % (all 474 pairs of vLLM's chains: 6.3 %)."""
    chains = [row for row in published_rows() if row.plain_ms and row.width == 1 and row.study.engine == "vllm"]
    errors = []
    for one in chains[::5]:
        model = replace(model_of(one.study), context=one.context)
        step_ms = one.tau / one.speedup * one.plain_ms
        seen = [Observed(one.batch, 0, one.plain_ms / 1e3), Observed(one.batch, one.levels, step_ms / 1e3)]
        found = shifted(model, seen)
        for row in chains:
            if row.study == one.study and row is not one:
                plain_s = found.plain_s(batch=row.batch, context=row.context)
                errors.append(abs(row.tau * plain_s / float(found.step_s([row.shape])[0]) / row.speedup - 1))
    assert np.mean(errors) < 0.03
    assert np.mean(np.array(errors) <= ERROR) >= 0.95


@pytest.mark.parametrize(
    "text",
    [
        "batch=1:8ms",
        "K=1:8ms",
        "batch=0,K=1:8ms",
        "batch=1,K=1:8",
        "batch=1,K=1:8m",
        "batch=1,K=1,x=2:8ms",
        "",
        "8ms",
        "batch=1,K=99999:8ms",
    ],
)
def test_what_is_no_observation_is_named(text):
    with pytest.raises(UsageError, match=r"--observed takes a batch size, .* such as batch=1,K=3:10.4ms"):
        Observed.parse(text)


def test_observations_that_no_machine_makes_are_refused():
    assert Observed.parse("context=4096, K=0, batch=2: 12us") == Observed(2, 0, 12e-6, 4096)
    seen = [Observed(1, 0, 8e-3), Observed(1, 3, 0.8)]
    with pytest.raises(CostError, match=r"--observed: batch 1, K 3 takes 800 ms, which no speed of H100 SXM"):
        shifted(roofline(L3, eagle_shape(L3)), seen)
    with pytest.raises(CostError, match=r"batch 1, K 3 takes 4 ms, less than the 8 ms of batch 1, K 0"):
        shifted(roofline(L3, eagle_shape(L3)), [Observed(1, 0, 8e-3), Observed(1, 3, 4e-3)])
    with pytest.raises(CostError, match=r"3.5 times as fast as assumed, .* is it the time per token \(TPOT;"):
        shifted(roofline(L3, eagle_shape(L3)), [Observed(1, 3, 3.2e-3)])
    with pytest.raises(UsageError, match="--observed is of one device"):
        WhatIfSettings(hardware=("h100", "h200"), target="8b", observed=("batch=1,K=0:8ms",))
