"""The data of the page's sliders: chains and best trees, replayed and priced by the library when the page is made."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from treeopt.errors import CostError, TraceError, counted
from treeopt.replay.static_tree import replay_tree, step_seconds
from treeopt.report.slider_model import Drafted, conditional_rates, embedded, finite
from treeopt.results.words import describe_models, device_words
from treeopt.searchers.static_trees.best_first import count_prefixes
from treeopt.statistics.clustered_estimate import ratio
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

if TYPE_CHECKING:
    from simulate.profiles.profile import Profile

SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 63)


def slider_data(trace: Trace, profile: "Profile", *, name: str) -> dict[str, Any] | None:
    """Return the data of the sliders, JSON values; None if the trace determines no acceptance or no tree has a price.

    Args:
        trace: ranks that determine acceptance.
        profile: step times.
        name: of the trace's file.
    """
    batches = sorted({times.batch for times in profile.batches})
    try:
        priced = [_drafted(shape, tree, trace, profile, batches) for shape, tree in _trees(trace)]
    except TraceError:
        return None
    drafted = [tree for tree in priced if tree is not None]
    if not any(tree.shape == "chain" for tree in drafted):
        return None
    plain = {batch: profile.plain_s(batch=batch) for batch in batches}
    models = describe_models(trace.meta)
    device = device_words(profile.meta) if "device" in profile.meta else "a device that is not recorded"
    about = (
        f"Acceptance: replayed over all {counted(trace.requests, 'request')} of {name} ({models}); the trees of each "
        f"size are chosen on the same requests, a little too favourably. Step times: {device}."
    )
    return {**embedded(drafted, plain), "about": about}


def _trees(trace: Trace) -> Iterator[tuple[str, Tree]]:
    """Yield chains of every length, then the best trees by size, that are no chains."""
    for length in range(1, trace.depth + 1):
        yield "chain", Tree.chain(length)
    frontier = count_prefixes(trace, nodes=max(SIZES), depth=trace.depth)
    seen = set()
    for nodes in SIZES:
        tree = frontier.tree(nodes, trace.depth)
        if not tree.is_chain and tree not in seen:
            seen.add(tree)
            yield "tree", tree


def _drafted(shape: str, tree: Tree, trace: Trace, profile: "Profile", batches: Sequence[int]) -> Drafted | None:
    """Return a tree with its replay and prices; None if it has no price at any batch size."""
    from treeopt.cost_model import StepShape

    counts = replay_tree(tree, trace)
    tau = finite(ratio(counts.committed, counts.steps))
    step_s, error = {}, {}
    for batch in batches:
        try:
            step_s[batch] = step_seconds(
                tree, profile, batch=batch, committed=counts.tau, drafted=counts.drafted_counts
            )
        except CostError:
            continue
        error[batch] = profile.error(StepShape.of(tree, batch=batch))
    if not step_s:
        return None
    name = f"a chain of {tree.nodes}" if shape == "chain" else f"the best tree of {tree.nodes} nodes"
    rates = conditional_rates(counts.accepted_counts.tolist())
    return Drafted(name, shape, tree.nodes, tree.depth, tau, rates, step_s, error)
