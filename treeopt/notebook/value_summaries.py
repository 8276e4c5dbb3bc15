"""Trees, traces, plans and profiles as summaries for notebooks."""

from typing import TYPE_CHECKING

from treeopt.errors import counted
from treeopt.notebook.html_summary import Summary
from treeopt.plans.plan import Choice, Plan
from treeopt.results.words import describe_measurement, describe_models, describe_rule, interval, shown
from treeopt.storage.provenance import look
from treeopt.traces.trace import PAST_END, Trace
from treeopt.tree import Tree

if TYPE_CHECKING:
    from simulate.profiles.profile import Profile
    from simulate.profiles.step_tables import BatchTimes

PATHS = 12  # most rank paths of a tree
TOPS = (1, 2, 4, 8)


def tree_summary(tree: Tree) -> Summary:
    """Return size, level widths and rank paths of a tree."""
    paths = ", ".join(str(list(path)) for path in tree.paths[:PATHS])
    more = "" if tree.nodes <= PATHS else f" and {tree.nodes - PATHS} more"
    facts = {"levels": "/".join(map(str, tree.level_widths)), "rank paths": f"{paths}{more}"} if tree.nodes else {}
    return Summary(f"Tree {tree.id}: {counted(tree.nodes, 'node')}, depth {tree.depth}", facts)


def trace_summary(trace: Trace) -> Summary:
    """Return size and origin of a trace, and how often the true token is among the drafter's best."""
    facts = {"models": describe_models(trace.meta), "verification": describe_rule(trace.meta)}
    if trace.domain_names:
        facts["domains"] = str(len(trace.domain_names))
    rows = []
    for depth in range(trace.depth):
        rank = trace.rank[:, depth]
        rank = rank[rank != PAST_END]
        shares = [float(((rank >= 0) & (rank < top)).mean()) if len(rank) else None for top in TOPS]
        rows.append([str(depth + 1), *("" if share is None else f"{share:.3f}" for share in shares)])
    return Summary(
        f"Trace: {counted(trace.requests, 'request')}, {counted(trace.anchors, 'anchor')}, depth {trace.depth}",
        facts,
        ["depth", *(f"top {top}" for top in TOPS)],
        rows,
        ["True token among the drafter's best candidates, as a share of all positions. tau needs a replay."],
    )


def plan_summary(plan: Plan) -> Summary:
    """Return the choice of each batch size with its prediction, the warnings and the conditions."""
    rows = [
        [
            str(entry.batch),
            _configuration(entry.choice),
            f"{entry.choice.nodes:.3g}",
            f"{entry.choice.depth:.3g}",
            "1" if entry.choice.plain else interval(entry.choice.tau),
            f"{1e3 * entry.choice.step_s:.2f}",
            f"{entry.choice.tokens_s(entry.batch):.0f}",
            "1" if entry.choice.plain else interval(entry.choice.speedup),
        ]
        for entry in plan.entries
    ]
    conditions = (
        f"Replayed on {shown(look(plan.meta, 'search', 'requests_judged_on'))} requests held out. Intervals: 95 %. "
        f"Trace: {describe_models(look(plan.meta, 'trace'))}. "
        f"Step times: {describe_measurement(look(plan.meta, 'cost'))}."
    )
    head = ["batch", "configuration", "nodes", "depth", "tau", "step ms", "tokens/s", "speedup"]
    warnings = [f"Warning: {warning}." for warning in plan.warnings]
    sizes = ", ".join(str(entry.batch) for entry in plan.entries)
    return Summary(f"Plan for batch {sizes}", {}, head, rows, [*warnings, conditions])


def _configuration(choice: Choice) -> str:
    if choice.plain:
        return "do not speculate"
    if choice.grown is not None:
        return f"dynamic: {choice.grown.kind}"
    assert choice.tree is not None
    return f"chain of {choice.tree.nodes}" if choice.tree.is_chain else f"tree {choice.tree.id}"


def profile_summary(profile: "Profile") -> Summary:
    """Return the measured range of step times, by batch size and context."""
    facts = {
        "measured": describe_measurement(profile.meta),
        "error of a step over a plain step": f"{profile.relative_error:.1%} (95 %)",
        "prefill": "not measured" if profile.prefill is None else "measured",
    }
    head = ["batch", "context", "plain step ms", "levels", "drafting ms", "verified tokens", "rest of the step ms"]
    sizes = ", ".join(dict.fromkeys(str(times.batch) for times in profile.batches))
    return Summary(f"Profile for batch {sizes}", facts, head, [_times(times) for times in profile.batches])


def _times(times: "BatchTimes") -> list[str]:
    (shallow, least), (deep, most) = times.draft[0], times.draft[-1]
    (few, short), (many, long) = times.rest[0], times.rest[-1]
    return [
        str(times.batch),
        f"{times.context:.0f}" if times.context else "mixed",
        f"{1e3 * times.plain_s:.2f}",
        f"{shallow} to {deep}",
        f"{1e3 * least:.2f} to {1e3 * most:.2f}",
        f"{few} to {many}",
        f"{1e3 * short:.2f} to {1e3 * long:.2f}",
    ]
