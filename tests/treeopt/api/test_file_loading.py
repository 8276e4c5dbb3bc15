"""Files and models that the API loads: what is found, what is said of it, and `auto`."""

import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

import treeopt
from tests.helpers.command_line import done
from treeopt.api import profile_steps
from treeopt.api.run_models import Models, kernel_notes
from treeopt.errors import TraceError, UsageError
from treeopt.plans import Plan

METRICS = "docs/examples/vllm_metrics.txt"


def test_an_import_equals_that_of_the_command(tmp_path):
    done("trace", "import", METRICS, "--requests", "50", "--output", tmp_path / "imported.npz")
    command = treeopt.load_trace(tmp_path / "imported.npz")
    trace = treeopt.import_trace(METRICS, requests=50)
    assert trace.requests == command.requests == 50
    assert trace.rank.tolist() == command.rank.tolist()
    assert trace.meta["assumed"] == command.meta["assumed"]


def test_settings_of_another_format_and_unknown_formats_are_refused(tmp_path):
    with pytest.raises(UsageError, match="--column does not apply to --format engine"):
        treeopt.import_trace(METRICS, column="rank")
    with pytest.raises(UsageError, match="--format must be one of"):
        treeopt.import_trace(METRICS, kind="pdf")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(TraceError, match=r"empty\.txt: "):
        treeopt.import_trace(tmp_path / "empty.txt")


def test_a_table_of_numbers_is_imported(tmp_path):
    (tmp_path / "ranks.csv").write_text("0.62,0.12,0.06\n0.48,0.13,0.06\n")
    trace = treeopt.import_trace(tmp_path / "ranks.csv", kind="table", column="rank", requests=20, length=16)
    assert (trace.requests, trace.depth, trace.anchors) == (20, 2, 320)


def test_a_what_if_hands_on_the_plans_and_step_times_that_the_command_writes(tmp_path):
    words = {"hardware": "h100", "target": "docs/examples/llama-8b", "batch": (1, 8), "context": 512, "max_nodes": 4}
    record = treeopt.whatif("data/traces/smollm2-eagle-t0.npz", **words)
    options = ("--hardware", "h100", "--target", "docs/examples/llama-8b", "--batch", "1,8", "--max-nodes", "4")
    folders = ("--plans", tmp_path / "plans", "--profiles", tmp_path / "profiles", "--json")
    printed = done("whatif", "--trace", "data/traces/smollm2-eagle-t0.npz", *options, *folders)
    assert json.loads(printed.stdout)["cells"] == json.loads(json.dumps(record["cells"]))
    for name, plan in record.plans().items():
        stored = treeopt.load_plan(tmp_path / "plans" / name)
        assert [entry.choice for entry in stored.entries] == [entry.choice for entry in plan.entries]
    for name, profile in record.profiles().items():
        assert treeopt.load_profile(tmp_path / "profiles" / name).batches == profile.batches
    assert sorted(record.plans()) == ["h100-sxm-512.json"]


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (
            lambda trace, profile, plan: treeopt.compare([trace, trace]),
            "a trace by name, .* wanted, got a value of type",
        ),
        (lambda trace, profile, plan: treeopt.compare(trace), "several traces are wanted, got one"),
        (lambda trace, profile, plan: treeopt.compare("a.npz"), "several traces are wanted, got one"),
        (lambda trace, profile, plan: treeopt.search(plan, profile, batch=1), "a trace, .* got a value of type Plan"),
        (lambda trace, profile, plan: treeopt.search(trace, trace, batch=1), "a profile, .* got a value of type Trace"),
        (
            lambda trace, profile, plan: treeopt.simulate(trace, profile, plan=trace),
            "plan must be a Plan or .*, got Trace",
        ),
        (lambda trace, profile, plan: treeopt.verdict(None, profile), "a trace, .* of type NoneType"),
        (lambda trace, profile, plan: treeopt.whatif(profile, target="8b", hardware="h100", batch=1), "a trace, "),
        (
            lambda trace, profile, plan: treeopt.replay_tree(trace, treeopt.Tree.chain(1)),
            "tree must be a Tree, got Trace",
        ),
        (lambda trace, profile, plan: treeopt.replay_tree("3", trace), "tree must be a Tree, got '3'"),
        (lambda trace, profile, plan: treeopt.load_plan(plan), "the path of a file is wanted, got .* Plan"),
        (lambda trace, profile, plan: treeopt.load_trace([trace]), "the path of a file is wanted, got .* list"),
        (lambda trace, profile, plan: treeopt.load_profile(profile), "the path of a file is wanted"),
        (lambda trace, profile, plan: treeopt.load_tree(3), "the path of a file is wanted"),
        (lambda trace, profile, plan: treeopt.load_record(None), "the path of a file is wanted"),
        (lambda trace, profile, plan: plan.save(None), "the path of a file is wanted"),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_is_wanted(call, wanted):
    trace = treeopt.load_trace("data/traces/medusa-t0.npz")
    profile = treeopt.load_profile("data/profiles/medusa-cpu.json")
    with pytest.raises(UsageError, match=wanted):
        call(trace, profile, Plan(()))


@pytest.mark.parametrize(
    ("device", "reason", "notes"),
    [
        ("cuda", "Triton is not installed", ["fused kernels are not used: Triton is not installed"]),
        ("cuda", "not all bfloat16", ["fused kernels are not used: not all bfloat16: give --dtype bfloat16"]),
        ("cuda", None, []),
        ("cpu", "they are for CUDA", []),
    ],
)
def test_a_note_says_on_cuda_why_kernels_are_not_used(device, reason, notes):
    target = SimpleNamespace(device=torch.device(device), dtype=torch.float16, fused_reason=reason)
    assert kernel_notes(target) == notes


@pytest.mark.parametrize(("graphs", "policies"), [(True, True), (True, False), (False, True)])
def test_a_profile_of_graphs_says_which_policies_it_leaves_out(monkeypatch, caplog, graphs, policies):
    runner = SimpleNamespace(graphs=graphs, target=None)
    monkeypatch.setattr(profile_steps, "open_runner", lambda *models, **settings: runner)
    monkeypatch.setattr(profile_steps, "load_tokens", Mock(side_effect=UsageError("no prompts")))
    with caplog.at_level("INFO", "treeopt"), pytest.raises(UsageError, match="no prompts"):
        profile_steps.profile("toy", "medusa:3", policies=policies)
    told = [message for message in caplog.messages if "no policy that asks the host" in message]
    assert len(told) == (graphs and policies)


@pytest.mark.parametrize(
    ("cuda", "given", "due"),
    [
        (False, {}, ("cpu", "float32")),
        (True, {}, ("cuda", "saved")),
        (True, {"random_weights": True}, ("cuda", "bfloat16")),
        (True, {"device": "cpu"}, ("cpu", "float32")),
        (True, {"dtype": "float16"}, ("cuda", "float16")),
        (False, {"dtype": "saved"}, ("cpu", "saved")),
        (False, {"device": "cuda:1"}, ("cuda:1", "saved")),
    ],
)
def test_the_machine_decides(monkeypatch, cuda, given, due):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    models = Models(target=Path("target"), **given).resolved()
    assert (models.device, models.dtype) == due
