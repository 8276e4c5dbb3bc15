"""The chart of tau against tree size: the best trees of every size, averaged and replayed, and named trees."""

from collections.abc import Mapping, Sequence

from treeopt.charts.chart import Axis, Chart, Layer, columns, floats
from treeopt.errors import TraceError
from treeopt.replay.static_tree import replay_tree
from treeopt.searchers.static_trees.best_first import count_prefixes
from treeopt.statistics.clustered_estimate import Estimate, ratio
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

SIZES = (1, 2, 4, 8, 16, 32, 63)
REPLAYED = "replayed along the walk"
AVERAGED = "averaged over positions"
CHAINS = "chains, replayed"
NAMED = "named trees, replayed"
SERIES = 3  # named trees that have a series each
CHOSEN = "chosen in the plan, replayed"


def tau_by_nodes(
    trace: Trace,
    *,
    sizes: Sequence[int] = SIZES,
    named: Mapping[str, Tree] | None = None,
    chosen: Mapping[str, Tree] | None = None,
) -> Chart:
    """Return tau of the best trees of each size, of chains, of named trees and of those that plans chose.

    Args:
        trace: ranks that determine acceptance.
        sizes: nodes of the best trees.
        named: name -> tree, such as published ones; those that the trace does not cover are left out.
        chosen: name -> tree of plans.

    Raises:
        TraceError: its rule draws candidates or accepts several siblings.
    """
    frontier = count_prefixes(trace, nodes=max(sizes), depth=trace.depth)
    averaged = frontier.tokens(trace.depth)
    reached = [size for size in sizes if size < len(averaged)]
    best = [tau_of(frontier.tree(size, trace.depth), trace) for size in reached]
    chains = range(1, trace.depth + 1)
    layers = [
        Layer("line", floats(reached), floats([averaged[size] for size in reached]), AVERAGED, dashed=True, muted=True),
        *_line(REPLAYED, reached, best),
        *_line(CHAINS, list(chains), [tau_of(Tree.chain(depth), trace) for depth in chains]),
        *_named(trace, named or {}),
        *_marks(CHOSEN, _points(trace, chosen or {})),
    ]
    largest = max([*reached, *(x for layer in layers for x in layer.x)])
    ticks = tuple(float(2**power) for power in range(int(largest).bit_length()))
    return Chart(
        "Tokens per step by tree size",
        Axis("nodes", "log", ticks, limits=(0.9, largest * 1.15)),
        Axis("tau, tokens per step"),
        tuple(layer for layer in layers if len(layer)),
        (
            "Bars: 95 % intervals, clustered by request. Trees: the most frequent rank paths of the same requests.",
            "Averaging counts positions that a decoder rarely visits: it over-predicts tau.",
        ),
        _in_words(reached, best),
    )


def _in_words(nodes: Sequence[int], best: Sequence[Estimate]) -> str:
    if not nodes:
        return "No drafted token is ever accepted: tau is 1 for every tree."
    ends = [f"{tau.value:.2f} with {count} nodes" for count, tau in ((nodes[0], best[0]), (nodes[-1], best[-1]))]
    return f"tau of the best trees: {' to '.join(dict.fromkeys(ends))}."


def tau_of(tree: Tree, trace: Trace) -> Estimate:
    """Return the replayed tau of a tree, with its interval.

    Raises:
        TraceError: the trace does not cover the tree.
    """
    counts = replay_tree(tree, trace)
    return ratio(counts.committed, counts.steps)


def _line(series: str, nodes: Sequence[int], values: Sequence[Estimate]) -> tuple[Layer, Layer]:
    x, (value, low, high) = floats(nodes), columns(values)
    return Layer("line", x, value, series), Layer("intervals", x, value, series, low, high)


Points = Sequence[tuple[str, int, Estimate]]  # name, nodes and tau of trees


def _named(trace: Trace, trees: Mapping[str, Tree]) -> tuple[Layer, ...]:
    """Return named trees: few have a series each, so that no label stands on another; more are labelled points."""
    points = _points(trace, trees)
    if len(points) <= SERIES:
        return tuple(layer for point in points for layer in _marks(f"{point[0]}, replayed", [point]))
    names = tuple(name for name, _, _ in points)
    (marks,) = _marks(NAMED, points)
    return marks, Layer("labels", marks.x, marks.y, text=names)


def _points(trace: Trace, trees: Mapping[str, Tree]) -> Points:
    points = []
    for name, tree in trees.items():
        try:
            points.append((name, tree.nodes, tau_of(tree, trace)))
        except TraceError:
            continue
    return points


def _marks(series: str, points: Points) -> tuple[Layer, ...]:
    if not points:
        return ()
    names, nodes, values = zip(*points, strict=True)
    value, low, high = columns(values)
    return (Layer("intervals", floats(nodes), value, series, low, high, details=(("tree", names),)),)
