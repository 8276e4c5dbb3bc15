"""What-if: each cell is the plan that search makes there, and break-even is where a chain's speedup is 1."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import treeopt
from executor.drafters.eagle import eagle_shape
from simulate.drafter_kinds import DRAFTERS, no_work
from simulate.model_sizes.model_shape import Shape
from simulate.paper_formulas import expected_tau
from simulate.profiles.profile import BatchTimes, Profile, load_profile, save_profile
from simulate.roofline.data_sheets import find_hardware
from simulate.roofline.host_overhead import Overheads
from simulate.roofline.roofline_model import Roofline
from simulate.whatif.scenarios import Scenario, break_even, limits
from simulate.whatif.unmeasured_profiles import transfer
from tests.helpers.command_line import done, refused, run
from tests.helpers.strategies import drawn_trace
from tests.simulate.model_sizes.test_hf_config import LLAMA_3_8B
from tests.simulate.test_device_memory import weights
from treeopt.cost_model import StepShape
from treeopt.errors import CostError, UsageError
from treeopt.planning.search_pipeline import search
from treeopt.plans import Choice, load_plan
from treeopt.results.kinds import RESULTS
from treeopt.statistics import Estimate
from treeopt.traces.trace_files import load_trace, save_trace
from treeopt.tree import Tree

L3 = Shape.from_config(LLAMA_3_8B)
EAGLE = {"drafter": {"kind": "eagle"}}


def roofline(device="h100", **how):
    return Roofline(L3, eagle_shape(L3), find_hardware(device), **how)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whatif")
    trace = drawn_trace([[0.6, 0.2], [0.5, 0.1]], [20, 30, 1, 25] * 6, depth=3, rng=np.random.default_rng(0))
    save_trace(replace(trace, meta=EAGLE), folder / "t.npz")
    (folder / "config.json").write_text(json.dumps(LLAMA_3_8B), "utf-8")
    return folder


def words(files, *more, hardware="h100,l40s"):
    return ["whatif", "--trace", files / "t.npz", "--target", files, "--hardware", hardware, "--verbose", *more]


@settings(deadline=None)
@given(alpha=st.floats(0, 1), batch=st.sampled_from([1, 16, 256]), step_s=st.floats(0, 0.05))
def test_break_even_is_where_a_chain_begins_to_pay(alpha, batch, step_s):
    cost = roofline(overheads=Overheads(step_s=step_s))
    plain_s = cost.plain_s(batch=batch)
    gamma = np.arange(1, 6)
    tau = expected_tau(alpha=alpha, gamma=gamma)
    none, every = (
        cost.step_s([StepShape.of(Tree.chain(k), batch=batch, committed=kept(k)) for k in range(1, 6)])
        for kept in (lambda k: 1, lambda k: k + 1)
    )
    gain = float((tau * plain_s / (none + (every - none) * (tau - 1) / gamma)).max())
    needed = break_even(cost, batch=batch, depth=5)
    if abs(gain - 1) > 1e-6:
        assert (gain > 1) == (needed is not None and alpha >= needed)


def test_break_even_of_what_never_pays_or_is_not_covered():
    assert break_even(roofline(overheads=Overheads(step_s=10)), batch=1, depth=3) is None
    profile = Profile((BatchTimes(1, 1.0, ((1, 0.25),), ((2, 1.25),)),), (0, 9), 0.0)
    # a chain of one costs 1.5 plain steps: tau = 1 + alpha
    assert break_even(profile, batch=1, depth=4) == pytest.approx(0.5, abs=1e-8)
    moving = Profile((BatchTimes(1, 1.0, ((1, 0.25),), ((2, 1.25),), commit_s=0.2),), (0, 9), 0.0)
    assert break_even(moving, batch=1, depth=4) == pytest.approx(0.625, abs=1e-8)  # 1 + alpha = 1.5 + 0.2 alpha
    with pytest.raises(CostError, match="tokens 2 at batch 1"):
        break_even(Profile((BatchTimes(1, 1.0, ((1, 0.25),), ((3, 1.25),)),), (0, 9), 0.0), batch=1, depth=4)


def cell(batch, *, pays=True, low=1.1, device="x"):
    value = Estimate(1.2, low, 1.3)
    choice = Choice("any", Tree.chain(1) if pays else None, value, 1.0, value)
    return Scenario(device, 512, batch, choice, 1.0, 0.5)


@pytest.mark.parametrize(
    ("cells", "due"),
    [
        ([cell(1), cell(2), cell(4)], (4, 4)),
        ([cell(4, pays=False), cell(2, low=0.9), cell(1)], (2, 1)),
        ([cell(1, pays=False), cell(2)], (None, None)),
        ([cell(1), cell(2, pays=False), cell(4)], (1, 1)),
    ],
)
def test_where_speculation_stops_paying(cells, due):
    assert limits(cells) == {("x", 512): due}


def test_the_command_prints_what_the_library_finds(files, tmp_path):
    out = tmp_path / "whatif.json"
    settings = ["--batch", "1,64", "--context", "512,8k", "--max-nodes", "7"]
    record = json.loads(done(*words(files, *settings, "--json", "--output", out)).stdout)
    assert record == json.loads(out.read_text("utf-8"))
    assert record["schema"] == "treeopt.whatif/1"
    assert [(c["context"], c["batch"]) for c in record["cells"][:4]] == [
        (context, batch) for context in (512, 8192) for batch in (1, 64)
    ]
    trace = load_trace(files / "t.npz")
    for each in record["cells"]:
        cost = roofline("h100" if each["device"] == "H100 SXM" else "l40s")
        (entry,) = search(trace, cost, batch=each["batch"], context=each["context"], max_nodes=7).entries
        assert (each["tree"] or {"id": None})["id"] == (entry.choice.tree.id if entry.choice.tree else None)
        assert each["speedup"]["value"] == entry.choice.speedup.value
        assert each["tau"]["low"] == entry.choice.tau.low
        assert each["break_even_acceptance"] == break_even(cost, batch=each["batch"], depth=3, context=each["context"])
    assert [limit["context"] for limit in record["limits"]] == [512, 8192, 512, 8192]


def test_times_measured_elsewhere_are_carried_over(files, tmp_path):
    here = roofline()
    rest = here.verify([2, 40], batch=2, context=512).total_s
    first, later = (float(here.level(1, batch=2, depth=f, context=512).total_s) for f in (0, 1))
    times = BatchTimes(
        2, 1.1 * here.plain_s(batch=2), ((1, first), (3, first + 2 * later)), ((2, rest[0]), (40, rest[1]))
    )
    profile = Profile((times,), (512, 512), 0.03, {"device": "a machine"})
    save_profile(profile, tmp_path / "p.json")
    asked = ["--batch", "2", "--context", "2k", "--max-nodes", "9"]
    asked += ["--profile", tmp_path / "p.json", "--measured-on", "h100"]
    record = json.loads(done(*words(files, *asked, "--json", hardware="h200")).stdout)
    carried = transfer(profile, measured_on=here, to=roofline("h200"), context=2048)
    assert record["cells"][0]["plain_s"] == carried.plain_s(batch=2)
    save_profile(replace(profile, meta={"device": "cpu, 1 threads"}), tmp_path / "c.json")
    told = done(*words(files, *asked, "--profile", tmp_path / "c.json", hardware="h200")).output
    assert "Warning: the profile was measured on cpu, 1 threads, not on h100: carried-over step times" in told
    other = {"target": {"name": "other", "weights": "1"}, "drafter": {"kind": "eagle"}}
    save_profile(replace(profile, meta=other), tmp_path / "p.json")
    told = done(*words(files, *asked, hardware="h200")).output
    assert "Warning: trace and profile name different targets or number types" in told


def test_a_drafter_is_no_target(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}')
    asked = ["whatif", "--acceptance", "0.7", "--kind", "eagle3", "--target", tmp_path, "--hardware", "h100"]
    refused(
        run(*asked, "--batch", "1"), "LlamaForCausalLMEagle3 names EAGLE-3, no language model: is it the --drafter?"
    )


@pytest.fixture
def of_kind(files, tmp_path):
    """The command's words with a trace that names its drafter so."""

    def write(kind, *more):
        meta = {} if kind is None else {"drafter": {"kind": kind}}
        save_trace(replace(load_trace(files / "t.npz"), meta=meta), tmp_path / "t.npz")
        small = ["--batch", "1", "--max-nodes", "9", "--hardware", "h100"]
        return ["whatif", "--trace", tmp_path / "t.npz", "--target", files, *small, *more]

    return write


