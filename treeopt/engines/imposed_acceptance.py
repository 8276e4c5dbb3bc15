"""Acceptance that an engine is told, whatever its drafter proposes: what the steps of a chain keep along a trace.

Engines have this for their own benchmarks: drafting and verification do their work, only what is kept is decided
beforehand. So the speed that a plan predicts can be measured on them whatever their drafter has learnt, on any texts.
"""

from collections.abc import Iterable

from treeopt.engines.export import Fit
from treeopt.plans.plan import Choice, PlanEntry
from treeopt.replay.static_tree import visit
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

DIGITS = 6


def kept_rates(tree: Tree, trace: Trace) -> list[float]:
    """How often a step of the tree's walk keeps 1, 2, ... drafted tokens or more, texts never ending; never rising.

    Products of how often the next token is kept where it is reached and the text goes on: the engine cuts at the end of
    a text by itself. That is exact where acceptance does not depend on how near the end is.

    Raises:
        TraceError: the trace does not cover the tree.
    """
    walk = visit(tree, trace)
    left = trace.lengths[walk.request] - trace.position[walk.anchors]
    rates = [1.0]
    for depth in range(1, tree.depth + 1):
        reached = (walk.accepted >= depth - 1) & (left >= depth)
        rates.append(rates[-1] * float((walk.accepted[reached] >= depth).mean()) if reached.any() else 0.0)
    return [round(rate, DIGITS) for rate in rates[1:]]


def imposed_notes(entries: Iterable[PlanEntry], fits: Iterable[Fit], trace: Trace, rates: list[float]) -> list[str]:
    """What to measure, and what the plan predicts of it, where all batch sizes keep a share of the same chain's."""
    length = round(float(trace.lengths.mean()))
    notes = [
        f"what steps keep is imposed: texts mean nothing, so let requests ignore ends of text and ask for {length} "
        "tokens, as many as the trace's have in the mean: the end of a request cuts its last step",
        "compare the time per output token after the first, as many requests being decoded throughout, with that "
        "without speculation: the plan's speedup is of steps, prompts and draining left out",
    ]
    for entry, at in zip(entries, fits, strict=True):
        if at.tree is None:
            continue
        due = _choice(entry, at.tree)
        told = f"batch {at.batch}: uncut steps commit {1 + sum(rates[: at.depth]):.3f} tokens in the mean"
        if at.depth < len(rates):
            own = 1 + sum(kept_rates(at.tree, trace))
            told += f" ({own:.3f} along the trace: rates are those of the chain of {len(rates)})"
        speedup = f"speedup {due.speedup.value:.2f} [{due.speedup.low:.2f}, {due.speedup.high:.2f}]"
        notes.append(f"{told}; the plan predicts tau {due.tau.value:.2f} and {speedup}")
    return notes


def _choice(entry: PlanEntry, tree: Tree) -> Choice:
    return next(choice for choice in (entry.choice, *entry.compared) if choice.tree == tree)
