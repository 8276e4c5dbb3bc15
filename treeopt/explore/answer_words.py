"""The answer in sentences and table rows; numbers are formatted as the commands print them."""

from treeopt.explore.answers import Answer
from treeopt.plans.plan import Choice, PlanEntry
from treeopt.storage.provenance import look
from treeopt.tables.terminal_text import describe_measurement, describe_models, describe_rule, interval, percent, shown

HEAD = ("configuration", "nodes", "depth", "tau", "step, ms", "tokens/s", "speedup", "behind, %")


def sentence(entry: PlanEntry) -> str:
    """Return the answer for a batch size.

    >>> from treeopt.plans.plan import Proof
    >>> from treeopt.statistics.clustered_estimate import Estimate
    >>> from treeopt.tree import Tree
    >>> one = Estimate(1.0, 1.0, 1.0)
    >>> chosen = Choice("chosen tree", Tree.chain(3), Estimate(2.0, 1.9, 2.1), 0.01, Estimate(1.42, 1.36, 1.48))
    >>> sentence(PlanEntry(4, chosen, None, (), {}, Proof("tokens", False, "")))
    'Batch 4: a chain of 3, 1.42 [1.36, 1.48] times as fast as plain decoding.'
    >>> sentence(PlanEntry(8, Choice("no speculation", None, one, 0.01, one), None, (), {}, Proof("tokens", False, "")))
    'Batch 8: do not speculate, nothing tried is faster than plain decoding.'
    """
    if entry.choice.plain:
        return f"Batch {entry.batch}: do not speculate, nothing tried is faster than plain decoding."
    return f"Batch {entry.batch}: {drafted(entry.choice)}, {interval(entry.choice.speedup)} times as fast as plain decoding."


def drafted(choice: Choice) -> str:
    """Return what a configuration drafts.

    >>> from treeopt.statistics.clustered_estimate import Estimate
    >>> from treeopt.tree import Tree
    >>> one = Estimate(1.0, 1.0, 1.0)
    >>> drafted(Choice("chosen tree", Tree.from_paths([(0,), (1,), (0, 0)]), one, 0.01, one))
    'a tree of 3 nodes, 2 deep'
    """
    if choice.tree is None:
        return choice.name
    if choice.tree == type(choice.tree).chain(choice.tree.depth):
        return f"a chain of {choice.tree.depth}"
    nodes = "1 node" if choice.tree.nodes == 1 else f"{choice.tree.nodes} nodes"
    return f"a tree of {nodes}, {choice.tree.depth} deep"


def rows(entry: PlanEntry) -> list[tuple[str, ...]]:
    """Return a row of texts for each configuration, under `HEAD`; the choice comes first."""
    return [_row(choice, entry.batch) for choice in (entry.choice, *entry.compared)]


def conditions(answer: Answer) -> list[str]:
    """Return the conditions of the numbers, one sentence each."""
    meta, asked = answer.plan.meta, look(answer.plan.meta, "search")
    judged, chosen = shown(look(asked, "requests_judged_on")), shown(look(asked, "requests_chosen_on"))
    return [
        f"Trees are chosen on {chosen} requests and predicted by replay on {judged} others.",
        "Intervals are 95 %, clustered by request; those of speedups include the error of step times.",
        f"Trace: {describe_models(look(meta, 'trace'))}; {describe_rule(look(meta, 'trace'))}.",
        f"Step times: {describe_measurement(look(meta, 'cost'))}.",
    ]


def preferred(answer: Answer) -> str | None:
    """Return the batch size that the objective prefers, in words; None if it prefers none."""
    entries = {entry.batch: entry for entry in answer.plan.entries}
    best = answer.plan.best
    if best is None or len(entries) == 1:
        return None
    tpot_s = entries[best].tpot_s
    return f"Batch {best} is preferred: {best / tpot_s:.0f} tokens/s, {tpot_s * 1e3:.2f} ms per token and sequence."


def cautions(answer: Answer) -> list[str]:
    """Return the warnings of an answer as sentences."""
    memory = [f"Batch {batch} does not fit the memory of the device." for batch in answer.too_large]
    return [*memory, *(f"{line[:1].upper()}{line[1:]}." for line in answer.warnings)]


def _row(choice: Choice, batch: int) -> tuple[str, ...]:
    return (
        choice.name,
        f"{choice.nodes:.3g}",
        f"{choice.depth:.3g}",
        "1" if choice.plain else interval(choice.tau),
        f"{choice.step_s * 1e3:.2f}",
        f"{choice.tokens_s(batch):.0f}",
        "1" if choice.plain else interval(choice.speedup),
        "" if choice.behind is None else percent(choice.behind),
    )
