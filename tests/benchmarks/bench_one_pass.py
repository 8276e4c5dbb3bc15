"""The shipped DFlash: length of its block against the width verified, and its chain beside its product tree.

Run as `python -m tests.benchmarks.bench_one_pass` (`make drafters`). All positions of a block come from one forward,
so that verifying fewer than were drafted is a choice of its own. The product tree of a budget has the nodes whose
product of the positions' probabilities is largest. Writes the last two tables of docs/results/drafters.md, and with
`--output` the figures. Speedups are predicted from the profile of each block (`make profile`); without one only tau is.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from data.make.make_traces import target_of
from simulate.profiles.profile import load_profile
from tests.benchmarks.bench_drafters import BATCHES, PAGE, show
from tests.benchmarks.engine_tables import written
from tests.helpers.policy_replay import replay_policy
from treeopt.policies import DynamicTree
from treeopt.policies.opt_tree import OptTree
from treeopt.replay.static_tree import replay_tree, step_seconds
from treeopt.replay.walk import StepCounts
from treeopt.statistics import ratio
from treeopt.storage.provenance import this_run
from treeopt.storage.user_files import write_text
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

SLOTS = (4, 8, 16)  # positions of a block, the last token's included; the drafter learnt 8
LEARNT = 8
BUDGETS = (3, 7, 15, 31, 63)
BEAM, WIDTH = 16, 16
NEW_TOKENS = 32


def recorded(data: Path, *, requests: int) -> Iterator[tuple[int, Trace]]:
    """Yield the traces of all lengths of the block, on one text; the learnt one holds candidates."""
    from executor.checkpoints import load_drafter
    from executor.prompts.prompt_files import encode, read_prompts
    from executor.recording.collect_trace import collect
    from executor.target.load_hf_model import load_target
    from executor.target.tokenizer import load_tokenizer

    folder = target_of(data, "dflash")
    target = load_target(folder, packed=True)
    prompts = read_prompts(data / "prompts" / "stdlib.jsonl")[:requests]
    tokens = encode(load_tokenizer(folder, vocabulary=target.vocabulary), prompts)
    written: dict[int, list[list[int]]] = {}
    for slots in SLOTS:
        drafter = load_drafter(f"dflash:{slots}:{data / 'models' / 'stdlib-dflash'}", target, packed=True)
        shape: dict[str, Any] = {"depth": slots - 1, "width": 1}
        if slots == LEARNT:
            shape["candidates"] = DynamicTree(nodes=1, depth=slots - 1, beam=BEAM, width=WIDTH)
        settings = {"new_tokens": NEW_TOKENS, "stop": [0], "written": written}
        yield slots, collect(target, drafter, prompts, tokens, **settings, **shape)


def tau(counts: StepCounts) -> dict[str, Any]:
    """Tokens per step with their interval."""
    return asdict(ratio(counts.committed, counts.steps))


def blocks(data: Path, slots: int, trace: Trace) -> list[dict[str, Any]]:
    """Each width verified of a block: tau, and the speedup by batch size that the block's profile predicts."""
    name = "dflash" if slots == LEARNT else f"dflash-{slots}"
    path = data / "profiles" / f"{name}-cpu.json"
    profile = load_profile(path) if path.is_file() else None
    found = []
    for width in range(1, slots):
        chain = Tree.chain(width)
        counts = replay_tree(chain, trace)
        row: dict[str, Any] = {"slots": slots, "verified": width, "tau": tau(counts), "speedup": {}}
        for batch in BATCHES if profile else ():
            step_s = step_seconds(chain, profile, batch=batch, committed=counts.tau, drafted=counts.drafted_counts)
            row["speedup"][str(batch)] = counts.tau * profile.plain_s(batch=batch) / step_s
        found.append(row)
    return found


def trees(trace: Trace) -> list[dict[str, Any]]:
    """Each budget: tau of the longest chain that it allows, and of the product tree."""
    return [
        {
            "nodes": nodes,
            "chain": tau(replay_tree(Tree.chain(min(nodes, trace.depth)), trace)),
            "tree": tau(replay_policy(OptTree(nodes, trace.depth, 0.0, min(nodes, BEAM), WIDTH), trace)),
        }
        for nodes in BUDGETS
    ]


def tables(record: Mapping[str, Any]) -> list[list[list[str]]]:
    """The rows of both tables."""
    by_size = {(row["slots"], row["verified"]): row for row in record["blocks"]}
    widths = [[str(width), *(_cell(by_size.get((slots, width))) for slots in SLOTS)] for width in range(1, max(SLOTS))]
    return [widths, [[str(row["nodes"]), show(row["chain"]), show(row["tree"])] for row in record["trees"]]]


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    speedups = [", ".join(f"{speedup:.2f}" for speedup in row["speedup"].values())] if row["speedup"] else []
    return "; ".join([f"{row['tau']['value']:.2f}", *speedups])


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=Path("data"), show_default=True)
@click.option("--requests", default=200, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="Write the figures here (.json).")
def main(data: Path, requests: int, output: Path | None) -> None:
    """Replay the blocks and trees of the shipped DFlash."""
    record: dict[str, Any] = {"schema": "treeopt.one-pass/1", "requests": requests, "blocks": [], "trees": []}
    for slots, trace in recorded(data, requests=requests):
        record["blocks"] += blocks(data, slots, trace)
        if trace.candidates is not None:
            record["trees"] = trees(trace)
    PAGE.write_text(written(PAGE.read_text("utf-8"), [None, None, *tables(record)]), "utf-8")
    if output is not None:
        write_text(output, json.dumps(record | {"provenance": this_run()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