def test_the_kind_is_the_traces(of_kind):
    record = json.loads(done(*of_kind("medusa", "--json")).stdout)
    told = done(*of_kind("medusa", "--kind", "medusa", "--json"))
    assert record["cells"] == json.loads(told.stdout)["cells"]
    assert "of kind" not in told.output
    assert record["meta"]["settings"]["kind"] == "medusa"
    assert "The drafter is priced as medusa." in record["conditions"]
    other = done(*of_kind("medusa", "--kind", "eagle", "--json"))
    assert "Warning: the trace records drafter kind medusa, but eagle is priced" in other.output
    assert json.loads(other.stdout)["cells"] != record["cells"]


def test_a_kind_without_a_price_is_refused_unless_another_is_named(of_kind):
    choices = ", ".join(DRAFTERS)
    refused(run(*of_kind("hspec")), "there is no price for a hspec drafter", "--kind", choices, code=2)
    assert "records drafter kind hspec, but medusa is priced" in done(*of_kind("hspec", "--kind", "medusa")).output
    refused(run(*of_kind(None)), "the trace does not record its drafter's kind", choices, code=2)
    refused(run(*of_kind("language-model")), "name its folder with --drafter", code=2)


def test_lookup_takes_the_host_once_and_the_device_never(of_kind, tmp_path):
    """A step is verification and one wait; no weights but the target's are held; carried over it stays as it was."""
    record = json.loads(done(*of_kind("prompt-lookup", "--json", "--profiles", tmp_path / "times")).stdout)
    (cell,) = record["cells"]
    nothing = replace(roofline(), drafter=no_work())
    tree = Tree.from_paths(cell["tree"]["paths"])
    own = nothing.verify(1 + tree.nodes, batch=1, context=512).total_s + Overheads().level_s
    assert cell["step_s"] == pytest.approx(float(own), rel=2e-3)  # what is kept is moved besides
    assert weights(nothing, heads=3) == pytest.approx(nothing.target.parameters * 2)
    (table,) = load_profile(tmp_path / "times" / "h100-sxm.json").batches
    assert [seconds for _, seconds in table.draft] == [Overheads().level_s] * 3
    here = replace(table, draft=((1, 3e-4), (3, 4e-4)), widths=((1, 0.0), (4, 1e-5)))
    profile = Profile((here,), (512, 512), 0.01)
    other = replace(nothing, device=find_hardware("l40s"))
    (there,) = transfer(profile, measured_on=nothing, to=other, context=512).batches
    assert there.draft == here.draft
    assert there.widths == here.widths
    assert there.plain_s > here.plain_s
    refused(run(*of_kind("ngram", "--draft-bytes", "1")), "--draft-bytes describes the sizes of a model", code=2)


