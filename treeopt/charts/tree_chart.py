"""The chart of a tree, drawn as a tree: levels from left to right, a row for each leaf."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from treeopt.charts.marks import DOT, Axis, data, library, titled
from treeopt.charts.theme import LIGHT
from treeopt.errors import counted
from treeopt.tree import Tree

if TYPE_CHECKING:
    import altair as alt

ROW = 18  # pixels of a leaf
LABELLED = 80  # nodes up to which labels show their ranks
LARGEST = 420  # square pixels of a node that every step accepts


def tree_picture(
    tree: Tree, *, accepted: Sequence[float] | None = None, sample: str = "", title: str = ""
) -> "alt.LayerChart":
    """Return the picture of a tree.

    Args:
        tree: the tree.
        accepted: share of steps in which each node is accepted, float (nodes,); None draws all nodes alike.
        sample: how the tree was made, for a dynamic one that differs from step to step.
        title: default its size.
    """
    alt = library()

    rows = leaf_rows(tree)
    root = {"depth": 0, "row": _middle([rows[i] for i, parent in enumerate(tree.parents) if parent < 0])}
    places = [{"depth": depth, "row": row} for depth, row in zip(tree.depths, rows, strict=True)]
    before = [places[parent] if parent >= 0 else root for parent in tree.parents]
    nodes = [
        place
        | {"depth before": parent["depth"], "row before": parent["row"], "rank": rank, "rank path": str(list(path))}
        | ({} if accepted is None else {"accepted": accepted[i], "accepted in": f"{accepted[i]:.1%} of steps"})
        for i, (place, parent, rank, path) in enumerate(zip(places, before, tree.ranks, tree.paths, strict=True))
    ]
    x = Axis("depth", "depth", ticks=range(tree.depth + 1), limits=(-0.25, tree.depth + 0.5)).channel("x")
    limits = alt.Scale(domain=[-0.8, max(rows, default=0) + 0.8], reverse=True)
    y = alt.Y(field="row", type="quantitative", scale=limits, axis=None)
    shares = alt.Scale(domain=[0, 1], range=[12, LARGEST])
    size = alt.value(DOT) if accepted is None else alt.Size("accepted:Q", scale=shares, legend=None)
    tips = ["rank path:N", *(["accepted in:N"] if accepted is not None else [])]
    drawn = data(nodes)
    marks = [
        drawn.mark_rule(color=LIGHT.muted, strokeWidth=1.25).encode(x, y, x2="depth before", y2="row before"),
        data([root]).mark_square(color=LIGHT.muted, size=DOT, opacity=1).encode(x, y),
        drawn.mark_circle(color=LIGHT.series[0], opacity=1).encode(x, y, size=size, tooltip=tips),
    ]
    labels = drawn.mark_text().encode(x, y, text="rank:N")
    sized = " Area: share of steps that accept the node." if accepted is not None else ""
    number = counted(tree.nodes, "node")
    return titled(
        [*marks, labels] if tree.nodes <= LABELLED else marks,
        (title or f"Tree of {number}") + (", a sample" if sample else ""),
        "Circles: drafted tokens; the square: the last committed token. "
        f"Labels: rank of the drafter's candidate, 0 is the best.{sized}",
        *([sample] if sample else []),
        words=f"A tree of {number}; nodes by level: {', '.join(map(str, tree.level_widths))}.",
        height=max(80, ROW * round(max(rows, default=0) + 2)),
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


def _middle(rows: Sequence[float]) -> float:
    return (min(rows) + max(rows)) / 2 if rows else 0.0
