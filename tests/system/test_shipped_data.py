"""The data that the repository ships: complete, within limits, named by its weights, and true of the live loop."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data.make import make_models as build
from data.make import make_traces, stdlib_corpus
from executor.checkpoints import load_drafter, trained_for
from executor.decoding.decoder import Decoder
from executor.drafters.base.recipe import recipes
from executor.models import identity, weights_hash
from executor.prompts.prompt_files import read_prompts
from executor.target.load_hf_model import load_target
from executor.target.tokenizer import load_tokenizer
from simulate.profiles.profile import RUN, load_profile, profile_of_trace
from simulate.validation import predicted_vs_measured
from tests.helpers import policy_replay
from tests.helpers.slow_params import slow_unless
from treeopt.api.run_models import Models, load_models
from treeopt.errors import UsageError
from treeopt.planning.search_pipeline import search
from treeopt.policies import DynamicTree
from treeopt.replay.static_tree import visit
from treeopt.results.words import describe_models
from treeopt.statistics import Estimate
from treeopt.storage.provenance import SHIPPED, drafter_name, target_name
from treeopt.storage.user_files import shipped
from treeopt.traces.resumable_shards import load_file_or_shards
from treeopt.traces.trace_files import load_trace
from treeopt.tree import Tree
from treeopt.tree_files.choice_lists import MEDUSA, published_trees

TRACES = ["medusa-t0", "medusa-t1"]
MEASURED = [name for name in make_traces.DRAFTERS if shipped(f"profiles/{name}-cpu.json").is_file()]


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(0)
    target = load_target(shipped("models/stdlib-llama"))
    return target, load_drafter(shipped("models/stdlib-medusa"), target)


@pytest.fixture(scope="module")
def prompts():
    texts = [p.text for p in read_prompts(shipped("prompts/stdlib.jsonl"))]
    return load_tokenizer(shipped("models/stdlib-llama"), vocabulary=4096)(texts)["input_ids"]


@pytest.fixture(scope="module")
def trees():
    trace, profile = (
        load_trace(shipped("traces/medusa-t0.npz")),
        load_profile(shipped("profiles/medusa-cpu.json")),
    )
    plan = search(trace, profile, batch=(1, 4))
    chosen = {f"chosen at {e.batch}": e.choice.tree for e in plan.entries if e.choice.tree}
    assert chosen  # a demonstration without a tree would show nothing
    return {"chain": Tree.chain(5), "Medusa": published_trees()[MEDUSA], **chosen}


@pytest.mark.parametrize("name", TRACES)
def test_traces_are_as_large_as_promised(name):
    trace = load_trace(shipped(f"traces/{name}.npz"))
    assert trace.requests >= 500
    assert trace.anchors >= 30_000
    assert trace.depth >= 5
    assert trace.width >= 16
    assert trace.meta["repeated_4grams"]["written"] < 0.35
    assert trace.meta["provenance"]["commit"]


def test_every_drafter_has_a_profile_but_those_that_wait_for_an_idle_machine():
    assert set(make_traces.DRAFTERS) - set(MEASURED) <= {"mtp", "p-eagle", "dflash"}


@pytest.mark.parametrize("name", MEASURED)
def test_a_trace_finds_the_profile_of_its_drafter(name):
    """Of one thread, measured as the others were; a drafter may have others, of policies or two threads."""
    file = shipped(f"traces/{name}-t0.npz")
    found, _ = profile_of_trace(load_trace(file).meta, file)
    assert found == load_profile(shipped(f"profiles/{name}-cpu.json"))
    assert found.meta["device"] == "cpu, 1 threads"
    assert found.prefill.reach[0] <= 20
    assert [times.batch for times in found.batches if times.batch in (1, 4, 16)] == [1, 4, 16]
    assert found.meta["left_out_sizes"]["median_error"] <= 0.02


def test_runs_of_one_machine_differ_by_what_profiles_allow_for():
    """What verification takes over a plain step, as each drafter's profile has it of the same target, in 90 minutes.

    All sizes of a batch size together; hours that lie between a profile and a run make more of it. Medusa's was
    measured anew six hours after the others.
    """
    sizes, shifts = (4, 8, 16, 32, 64), []
    names = [name for name in MEASURED if name != "medusa"]
    profiles = [load_profile(shipped(f"profiles/{name}-cpu.json")) for name in names]
    profiles = [each for each in profiles if each.meta["provenance"]["processor"] == "AMD EPYC"]
    assert len(profiles) >= 11
    for batch in (1, 4, 16):
        tables = [next(times for times in profile.batches if times.batch == batch) for profile in profiles]
        logs = [np.log(np.interp(sizes, *zip(*times.rest, strict=True)) / times.plain_s).mean() for times in tables]
        shifts.append(np.var(logs, ddof=1))
    assert 0.7 * RUN <= np.sqrt(np.mean(shifts)) <= RUN


def test_everything_is_of_the_same_models(models):
    target, drafter = models
    own = (weights_hash(target.model), weights_hash(drafter))
    for meta in (
        *(load_trace(shipped(f"traces/{name}.npz")).meta for name in TRACES),
        load_profile(shipped("profiles/medusa-cpu.json")).meta,
        json.loads(shipped("validations/medusa-cpu.json").read_text())["meta"],
    ):
        assert (meta["target"]["weights"], meta["drafter"]["weights"]) == own


def test_only_live_validations_check_a_plan(tmp_path, monkeypatch):
    """The very tree that a shipped validation measured, on the machine of its profile; then the same, but replayed."""
    record = json.loads(shipped("validations/medusa-cpu.json").read_text())
    trace, profile = load_trace(shipped("traces/medusa-t0.npz")), load_profile(shipped("profiles/medusa-cpu.json"))
    plan = search(trace, profile, batch=(record["cells"][0]["batch"],), max_nodes=4)
    entry = plan.entries[0]
    measured = Tree.from_paths(record["cells"][0]["tree"]["paths"])
    plan = replace(plan, entries=(replace(entry, choice=replace(entry.choice, tree=measured)),))
    monkeypatch.setattr(predicted_vs_measured, "shipped", lambda name: tmp_path)
    (tmp_path / "v.json").write_text(json.dumps(record))
    live = record["cells"][0]["measured"]["speedup"]["value"]
    for predicted, outside in ((live, False), (live + 0.2, True)):
        speedup = Estimate(predicted, predicted - 0.1, predicted + 0.1)
        choice = replace(plan.entries[0].choice, speedup=speedup)
        (said,) = predicted_vs_measured.live_checks(replace(plan, entries=(replace(entry, choice=choice),))).values()
        assert ("outside the interval predicted" in said) == outside
    sampled = {"verification": "sample-and-match", "temperature": 1.0}
    for how, checked in (({}, True), ({"acceptance": "replay"}, False), (sampled, False)):
        (tmp_path / "v.json").write_text(json.dumps(record | {"meta": record["meta"] | how}))
        assert bool(predicted_vs_measured.live_checks(plan)) == checked
    plan = replace(plan, meta={**plan.meta, "trace": {**plan.meta["trace"], **sampled}})
    assert predicted_vs_measured.live_checks(plan)
    assert not predicted_vs_measured.live_checks(replace(plan, meta={}))  # edited by hand


@pytest.mark.parametrize("name", slow_unless(lambda name: name in ("medusa", "eagle3"), make_traces.DRAFTERS))
def test_no_drafter_is_said_to_be_of_another_target(name, caplog):
    data = shipped("models").parent
    place = Path(make_traces.place_of(data, name))
    load_models(Models(target=make_traces.target_of(data, name), drafter=place))
    assert caplog.records == []
    assert trained_for(place) == (None if name == "prompt-lookup" else build.NAME)


def test_models_are_small_and_say_where_they_come_from():
    files = [path for path in shipped("models").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 45e6
    trained = [build.NAME, *(drafter.folder for drafter in build.DRAFTERS.values())]
    for name in trained:
        record = json.loads((shipped("models") / name / "training.json").read_text())
        assert record["files_held_out"] > 0
        assert record["log"]


@pytest.mark.parametrize("name", slow_unless(lambda name: "eagle3" in name or "medusa1" in name, make_traces.DRAFTERS))
def test_every_drafter_s_trace_replays_to_its_live_steps(name):
    data = shipped("models").parent
    folder = make_traces.target_of(data, name)
    target = load_target(folder)
    drafter = load_drafter(make_traces.place_of(data, name), target)
    trace = load_trace(data / "traces" / f"{name}-t0.npz")
    texts = [prompt.text for prompt in read_prompts(data / "prompts" / "stdlib.jsonl")[:4]]
    tokens = load_tokenizer(folder, vocabulary=target.vocabulary)(texts)["input_ids"]
    tree = Tree.from_paths([(0, 0, 0), (0, 1), (1, 0), (2,)])
    steps = visit(tree, trace)
    live = Decoder(target, drafter, tree=tree, batch=4).generate(tokens, new_tokens=32, stop=[0])
    for request, generation in enumerate(live):
        assert list(generation.accepted) == steps.accepted[steps.request == request].tolist()


def test_recorded_candidates_replay_to_live_dynamic_steps():
    data = shipped("models").parent
    trace = load_trace(data / "traces" / "eagle-candidates-t0.npz")
    assert trace.requests == 200
    assert np.diff(trace.candidates.offset).min() >= 190
    target = load_target(data / "models/stdlib-llama")
    drafter = load_drafter(data / "models/stdlib-eagle", target)
    texts = [prompt.text for prompt in read_prompts(data / "prompts" / "stdlib.jsonl")[:4]]
    tokens = load_tokenizer(data / "models/stdlib-llama", vocabulary=target.vocabulary)(texts)["input_ids"]
    policy = DynamicTree(nodes=20, depth=6, beam=8, width=5)
    steps = policy_replay.visit(policy, trace)
    live = Decoder(target, drafter, tree=policy, batch=4).generate(tokens, new_tokens=32, stop=[0])
    for request, generation in enumerate(live):
        assert list(generation.accepted) == steps.accepted[steps.request == request].tolist()


def test_a_trace_that_is_not_shipped_is_not_recorded(tmp_path):
    with pytest.raises(UsageError, match=r"one of bigram, .* got eagle-t2"):
        make_traces.record(tmp_path, ["eagle", "eagle-t2"])


def check(models, prompts, trees, batch: int, requests: int) -> None:
    target, drafter = models
    trace = load_trace(shipped("traces/medusa-t0.npz"))
    assert trace.meta["new_tokens"] == 32
    for name, tree in trees.items():
        decoder = Decoder(target, drafter, tree=tree, batch=batch)
        live = decoder.generate(prompts[:requests], new_tokens=32, stop=[target.model.config.eos_token_id])
        steps = visit(tree, trace)
        for request, generation in enumerate(live):
            replayed = steps.accepted[steps.request == request].tolist()
            assert list(generation.accepted) == replayed, f"{name}, batch {batch}, request {request}"


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 4])
def test_replay_equals_the_live_loop_on_every_request(models, prompts, trees, batch):
    check(models, prompts, trees, batch, 1000)


@pytest.mark.slow
def test_greedy_text_equals_generate(models, prompts, trees):
    target, drafter = models
    due = []
    for prompt in prompts[1000:1008]:
        ids = torch.tensor([prompt])
        out = target.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=32)
        due.append(out[0, len(prompt) :].tolist())
    for tree in trees.values():
        found = Decoder(target, drafter, tree=tree, batch=4).generate(prompts[1000:1008], new_tokens=32, stop=[0])
        assert [list(g.tokens) for g in found] == due


@pytest.mark.slow
def test_drafters_are_trained_beside_the_shipped_target(tmp_path, monkeypatch):
    """A few steps each, computed in what the target was; a second stage goes on from the first."""
    shutil.copytree(shipped("models/stdlib-llama"), tmp_path / "models" / build.NAME)
    short = [source for source in stdlib_corpus.standard_library() if 1000 < len(source.text) < 3000]
    few = [s for s in short if s.held_out][:6] + [s for s in short if not s.held_out][:20]
    monkeypatch.setattr(stdlib_corpus, "standard_library", lambda: few)
    target = load_target(tmp_path / "models" / build.NAME)
    for name in ("coral", "coral-router", "medusa2"):
        found = build.train_drafter(tmp_path, name, steps=3)
        folder = tmp_path / "models" / build.DRAFTERS[name].folder
        assert load_drafter(folder, target).max_depth >= len(found.after)
        log = json.loads((folder / "training.json").read_text())
        assert (log["target"]["name"], log["precision"]) == (build.NAME, "bfloat16")
    build.build(tmp_path, "bigram")
    assert load_drafter(tmp_path / "models" / "stdlib-bigram", target).order == 2
    assert set(recipes()) - set(build.DRAFTERS) == {"dspark", "pard"}  # of these no page needs one
    with pytest.raises(UsageError, match="the name must be target or one of unigram, bigram, medusa1"):
        build.build(tmp_path, "nothing")


MODELS, SHIPPED_TRACES = shipped("models"), sorted(shipped("traces").glob("*.npz"))


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


@pytest.mark.parametrize("path", SHIPPED_TRACES, ids=lambda path: path.stem)
def test_shipped_traces_name_their_drafter(path):
    meta = load_file_or_shards(path).meta
    name = path.stem.rpartition("-")[0].removeprefix("smollm2-").removesuffix("-candidates")
    described = describe_models(meta)
    assert name in described or drafter_name(meta) == f"stdlib-{name}", described
    if name == "medusa2":
        assert target_name(meta) == "stdlib-medusa2/target"
    assert "ngram as drafter" not in described
    assert not (name in ("coral", "hass", "coral-router") and "eagle as drafter" in described)