def test_an_engine_takes_what_it_runs(of_kind, tmp_path):
    """vLLM runs chains alone; its export of the plan has nothing to replace."""
    free, (cell,) = (
        json.loads(done(*of_kind("eagle", "--json", *more)).stdout)["cells"]
        for more in ([], ["--for", "vllm", "--plans", tmp_path / "p"])
    )
    assert free[0]["tree"]["nodes"] > free[0]["tree"]["depth"]
    assert cell["tree"]["nodes"] == cell["tree"]["depth"]
    assert cell["speedup"]["value"] < free[0]["speedup"]["value"]
    exported = done(
        "export", tmp_path / "p" / "h100-sxm-512.json", "--format", "vllm", "--method", "eagle", "--model", "d"
    )
    assert json.loads(exported.stdout)["num_speculative_tokens"] == cell["tree"]["depth"]
    assert "gave way" not in exported.output


def test_a_plan_of_a_figure_names_the_kind_that_was_priced(tmp_path):
    """So that an export knows what drafts, and says so where the engine does not run it."""
    plans = tmp_path / "p"
    asked = ["whatif", "--acceptance", "0.7", "--target", "8b", "--hardware", "h100", "--batch", "1", "--plans", plans]
    told = done(*asked, "--kind", "hydra", "--for", "vllm").output
    assert "Warning: vLLM 0.33.0 runs no drafter of kind hydra" in told
    told = done("export", plans / "h100-sxm-512.json", "--format", "sglang").output
    assert "made for a drafter of kind hydra, but SGLang" in told
    done(*asked, "--kind", "p-eagle", "--for", "vllm")
    exported = ["export", plans / "h100-sxm-512.json", "--format", "vllm", "--model", "d"]
    refused(run(*exported), "needs a method, one of eagle3: give --method", code=2)
    assert json.loads(done(*exported, "--method", "eagle3").stdout)["parallel_drafting"]
    (tmp_path / "config.json").write_text('{"model_type": "mlp_speculator", "n_predict": 4}')
    refused(run(*asked, "--drafter", tmp_path), "config.json: architectures: an MLP speculator has no price")


