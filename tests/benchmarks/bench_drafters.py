"""All shipped drafters side by side: acceptance, tau, draft cost, predicted and measured speedup.

Run as `python -m tests.benchmarks.bench_drafters` when models, traces and profiles are there (`make drafters`). For
each drafter: its trace is replayed, a tree is chosen for each batch size from half of the trace's requests, predicted
on the rest with its profile, and the live loop decodes prompts that no trace holds. Writes
the table of `PAGE`, and the figures with `--output`; asserts nothing.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from data.make.make_traces import DRAFTERS, place_of, target_of
from simulate.profiles.profile import load_profile
from simulate.validation.predictions import draft_s
from tests.benchmarks.engine_tables import written
from tests.helpers.engine_setups import ROOT
from treeopt.plans import Plan
from treeopt.replay.static_tree import replay_tree
from treeopt.searchers.renewal_local_search import improve
from treeopt.statistics import paired_difference, ratio
from treeopt.storage.provenance import this_run
from treeopt.storage.user_files import write_text
from treeopt.traces.trace import Trace
from treeopt.traces.trace_files import load_trace
from treeopt.tree import Tree

# What the papers claim: the first accepts more than the second; by tau of a chain, or at depth 3 and below.
CLAIMS = (
    ("hydra", "medusa", "tau"),
    ("hydra-plus", "hydra", "tau"),
    ("eagle", "medusa", "tau"),
    ("hass", "eagle", "later"),
    ("coral", "eagle", "later"),
    ("dflash", "eagle3", "tau"),
)
CHAIN = 5
LATER = 3
SIZES = (25, 63)
BATCHES = (1, 4)
THREADS = 1  # as `make profile` has
PAGE = ROOT / "docs" / "results" / "drafters.md"


def top_1(trace: Trace, depth: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Of each request: positions whose token the drafter put first at `depth`, and positions that have one."""
    rank = trace.rank[:, depth - 1]
    hits = np.bincount(trace.request_index, rank == 0, minlength=trace.requests)
    return hits, np.bincount(trace.request_index, rank != -2, minlength=trace.requests).astype(float)


def later(trace: Trace) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The same of all depths from `LATER` to the chain's end."""
    parts = [top_1(trace, depth) for depth in range(LATER, min(CHAIN, trace.depth) + 1)]
    return sum(hits for hits, _ in parts), sum(all_ for _, all_ in parts)  # type: ignore[return-value]


def chain_of(trace: Trace) -> Tree:
    """A chain of five, or of all the levels that there are."""
    return Tree.chain(min(CHAIN, trace.depth))


def acceptance(trace: Trace) -> dict[str, Any]:
    """Top-1 acceptance by depth and tau of a chain over all requests; of the best trees on requests held out."""
    counts = replay_tree(chain_of(trace), trace)
    fit, held = trace.split(share=0.5, rng=np.random.default_rng(0))
    found: dict[str, Any] = {
        "requests": trace.requests,
        "anchors": trace.anchors,
        "top_1": [asdict(ratio(*top_1(trace, depth))) for depth in range(1, min(CHAIN, trace.depth) + 1)],
        "tau_chain": asdict(ratio(counts.committed, counts.steps)),
    }
    for size in SIZES:
        grown = (improve(fit, nodes=size, depth=d) for d in range(1, fit.depth + 1))
        best = max(grown, key=lambda tree: replay_tree(tree, fit).tau)
        judged = replay_tree(best, held)
        found[f"tau_tree_{size}"] = asdict(ratio(judged.committed, judged.steps)) | {"depth": best.depth}
    return found


def claims(traces: Mapping[str, Trace]) -> list[dict[str, Any]]:
    """Each claim's difference with its interval, paired by request: held, not held, or not decided."""
    found = []
    for first, second, what in CLAIMS:
        if first not in traces or second not in traces:
            continue
        pair = [traces[first], traces[second]]
        if what == "tau":
            depth = min(CHAIN, *(t.depth for t in pair))  # the same chain for both
            what = f"tau of a chain of {depth}"
            counts = [replay_tree(Tree.chain(depth), t) for t in pair]
            difference = paired_difference(*((c.committed, c.steps) for c in counts))
        else:
            what = f"top-1 at depths {LATER} to {CHAIN}"
            difference = paired_difference(*(later(t) for t in pair))
        verdict = "held" if difference.low > 0 else "not held" if difference.high < 0 else "not decided"
        found.append({"first": first, "second": second, "measure": what, **asdict(difference), "verdict": verdict})
    return found


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    data: Path
    profiles: Path
    blocks: int = 4
    requests: int = 48
    skip: int = 1000
    new_tokens: int = 32


