"""`treeopt simulate` as people meet it: its figures are those of the library, its refusals say why in one line."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from simulate.profiles.profile import BETWEEN_RUNS, BatchTimes, Profile, load_profile, save_profile
from simulate.runs.batch_record import run
from simulate.runs.run_costs import FREE
from simulate.runs.server_load import Load
from simulate.runs.timeline import speedup
from simulate.runs.tree_switching import Switching
from tests.helpers.command_line import done, refused
from tests.helpers.command_line import run as command
from tests.helpers.served_days import serve
from tests.helpers.strategies import drawn_trace, with_lengths
from treeopt.planning.baselines import STATIC
from treeopt.planning.search_pipeline import search
from treeopt.plans import Grown, load_plan, save_plan
from treeopt.traces.trace import Trace
from treeopt.traces.trace_files import load_trace, save_trace
from treeopt.tree import Tree

TREE = "[[0,0],[1]]"
PILED = "waiting times grow with the length of a day."


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("simulate")
    trace = drawn_trace([[0.6, 0.2], [0.3, 0.1]], [20, 30, 1, 25] * 6, depth=3, rng=np.random.default_rng(0))
    save_trace(trace, folder / "t.npz")
    batches = tuple(
        BatchTimes(b, 0.01 * b**0.3, ((1, 1e-3), (3, 2e-3)), ((2, 0.011 * b**0.3), (64, 0.05 * b))) for b in (1, 2, 4)
    )
    profile = Profile(batches, (8, 200), 0.02)
    save_profile(profile, folder / "p.json")
    save_plan(search(trace, profile, batch=(1, 4)), folder / "plan.json")
    return folder


def words(files, *more):
    return ["simulate", "--trace", files / "t.npz", "--profile", files / "p.json", "--verbose", *more]


def test_figures_are_the_librarys(files, tmp_path):
    out = tmp_path / "run.json"
    settings = ["--batch", "4", "--tree", TREE, "--pad", "--prefill-s-per-token", "0.0001", "--prompt-tokens", "50"]
    shown = done(*words(files, *settings, "--prefill-s", "0.02", "--json", "--output", out))
    record = json.loads(shown.stdout)
    assert record == json.loads(out.read_text("utf-8"))
    trace, profile = load_trace(files / "t.npz"), load_profile(files / "p.json")
    how = {"batch": 4, "prefill_s": 0.025, "prompt_tokens": 50, "pad": True}
    tree, plain = (run(trace, t, profile, **how) for t in (Tree.from_paths([(0, 0), (1,)]), None))
    assert [way["name"] for way in record["configurations"]] == ["tree of 3 nodes", "no speculation"]
    for way, due in zip(record["configurations"], (tree, plain), strict=True):
        assert way["tokens_s"]["value"] == due.rate().value
        assert way["total_s"] == due.total_s
        assert way["ttft_s"]["p95"]["value"] == due.percentiles("ttft", (0.95,))[0].value
        assert way["itl_s"]["p50"]["high"] == due.percentiles("itl", (0.5,))[0].high
    assert record["mode"] == "rows refilled at once"
    gain = speedup(tree, plain, relative_error=math.hypot(0.02, BETWEEN_RUNS))
    assert record["speedup"]["throughput"]["value"] == gain.throughput.value
    assert record["speedup"]["per_request"]["low"] == gain.per_request.low
    table = done(*words(files, *settings)).stdout
    assert re.match(r"Batch 4: a tree of 3 nodes, \d+\.\d \[.*\] tokens/s, \d\.\d\d \[.*\] times plain decoding", table)
    assert "Prefill 5 ms per prompt of 50 tokens; batch sizes between measured ones" in table


def test_a_plan_says_tree_and_batch(files):
    record = json.loads(done(*words(files, "--plan", files / "plan.json", "--batch", "4", "--pad", "--json")).stdout)
    plan = json.loads((files / "plan.json").read_text("utf-8"))
    chosen = plan["entries"][1]["choice"]
    assert record["tree"] == chosen["tree"]
    assert record["configurations"][0]["name"] == chosen["name"]
    assert record["batch"] == 4
    refused(command(*words(files, "--plan", files / "plan.json")), "the plan is for batch 1, 4: choose one", code=2)
    refused(command(*words(files, "--plan", files / "plan.json", "--batch", "2")), "is for batch 1, 4, not 2")


def with_policy(plan, *, held=True):
    """The plan with a policy in place of its choices, which stay as best static trees if held."""
    policy = Grown("eagle2", {"nodes": 3}, 3.0, 2.0)
    entries = []
    for entry in plan.entries:
        compared = (replace(entry.choice, name=STATIC), *entry.compared) if held else entry.compared
        choice = replace(entry.choice, name="eagle2", tree=None, grown=policy)
        entries.append(replace(entry, choice=choice, compared=compared))
    return replace(plan, entries=tuple(entries))


def test_a_plans_policy_gives_way_to_its_best_static_tree(files, tmp_path):
    plan = load_plan(files / "plan.json")
    save_plan(with_policy(plan), tmp_path / "policy.json")
    how = ("--batch", "4", "--pad", "--json")
    due = json.loads(done(*words(files, "--plan", files / "plan.json", *how)).stdout)
    found = done(*words(files, "--plan", tmp_path / "policy.json", *how))
    assert json.loads(found.stdout)["tree"] == due["tree"]
    assert json.loads(found.stdout)["configurations"][0] == due["configurations"][0] | {"name": STATIC}
    said = "the plan's choice 'eagle2' for batch 4 grows a tree at each step"
    note, *warnings, unbounded, few = found.stderr.splitlines()
    assert unbounded == "Warning: 24 requests do not bound p95, p99: intervals end at the largest."
    assert note == f"Note: {said}; runs are simulated with static trees, so its {STATIC} is used."
    assert warnings == [f"Warning: {warning}." for warning in plan.warnings]
    assert warnings  # of few requests
    assert few.startswith("Warning: 24 requests are few")
    server = ("--arrivals", "5", "--requests", "30", "--pad", "--json")
    save_plan(replace(plan, switches=()), tmp_path / "static.json")  # the others are the policies'
    due = json.loads(done(*words(files, "--plan", tmp_path / "static.json", *server)).stdout)
    found = done(*words(files, "--plan", tmp_path / "policy.json", *server))
    assert json.loads(found.stdout)["configurations"] == due["configurations"]
    assert found.stderr.count("Note: ") == 2
    save_plan(with_policy(plan, held=False), tmp_path / "policy.json")
    for more in (how, server):
        refused(command(*words(files, "--plan", tmp_path / "policy.json", *more)), f"the plan holds no {STATIC}")


def test_one_request_has_no_interval(files, tmp_path):
    save_trace(drawn_trace([[0.6]], [40], depth=3, rng=np.random.default_rng(0)), tmp_path / "one.npz")
    how = ("--trace", tmp_path / "one.npz", "--profile", files / "p.json", "--tree", "2", "--batch", "1")
    for more in ((), ("--arrivals", "5")):
        refused(command("simulate", *how, *more), "a run needs at least 2 requests", code=1)


# --- a server


def test_a_server_of_a_plan(files, tmp_path):
    out = tmp_path / "served.json"
    settings = ["--plan", files / "plan.json", "--arrivals", "5", "--requests", "60", "--replications", "3", "--pad"]
    limits = ["--ttft-s", "0.2", "--tpot-s", "0.02", "--switch-s", "0.001"]
    record = json.loads(done(*words(files, *settings, *limits, "--json", "--output", out)).stdout)
    assert record == json.loads(out.read_text("utf-8"))
    assert [way["name"] for way in record["configurations"]] == ["plan", "no speculation"]
    assert record["rows"] == 4
    plan = load_plan(files / "plan.json")
    trace, profile = load_trace(files / "t.npz"), load_profile(files / "p.json")
    switching = Switching.of(plan, switch_s=0.001)
    rng = np.random.default_rng(np.random.SeedSequence(0).spawn(3)[0])
    work = Load(requests=60).workload(trace, None, rng, rate=5)
    served = serve(trace, work, switching, profile, rows=4, pad=True)
    assert (
        record["configurations"][0]["first_day"]["running"]
        == served.running(np.linspace(0, float(work.arrived_s[-1]), 60)).tolist()
    )
    assert record["configurations"][0]["up"] == list(switching.up)
    asked = {"arrivals": 5, "requests": 60, "replications": 3, "warmup": 0.1, "switch_s": 0.001}
    assert asked.items() <= record["meta"]["settings"].items()
    figures = record["configurations"][0]["figures"]
    assert 0 < figures["goodput_s"]["value"] <= 5 * 1.5
    assert figures["ttft_s_p50"]["low"] <= figures["ttft_s_p50"]["value"]
    shown = done(*words(files, *settings, *limits)).stdout
    for text in (
        "goodput",
        "60 requests arrive at 5 per second (Poisson)",
        "Goodput: within TTFT 0.2 s and TPOT 0.02 s.",
        "Trees of the plan: ",
    ):
        assert text in shown


@pytest.mark.parametrize(("arrivals", "piles"), [("5", False), ("200", True)])
def test_requests_that_pile_up_are_told(files, arrivals, piles):
    found = done(*words(files, "--tree", "2", "--batch", "2", "--arrivals", arrivals, "--requests", "200", "--json"))
    free, *warnings, few = json.loads(found.stdout)["warnings"]
    assert free == FREE
    assert few.startswith("24 requests are few")
    ways = ("chain of 2", "no speculation")
    assert ["the queue grows by" in warning for warning in warnings] == [True] * 2 * piles
    for way, warning in zip(ways, warnings, strict=False):
        assert warning.startswith(f"requests pile up with {way} (")
        assert f"Warning: {warning}." in found.stderr


def test_a_servers_first_lines_name_no_limits_that_were_not_given_and_no_rate_of_a_queue_that_grows(files):
    def first(*more):
        return done(*words(files, "--tree", "2", "--batch", "2", "--requests", "200", *more)).stdout.splitlines()[0]

    assert " requests/s, 95 % of first tokens" in first("--arrivals", "5")
    assert " requests/s within the limits, 95 %" in first("--arrivals", "5", "--ttft-s", "9")
    assert first("--arrivals", "200").endswith("tokens/s, but requests pile up: " + PILED)
    assert first("--capacity", "0.9", "--tpot-s", "1e-9").endswith("a chain of 2 keeps the limits at no rate.")


def test_a_server_of_one_tree_fed_by_a_file(files, tmp_path):
    log = tmp_path / "log.jsonl"
    lines = [{"prompt_tokens": 20 + i, "tokens": 1 + i, "arrived_s": i / 8} for i in range(24)]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = words(files, "--tree", "2", "--batch", "2", "--requests-file", log, "--prefill-s-per-token", "0.001")
    record = json.loads(done(*settings, "--json").stdout)
    assert [way["name"] for way in record["configurations"]] == ["chain of 2", "no speculation"]
    assert record["conditions"][0].startswith("The file's requests arrive when the file says, texts drawn")
    done(*settings, "--arrivals", "3", "--requests", "30")
    plain = words(files, "--batch", "2", "--arrivals", "3", "--requests", "9")
    assert len(json.loads(done(*plain, "--json").stdout)["configurations"]) == 1
    lines[7]["prompt_tokens"] = 900
    log.write_text("\n" + "".join(json.dumps(line) + "\n" for line in lines))
    refused(command(*settings), f"(the longest is that of {log}: line 9): context", "profile measured, 8 to 200 tokens")


def test_a_server_that_cannot_be_is_refused(files, tmp_path):
    server = words(files, "--batch", "2", "--arrivals", "3")
    refused(command(*server, "--switch-s", "1"), "is for a --plan of several trees", code=2)
    refused(command(*words(files, "--arrivals", "3")), "give --batch, the rows of the server", code=2)
    refused(
        command(*words(files, "--batch", "1", "--ttft-s", "1")), "--ttft-s is for a server: give --arrivals", code=2
    )
    for option in ("--prefill-s", "--prefill-s-per-token", "--switch-s", "--arrivals"):
        refused(command(*server, option, "1e308"), option, "1e+308 is not in the range", code=2)
    refused(command(*server, "--arrivals", "1e-308"), "1e-308 is not in the range", code=2)
    refused(
        command(*server[:-2], "--batch", "5", "--arrivals", "999", "--no-pad"), "5 requests came to decode together"
    )
    log = tmp_path / "log.jsonl"
    log.write_text('{"prompt_tokens": 20, "tokens": 3}')
    fed = words(files, "--batch", "2", "--requests-file", log)
    refused(command(*fed), "its requests have no `arrived_s`: give --arrivals", code=2)
    refused(command(*fed, "--prompt-tokens", "9"), "give one of --prompt-tokens and --requests-file", code=2)


# --- refusals


def test_what_cannot_be_is_refused(files, tmp_path):
    refused(command(*words(files)), "give --batch, or a --plan", code=2)
    both = words(files, "--plan", files / "plan.json", "--tree", "2", "--batch", "1")
    refused(command(*both), "give one of --plan, --tree and --length", code=2)
    still = words(files, "--tree", "2", "--batch", "1", "--hysteresis", "2")
    refused(command(*still), "--hysteresis is for schedules", code=2)
    drained = words(files, "--batch", "4", "--tree", "2", "--json")
    assert "batch sizes between measured ones are interpolated" in done(*drained).stdout
    profile = load_profile(files / "p.json")
    save_profile(replace(profile, batches=(replace(profile.batches[-1], batch=2),)), tmp_path / "p.json")
    small = ("--profile", tmp_path / "p.json", "--tree", "2", "--batch")
    done(*words(files, *small, "2"))
    refused(command(*words(files, *small, "2", "--no-pad")), "steps of batch 1 have no cost", "padding takes")
    refused(command(*words(files, *small, "9")), "steps of batch 3, 4, 6", " have no cost")
    refused(command(*words(files, "--batch", "1", "--tree", "7")), "the tree has depth 7, the trace records depth 3")
    refused(command(*words(files, "--batch", "1", "--prefill-s-per-token", "1")), "needs --prompt-tokens", code=2)
    refused(
        command(*words(files, "--batch", "1", "--prompt-tokens", "500")),
        "(context 500 lies outside what the profile measured, 8 to 200 tokens: give a --context within",
    )
    trace = load_trace(files / "t.npz")
    drawn = Trace(trace.request, trace.position, trace.rank, trace.width, {"verification": "specinfer"})
    save_trace(drawn, tmp_path / "drawn.npz")
    settings = ["simulate", "--trace", tmp_path / "drawn.npz", "--profile", files / "p.json", "--batch", "1"]
    refused(command(*settings), "rule specinfer draws its candidates and needs the array `kept`")


def test_intervals_of_a_run_are_clustered_by_domain_and_its_answer_names_the_device(files, tmp_path):
    """Requests of a domain are alike here, and domains are not."""
    lengths, rng = [20] * 60, np.random.default_rng(0)
    shares = np.repeat(np.linspace(0.1, 0.9, 6), 200)
    rank = np.where(rng.random(1200) < shares, 0, -1)[:, None]
    domain = np.repeat(np.arange(6, dtype=np.int16), 10)
    apart = with_lengths(rank, lengths, width=1, domain=domain, domain_names=tuple("abcdef"))
    save_profile(replace(load_profile(files / "p.json"), meta={"device": "box 7"}), tmp_path / "p.json")
    found = {}
    for name, trace in {"apart": apart, "mixed": replace(apart, domain=np.tile(domain[::10], 10))}.items():
        save_trace(trace, tmp_path / f"{name}.npz")
        asked = ["simulate", "--trace", tmp_path / f"{name}.npz", "--profile", tmp_path / "p.json", "--tree", "1"]
        found[name] = json.loads(done(*asked, "--batch", "4", "--json").stdout)
        assert done(*asked, "--batch", "4").stdout.startswith("Batch 4 on box 7: a chain of 1, ")
        server = [*asked, "--batch", "4", "--requests", "20", "--replications", "2", "--tpot-s", "0.05"]
        assert "4 rows on box 7" in done(*server, "--arrivals", "9").stdout.splitlines()[0]
        assert "4 rows on box 7" in done(*server, "--capacity", "0.5").stdout.splitlines()[0]
    for of in (lambda r: r["configurations"][0]["tokens_s"], lambda r: r["speedup"]["throughput"]):
        wide, narrow = of(found["apart"]), of(found["mixed"])
        assert wide["value"] == narrow["value"]
        assert wide["high"] - wide["low"] > 1.3 * (narrow["high"] - narrow["low"])


def test_draft_lengths_of_a_batch_and_a_server(files):
    run = json.loads(done(*words(files, "--length", "fixed:2", "--batch", "4", "--json")).stdout)
    tree = json.loads(done(*words(files, "--tree", "2", "--batch", "4", "--json")).stdout)
    assert run["configurations"][0]["tau"] == tree["configurations"][0]["tau"]
    assert run["configurations"][0]["name"] == "length rule fixed:2"
    # Steps differ by what committed tokens cost, which `commit_s` does not say here, and by nothing else.
    assert run["configurations"][0]["total_s"] == pytest.approx(tree["configurations"][0]["total_s"], rel=1e-9)
    server = ("--length", "oracle", "--batch", "4", "--arrivals", "20", "--requests", "30", "--replications", "2")
    served = json.loads(done(*words(files, *server, "--json")).stdout)
    oracle, plain = (one["figures"]["running"]["value"] for one in served["configurations"])
    assert oracle < plain
    changing = ("--length", "schedule:2@1,0", *server[2:])
    slow, free = (done(*words(files, *changing, "--switch-s", seconds, "--json")).stdout for seconds in ("0.5", "0"))
    waits = [json.loads(text)["configurations"][0]["figures"]["e2e_s_p50"]["value"] for text in (slow, free)]
    assert waits[0] > waits[1] + 0.3  # a change takes half a second, and half of the requests see one


def test_the_verdict_names_the_simplest_of_the_fastest(files, tmp_path):
    asked = ("verdict", "--trace", files / "t.npz", "--profile", files / "p.json", "--batch", "1,4")
    out = tmp_path / "v.json"
    text = done(*asked, "--output", out).stdout
    record = json.loads(out.read_text())
    assert record["schema"] == "treeopt.verdict/1"
    assert [load["requests"] for load in record["loads"]] == [1, 4]
    assert "running requests: " in text
    assert "At 4 it is " in " ".join(text.split())
    assert "the trace has no confidences" in " ".join(text.split())
    refused(command(*asked, "--running", files / "t.npz"), "give one of --batch and --running", code=2)