def test_a_quantised_config_has_the_bytes_of_its_weights_or_needs_them(files, tmp_path):
    awq = LLAMA_3_8B | {"quantization_config": {"quant_method": "awq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(awq), "utf-8")
    asked = ["--batch", "1", "--max-nodes", "9", "--json"]
    of_target = ["whatif", "--trace", files / "t.npz", "--target", tmp_path, "--hardware", "h100", *asked]
    (cell,) = json.loads(done(*of_target).stdout)["cells"]
    scaled = 0.5 + 2.5 / 128  # the step is a little longer than 4 bits alone would be
    assert cell["plain_s"] == pytest.approx(roofline(weight_bytes=scaled).plain_s(batch=1), rel=1e-9)
    by_hand = ("--sizes", "params=8e9,kv_bytes=131072")
    refused(run(*of_target, *by_hand), "(quant_method awq)", "--weight-bytes", code=2)
    aqlm = LLAMA_3_8B | {"quantization_config": {"quant_method": "aqlm"}}
    (tmp_path / "config.json").write_text(json.dumps(aqlm), "utf-8")
    said = "quantization_config says that weights are quantised (quant_method aqlm)"
    refused(run(*of_target), said, "--weight-bytes", code=2)
    (cell,) = json.loads(done(*of_target, "--weight-bytes", "0.5").stdout)["cells"]
    assert cell["plain_s"] == roofline(weight_bytes=0.5).plain_s(batch=1)
    of_drafter = words(files, *asked, "--drafter", tmp_path, hardware="h100")
    refused(run(*of_drafter), said, "--draft-bytes", code=2)
    assert json.loads(done(*of_drafter, "--draft-bytes", "0.5").stdout)["meta"]["settings"]["draft_bytes"] == 0.5


def test_contexts_beyond_the_target_s_are_warned_of(files, tmp_path):
    config = LLAMA_3_8B | {"max_position_embeddings": 8192, "rope_scaling": None}
    asked = ["whatif", "--trace", files / "t.npz", "--target", tmp_path, "--hardware", "h100", "--max-nodes", "9"]
    asked += ["--batch", "1", "--context", "8k,16k,32k", "--json"]
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    found = done(*asked)
    said = "context 16384, 32768"
    assert f"Warning: {said}" in found.output
    assert [said in warning for warning in json.loads(found.stdout)["warnings"]].count(True) == 1
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_scaling": yarn}), "utf-8")
    assert "built for" not in done(*asked).output
    (tmp_path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": "long"}), "utf-8")
    refused(run(*asked), "config.json", "max_position_embeddings")


def test_what_exceeds_the_memory_does_not_fit_and_does_not_pay(files):
    asked = ["--batch", "32,64", "--context", "8k", "--max-nodes", "9"]
    size = 2 * (L3.parameters + 2 * L3.hidden**2 + L3.layer_groups[0].weights())
    keys = 8192 * 2 * (L3.layers + 1) * L3.kv_heads * L3.head_dim * 2
    assert size + 32 * keys < 0.92 * 80 * 2**30 < size + 64 * keys
    record = json.loads(done(*words(files, *asked, "--json", hardware="h100,h200")).stdout)
    assert [cell["fits"] for cell in record["cells"]] == [True, False, True, True]
    assert [cell["name"].startswith("does not fit") for cell in record["cells"]] == [False, True, False, False]
    assert record["cells"][3]["tree"] is not None
    assert [limit["pays_up_to"] for limit in record["limits"]] == [32, 64]
    own = ["--data-sheet", "1000,200", "--like", "h100", "--batch", "64", "--max-nodes", "9"]
    for memory, fits in ((10, False), (1000, True)):
        found = done(*words(files, *own, "--memory", memory, "--json", hardware="mine"))
        assert [cell["fits"] for cell in json.loads(found.stdout)["cells"]] == [fits]


def test_fit_compares_each_side_at_its_own_best_batch(tmp_path, files):
    asked = ["--fit", "--batch", "1,16", "--context", "64k", "--max-nodes", "3", "--json"]
    asked += ["--plans", tmp_path / "p", "--profiles", tmp_path / "s"]
    record = json.loads(done(*words(files, *asked, hardware="h100")).stdout)
    (fit,), cells = record["fits"], {cell["batch"]: cell for cell in record["cells"]}
    memory, plain, best = fit["memory"], fit["plain"], fit["speculating"]
    room = 0.92 * 80 * 2**30 - memory["weights"]
    assert plain["most"] == room // memory["sequence"] > 1
    assert best["most"] == (room - memory["drafter"]) // (memory["sequence"] + memory["drafted"])
    assert set(cells) == {1, 16, plain["most"], best["most"]}
    assert plain["tokens_s"] == max(size / cells[size]["plain_s"] for size in cells if size <= plain["most"])
    assert best["tokens_s"] == cells[best["batch"]]["tokens_s"]
    assert fit["ratio"]["value"] == pytest.approx(best["tokens_s"] / plain["tokens_s"])
    plan = tmp_path / "p" / "h100-sxm-65536.json"
    assert load_plan(plan).meta["holds"]["batch"] == best["most"]
    times = ["--profile", tmp_path / "s" / "h100-sxm.json", "--batch", "16", "--prefill-s", "0"]
    warned = done("simulate", "--trace", files / "t.npz", "--plan", plan, *times).output
    assert f"H100 SXM holds {best['most']} sequences of 65536 tokens with this plan, not 16" in warned


def test_where_a_tree_does_not_fit_the_fastest_smaller_one_is_planned():
    """Each drafted token keeps 170 MB of states: four leave room for 14 sequences, one for 40; 93 fit without."""
    target, figure = "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", treeopt.acceptance("0.8,0.62,0.48,0.36,0.28")
    asked = {"hardware": "h200", "target": target, "kind": "mtp", "batch": (14, 24, 40, 64), "context": (4096,)}
    found = treeopt.whatif(figure, **asked, fit=True, max_tpot_s=(1.0,))
    cells = {cell["batch"]: cell for cell in found["cells"]}
    memory = found.scenarios[0].memory
    nodes = {batch: 0 if cell["tree"] is None else cell["tree"]["nodes"] for batch, cell in cells.items()}
    assert all(cell["fits"] and memory.batch(nodes[batch]) >= batch for batch, cell in cells.items())
    assert [nodes[batch] > 0 for batch in (14, 24, 40, 64, 93)] == [True] * 3 + [False] * 2
    assert found["limits"][0]["pays_up_to"] == 40
    assert found["fits"][0]["speculating"]["most"] == 40
    most = next(iter(RESULTS["whatif"].answers(found)))
    assert most.startswith(
        "Context 4096, at most 1000 ms per token: most tokens per second without speculation on H200, batch 93"
    )


def test_a_search_on_times_with_memory_says_what_fits(files, tmp_path):
    """Predicted times at two contexts: their plans say the same, and between them memory is interpolated."""
    asked = ["--context", "1k,8k", "--batch", "1,4", "--max-nodes", "4", "--kv-bytes", "1"]
    done(*words(files, *asked, "--plans", tmp_path / "p", "--profiles", tmp_path / "t", hardware="h100"))
    most = {}
    for context in (1024, 4096, 8192):
        times = tmp_path / "t" / "h100-sxm.json"
        plan = treeopt.search(files / "t.npz", times, batch=(1, 4), context=context, max_nodes=4)
        most[context] = plan.meta["holds"]["batch"]
        if context != 4096:
            assert plan.meta["holds"] == load_plan(tmp_path / "p" / f"h100-sxm-{context}.json").meta["holds"]
    assert most[4096] == pytest.approx(2 * most[8192], abs=2)


def test_several_devices_share_a_target_that_one_cannot_hold(tmp_path, files):
    """70B in bf16: 141 GB do not fit 80; an hour of four devices costs four times as much."""
    large = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B | large), "utf-8")
    asked = ["whatif", "--trace", files / "t.npz", "--target", tmp_path, "--hardware", "h100,4xH100", "--batch", "1"]
    asked += ["--max-nodes", "9", "--price", "h100=2.5", "--json"]
    asked += ["--plans", tmp_path / "p", "--profiles", tmp_path / "s"]
    record = json.loads(done(*asked).stdout)
    one, four = record["cells"]
    assert (one["device"], one["fits"]) == ("H100 SXM", False)
    assert (four["device"], four["fits"]) == ("4 x H100 SXM", True)
    assert record["meta"]["settings"]["prices"] == {"H100 SXM": 2.5, "4 x H100 SXM": 10}
    assert record["cheapest"][0]["planned"]["device"] == "4 x H100 SXM"
    assert four["million"]["value"] == pytest.approx(10 / 3600 / four["tokens_s"] * 1e6)
    assert one["plain_s"] / 4 < four["plain_s"] < one["plain_s"] / 2
    assert four["relative_error"] == pytest.approx(math.hypot(0.1, 0.1, 0.23))
    assert any("4 x H100 SXM share every layer" in condition for condition in record["conditions"])
    assert record["meta"]["costs"][1]["link"]["latency_s"] == find_hardware("h100").link.latency_s
    assert load_plan(tmp_path / "p" / "4-x-h100-sxm-512.json").entries[0].choice.name == four["name"]
    assert load_profile(tmp_path / "s" / "4-x-h100-sxm.json").meta["device"] == "4 x H100 SXM"
    refused(run(*words(files, hardware="2xl40s")), "--hardware 2xl40s: L40S: the speed of its", "--link")


def test_an_exchange_that_is_not_known_is_given(files):
    asked = ["--batch", "1", "--max-nodes", "3", "--json"]
    cells = [
        json.loads(done(*words(files, *asked, "--link", link, hardware="2xl40s,2xh100")).stdout)["cells"]
        for link in ("20,25", "20, 50")
    ]
    sums = 2 * 32 + 1  # of the layers, and the logits
    assert cells[1][0]["plain_s"] - cells[0][0]["plain_s"] == pytest.approx(sums * 25e-6)
    assert cells[1][1] == cells[0][1]  # the H100's is known
    refused(run(*words(files, "--link", "fast,25", hardware="2xl40s")), "is not two numbers such as 20,25", code=2)
    refused(run(*words(files, "--link", "20,25", hardware="2xh100")), "--link has no effect", code=2)


def test_a_matrix_rate_that_is_not_published_is_said(files):
    refused(run(*words(files, hardware="m4-max")), "M4 Max: no constants are known for devices of class", "--like")
    told = done(*words(files, "--batch", "1", "--like", "l40s", hardware="m4-max,l4")).stderr
    assert told.count("flops") == told.count("M4 Max: flops is the FP32 rate of the GPU: Apple states no matrix") == 1


def test_warnings_of_the_searches_are_told_once(files):
    asked = ["--batch", "1,2", "--max-nodes", "9", "--json"]
    due = search(load_trace(files / "t.npz"), roofline(), batch=(1, 2), context=512, max_nodes=9).warnings
    assert due
    result = done(*words(files, *asked))
    assert json.loads(result.stdout)["warnings"] == list(due)
    assert [result.output.count(f"Warning: {each}.") for each in due] == [1] * len(due)


def test_the_largest_figures_that_are_taken_are_computed_with(files):
    """Warnings of numpy are errors here."""
    largest = ["--weight-bytes", "1024", "--kv-bytes", "1024", "--batch", "1,2147483648", "--context", "2147483648"]
    slowest = ["--data-sheet", "1e-9,1e-12", "--like", "h100"]
    fastest = ["--data-sheet", "1e21,1e18", "--like", "h100", "--weight-bytes", "1e-308"]
    for asked in ([*largest, *slowest], [*fastest, "--batch", "1", "--kv-bytes", "1e-308"]):
        record = json.loads(done(*words(files, *asked, "--max-nodes", "9", "--json", hardware="mine")).stdout)
        assert all(np.isfinite([cell["step_s"], cell["speedup"]["value"]]).all() for cell in record["cells"])


@pytest.mark.parametrize(
    ("words_", "said", "code"),
    [
        (("--hardware", "h300"), "hardware must be one of A6000", 1),
        (("--hardware", "8xh100:tp3ep8"), "8xh100:tp3ep8: experts are spread over all 8 devices", 2),
        (("--hardware", "8xh100:tp2ep8"), "--hardware 8xh100-sxm:tp2ep8: experts can be spread", 1),
        (("--for", "vllm==new"), "a version must be numbers such as 0.10.2, got 'new'", 2),
        (("--data-sheet", "1000"), "--data-sheet takes two numbers, GB/s and TFLOP/s", 2),
        (("--price", "h100=1,l40s=1", "--max-tpot-ms", "inf"), "inf is not a finite number", 2),
        (("--measured-on", "h100"), "--profile and --measured-on need each other", 2),
    ],
)
def test_options_that_cannot_be_are_refused(files, words_, said, code):
    refused(run(*words(files, *words_)), said, code=code)


def test_targets_and_traces_that_cannot_be_priced_are_refused(files, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}', "utf-8")
    asked = ["whatif", "--trace", files / "t.npz", "--hardware", "h100", "--target"]
    refused(run(*asked, tmp_path), "config.json: model_type 'mamba' has no price", "`treeopt times`", "--sizes")
    quantised = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}
    (tmp_path / "config.json").write_text(json.dumps(quantised), "utf-8")  # before its bytes are asked for
    refused(run(*asked, tmp_path), "config.json: num_key_value_heads must be given for model_type gpt_oss")
    refused(run(*asked, "8b", "--kind", "hspec"), "'hspec' is not one of combined, ", "`treeopt times`", code=2)
    with pytest.raises(UsageError, match=r"kind must be one of combined, .*`treeopt times`"):
        treeopt.whatif(files / "t.npz", target="8b", hardware="h100", kind="hspec")
    shape = json.loads((files / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(shape | {"quantization": {"group_size": 64, "bits": 4}}), "utf-8")
    refused(run(*asked, tmp_path), "give the bytes of one with --weight-bytes", code=2)
    trace = load_trace(files / "t.npz")
    save_trace(replace(trace, meta=EAGLE | {"verification": "sequoia"}), tmp_path / "drawn.npz")
    asked = ["whatif", "--trace", tmp_path / "drawn.npz", "--hardware", "h100", "--target", files]
    refused(run(*asked), "rule sequoia draws")


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("eagle", {}, None),
        ("eagle", {"hidden_size": 2048}, "the drafter's hidden size is 2048, the target's 4096"),
        ("eagle3", {}, "its head is priced over all 128256 tokens"),
        ("eagle3", {"draft_vocab_size": 32000}, None),
        ("dflash", {}, "the drafter is priced as 5 layers and blocks of 16"),
        ("dspark", {"block_size": 8, "head_dim": 128}, None),
        ("hydra", {}, "hydra is priced as four heads of one layer and no prefix layer"),
    ],
)
def test_a_drafter_of_other_sizes_is_warned_of(files, tmp_path, kind, changes, said):
    config = json.loads((files / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | changes), "utf-8")
    asked = ["--kind", kind, "--drafter", tmp_path / "config.json", "--batch", "1", "--max-nodes", "3"]
    found = done(*words(files, *asked, hardware="h100"))
    own = [line for line in found.output.splitlines() if re.search("the drafter|its head|prefix layer", line)]
    assert len(own) == (said is not None)
    if said:
        assert said in own[0]


