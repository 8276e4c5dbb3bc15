"""The chart of a tree, drawn as a tree: levels from left to right, a row for each leaf."""

from collections.abc import Sequence

from treeopt.charts.chart import Axis, Chart, Layer, floats
from treeopt.tree import Tree

ROW = 18  # pixels of a leaf
LABELLED = 80  # nodes up to which edges show their ranks


def tree_picture(tree: Tree, *, accepted: Sequence[float] | None = None, sample: str = "", title: str = "") -> Chart:
    """Return the picture of a tree.

    Args:
        tree: the tree.
        accepted: share of steps in which each node is accepted, float (nodes,); None draws all nodes alike.
        sample: how the tree was made, for a dynamic one that differs from step to step.
        title: default its size.
    """
    rows = leaf_rows(tree)
    root = (
        (rows[0] + rows[-1]) / 2 if not tree.nodes else _middle([rows[i] for i, p in enumerate(tree.parents) if p < 0])
    )
    x, y = floats([0, *tree.depths]), (root, *rows)
    parents = [parent + 1 for parent in tree.parents]
    edges = Layer(
        "edges", floats([x[p] for p in parents]), floats([y[p] for p in parents]), x2=x[1:], y2=y[1:], muted=True
    )
    details: tuple[tuple[str, tuple[str, ...]], ...] = (("rank path", tuple(str(list(path)) for path in tree.paths)),)
    if accepted is not None:
        details = (*details, ("accepted in", tuple(f"{share:.1%} of steps" for share in accepted)))
    sizes = floats(accepted) if accepted is not None else ()
    nodes = Layer("points", x[1:], y[1:], "drafted token", size=sizes, details=details)
    labels = Layer("labels", x[1:], y[1:], text=tuple(str(rank) for rank in tree.ranks))
    layers = (edges, Layer("points", x[:1], y[:1], "last committed token", muted=True), nodes)
    sized = " Area: share of steps that accept the node." if accepted is not None else ""
    return Chart(
        (title or f"Tree of {_count(tree.nodes, 'node')}") + (", a sample" if sample else ""),
        Axis("depth", ticks=floats(range(tree.depth + 1)), limits=(-0.25, tree.depth + 0.5)),
        Axis("", limits=(-0.8, max(rows, default=0) + 0.8), reverse=True, shown=False),
        (*layers, labels) if tree.nodes <= LABELLED else layers,
        (f"Labels: rank of the drafter's candidate, 0 is the best.{sized}", *((sample,) if sample else ())),
        f"A tree of {_count(tree.nodes, 'node')}; nodes by level: {', '.join(map(str, tree.level_widths))}.",
        height=max(150, 70 + ROW * round(max(rows, default=0) + 1)),
    )


def leaf_rows(tree: Tree) -> list[float]:
    """Return the row of each node: leaves take rows of their own, in path order; a parent is between its children.

    >>> leaf_rows(Tree.from_paths([(0, 0), (0, 1), (1,)]))
    [0.5, 2.0, 0.0, 1.0]
    """
    below: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents):
        below.setdefault(parent, []).append(node)
    rows = [0.0] * tree.nodes
    leaves = sorted((node for node in range(tree.nodes) if node not in below), key=lambda node: tree.paths[node])
    for row, node in enumerate(leaves):
        rows[node] = float(row)
    for node in reversed(range(tree.nodes)):
        if node in below:
            rows[node] = _middle([rows[child] for child in below[node]])
    return rows


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _middle(rows: Sequence[float]) -> float:
    return (min(rows) + max(rows)) / 2 if rows else 0.0