def measured(name: str, trace: Trace, settings: Settings) -> list[dict[str, Any]]:
    """The chosen tree of each batch size: predicted from half of the trace and the profile, and as the loop ran it."""
    from executor.checkpoints import load_drafter
    from executor.prompts.prompt_files import read_prompts
    from executor.runners.loop_runner import LoopRunner
    from executor.runners.runner import Requests
    from executor.target.load_hf_model import load_target, prepare
    from executor.target.tokenizer import load_tokenizer
    from executor.validation import LiveComparison
    from treeopt.planning.search_pipeline import search

    profile = load_profile(settings.profiles / f"{name}-cpu.json")
    prepare("cpu", threads=THREADS, tensor_parallel=False)
    folder = target_of(settings.data, name)
    target = load_target(folder, packed=True)
    drafter = load_drafter(place_of(settings.data, name), target, packed=True)
    tokenizer = load_tokenizer(folder, vocabulary=target.vocabulary)
    drawn = read_prompts(settings.data / "prompts" / "stdlib.jsonl")[settings.skip :][: settings.requests]
    tokens = tokenizer([p.text for p in drawn])["input_ids"]
    plan = search(trace, profile, batch=BATCHES)
    chosen = Plan(tuple(replace(entry, compared=()) for entry in plan.entries), plan.meta)
    speculative = Plan(tuple(e for e in chosen.entries if e.choice.tree is not None), plan.meta)
    runner, asked = LoopRunner(target, drafter), Requests(tokens, settings.new_tokens, stop=[0])
    measured = LiveComparison(runner, speculative, asked, blocks=settings.blocks)
    live = measured.run() if speculative.entries else []
    found = []
    for entry in chosen.entries:
        tree = entry.choice.tree
        cell: dict[str, Any] = {
            "batch": entry.batch,
            "nodes": tree.nodes if tree else 0,
            "depth": tree.depth if tree else 0,
            "draft_s": draft_s(tree, profile, entry.batch) if tree else 0.0,
            "plain_s": profile.plain_s(batch=entry.batch),
        }
        ran = next((c for c in live if c.batch == entry.batch), None)
        if ran is not None:
            cell["predicted"], cell["predicted_tau"] = asdict(ran.predicted.speedup), asdict(ran.predicted.tau)
            cell["measured"], cell["measured_tau"] = asdict(ran.measured.speedup), asdict(ran.measured.tau)
            cell["error"], cell["covered"] = ran.error, ran.covered
        found.append(cell)
    return found


def show(value: Mapping[str, float], digits: int = 2) -> str:
    """A value and its interval."""
    return f"{value['value']:.{digits}f} [{value['low']:.{digits}f}, {value['high']:.{digits}f}]"


def table(rows: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """The figures of all drafters, a row each, as docs/results/drafters.md has them."""
    found = []
    for name, row in rows.items():
        cells = [name, " ".join(f"{d['value']:.2f}".lstrip("0") for d in row["top_1"]), show(row["tau_chain"])]
        cells += [show(row[f"tau_tree_{size}"]) for size in SIZES]
        for cell in row.get("batches", [{}] * len(BATCHES)):
            if "measured" not in cell:
                cells.append("speculation does not pay" if cell else "not measured")
                continue
            cells.append(
                f"{cell['nodes']} nodes, depth {cell['depth']}; {1e3 * cell['draft_s']:.1f}; "
                f"{show(cell['predicted'])} / {show(cell['measured'])}"
            )
        found.append(cells)
    return found


def agreement(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """How far predicted speedups are from measured ones, in a sentence."""
    cells = [cell for row in rows.values() for cell in row.get("batches", []) if "covered" in cell]
    if not cells:
        return "No speedup was measured."
    errors = [abs(cell["error"]) for cell in cells]
    return (
        f"{len(cells)} speedups are predicted {np.mean(errors):.1%} off in the mean and {max(errors):.1%} at most; "
        f"{sum(cell['covered'] for cell in cells)} intervals hold."
    )


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="All shipped drafters side by side.")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--profiles", type=Path, default=Path("data/profiles"), help="step times, NAME-cpu.json")
    parser.add_argument("--only", nargs="+", choices=DRAFTERS, default=list(DRAFTERS))
    parser.add_argument("--replay-only", action="store_true", help="replay the traces, measure no times")
    parser.add_argument(
        "--output", type=Path, help="write the figures here (.json); those there of other drafters are kept"
    )
    asked = parser.parse_args(words)
    settings = Settings(asked.data, asked.profiles)
    traces = {n: load_trace(p) for n in DRAFTERS if (p := asked.data / "traces" / f"{n}-t0.npz").is_file()}
    rows: dict[str, dict[str, Any]] = {}
    if asked.output and asked.output.is_file():
        rows = json.loads(asked.output.read_text("utf-8"))["drafters"]
    for name in asked.only:
        rows[name] = acceptance(traces[name])
        if not asked.replay_only:
            rows[name]["batches"] = measured(name, traces[name], settings)
        rows[name]["provenance"] = this_run()
        print(name, json.dumps(rows[name]), flush=True)
        rows = {n: rows[n] for n in DRAFTERS if n in rows}
        claimed = claims(traces)
        if asked.output:
            record = {"schema": "treeopt.drafters/1", "drafters": rows, "claims": claimed, "provenance": this_run()}
            write_text(asked.output, json.dumps(record, indent=1) + "\n")
    PAGE.write_text(written(PAGE.read_text("utf-8"), [table(rows)]), "utf-8")
    if not asked.replay_only:
        print(agreement(rows))
    for claim in claimed:
        print(f"{claim['first']} over {claim['second']}, {claim['measure']}: {show(claim, 3)}: {claim['verdict']}")


if __name__ == "__main__":
    main()