@pytest.mark.parametrize(("drafter", "longest"), [("medusa", 5), ("hydra", 4), ("dflash", 7)])
def test_no_chain_is_longer_than_the_drafter_drafts(drafter, longest):
    asked = ["--drafter", f"data/models/stdlib-{drafter}", "--target", "data/models/stdlib-llama", "--hardware", "h100"]
    (cell,) = json.loads(done("whatif", "--acceptance", "0.9", *asked, "--batch", "1", "--json").stdout)["cells"]
    assert cell["tree"]["depth"] == longest


def test_a_trace_of_drawn_candidates_is_drawn_from(files, tmp_path):
    """As by `search`: ranks that the rule might have kept, and trees that it verifies."""
    trace = load_trace(files / "t.npz")
    kept = np.zeros((*trace.rank.shape, trace.width), dtype=np.float16)
    kept[trace.rank >= 0, 0] = 0.7
    meta = {**trace.meta, "verification": "leviathan", "temperature": 1.0}
    save_trace(replace(trace, kept=kept, meta=meta), tmp_path / "t.npz")
    asked = ["whatif", "--trace", tmp_path / "t.npz", "--target", files, "--hardware", "h100", "--batch", "1", "--json"]
    (cell,) = json.loads(done(*asked).stdout)["cells"]
    assert cell["tree"]["nodes"] == cell["tree"]["depth"]


def test_plans_are_written_for_engines(files, tmp_path):
    """One a device and context, as `search` makes it with that cost; an engine's export reads it."""
    folder = tmp_path / "plans"
    asked = ["--batch", "1,2", "--context", "512,8k", "--max-nodes", "3", "--plans", folder]
    done(*words(files, *asked))
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["h100-sxm-512.json", "h100-sxm-8192.json", "l40s-512.json", "l40s-8192.json"]
    plan = load_plan(folder / "h100-sxm-8192.json")
    due = search(load_trace(files / "t.npz"), roofline(), batch=(1, 2), context=8192, max_nodes=3, compare={})
    assert [e.choice.tree for e in plan.entries] == [e.choice.tree for e in due.entries]
    assert [e.choice.speedup for e in plan.entries] == [e.choice.speedup for e in due.entries]
    found = done("export", folder / "h100-sxm-512.json", "--format", "sglang", "--batch", "1", "--nearest", "chain")
    assert found.stdout
    refused(run(*words(files, *asked[:-1], tmp_path / "no" / "plans")), "--plans", "there is no folder", code=2)
