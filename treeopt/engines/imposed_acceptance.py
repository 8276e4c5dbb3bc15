"""Imposed acceptance: acceptance rates of a chain along a trace, for an engine to simulate with any drafter.

Engines offer this for their own benchmarks: drafting and verification do their full work, and only the number of
accepted tokens is fixed beforehand. So the speed that a plan predicts can be measured with any drafter, on any texts.
"""

from collections.abc import Iterable

from treeopt.engines.export import Fit
from treeopt.plans.plan import Choice, PlanEntry
from treeopt.replay.static_tree import visit
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

DIGITS = 6  # decimal places of the rates


def kept_rates(tree: Tree, trace: Trace) -> list[float]:
    """Return how often a step of the tree's walk accepts at least 1, 2, ... drafted tokens of an endless text.

    The rates never rise. Each is a product of how often the next token is accepted where it is reached and the text
    continues; the engine itself cuts steps at the end of a text. This is exact if acceptance does not depend on the
    distance to the end.

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
    """Return notes on what to measure and what the plan predicts for it, if all batch sizes run parts of one chain."""
    length = round(float(trace.lengths.mean()))
    notes = [
        f"acceptance is imposed, so texts are meaningless: ignore end-of-text and generate {length} tokens "
        "per request, the trace's average, because the end of a request cuts its last step",
        "compare the time per output token after the first with that without speculation, at a constant number of "
        "running requests: the plan's speedup is that of steps, without prefill and draining",
    ]
    for entry, at in zip(entries, fits, strict=True):
        if at.tree is None:
            continue
        choice = _choice(entry, at.tree)
        committed = f"batch {at.batch}: uncut steps commit {1 + sum(rates[: at.depth]):.3f} tokens on average"
        if at.depth < len(rates):
            walked = 1 + sum(kept_rates(at.tree, trace))
            committed += f" ({walked:.3f} along the trace: rates are those of the chain of {len(rates)})"
        speedup = f"speedup {choice.speedup.value:.2f} [{choice.speedup.low:.2f}, {choice.speedup.high:.2f}]"
        notes.append(f"{committed}; the plan predicts tau {choice.tau.value:.2f} and {speedup}")
    return notes


def _choice(entry: PlanEntry, tree: Tree) -> Choice:
    return next(choice for choice in (entry.choice, *entry.compared) if choice.tree == tree)
