"""The tree that a dynamic policy builds at one position of a trace, for pictures."""

import numpy as np

from treeopt.errors import TraceError
from treeopt.policies import Policy
from treeopt.policies.beam import Drafted, drafted_candidates
from treeopt.policies.reranking import ranked_places, shortlists
from treeopt.replay.dynamic_tree import choose_alone
from treeopt.traces.trace import Trace
from treeopt.tree import Path, Tree


def first_tree(policy: Policy, trace: Trace) -> tuple[Tree, int]:
    """Return the tree at the first position at which its candidates were recorded, and the position (anchor).

    The sequence is decoded alone.

    Raises:
        TraceError: the trace holds no candidates, or too few everywhere in its first request.
    """
    first = trace.select(np.array([0]))
    chosen = choose_alone(
        policy, shortlists(first, policy.drafting, nodes=policy.nodes, calibration=policy.calibration)
    )
    found: list[tuple[int, Tree]] = []
    for anchors, trees in drafted_candidates(first, policy.drafting):
        for row in np.flatnonzero(chosen.known[anchors])[:1].tolist():
            anchor = int(anchors[row])
            level = int(chosen.levels[anchor])
            places = ranked_places(trees, policy.calibration, level)[row, : int(chosen.nodes[anchor])]
            kept = places[trees.within(level)[row, places]]
            found.append((anchor, Tree.from_paths(_path(trees, row, place) for place in kept.tolist())))
    if not found:
        raise TraceError("no position of the first request has the candidates that the policy chooses from")
    anchor, tree = min(found, key=lambda pair: pair[0])
    return tree, anchor


def _path(trees: Drafted, row: int, place: int) -> Path:
    path: list[int] = []
    while place >= 0:
        path.append(int(trees.rank[row, place]))
        place = int(trees.parent[row, place])
    return tuple(reversed(path))
