"""Policies that stop nowhere, so that what drawing trees anew takes can be measured: one of each growth and reach."""

from collections.abc import Callable, Mapping

import numpy as np

from treeopt.policies import Chosen, CostAware, DynamicTree, OptTree, Policy
from treeopt.policies.beam import Drafting
from treeopt.policies.reranking import Calibration, Shortlists
from treeopt.statistics.isotonic_regression import Curve

WIDTH = 8  # children looked at of each expanded node, or as many as are expanded
KNOTS = 16  # of the curves of a calibration


def drawn_anew(max_nodes: int, max_depth: int) -> list[Policy]:
    """Of each of `treeopt.policies.GROWTHS` the same few: of one level and of all, narrow and wide, small and large.

    None is deeper than the deepest chain of so many nodes, beside which its steps are priced.
    """
    max_depth = min(max_depth, max_nodes)
    wanted = (
        (1, 1, 1),
        (8, max_depth, 1),
        (8, max_depth, 16),
        (48, max_depth, 16),
        (16, 2, 4),
        (32, max_depth, 4),
    )
    found: dict[Policy, None] = {}
    for make in _MAKERS.values():
        for nodes, depth, beam in wanted:
            drafting = Drafting(min(depth, max_depth), beam, max(beam, WIDTH))
            found[make(min(nodes, max_nodes, drafting.candidates), drafting)] = None
    return list(found)


class _Unstopped(OptTree):
    """Works out what another level adds, and drafts it even if that is nothing; no threshold says so."""

    def choose(self, lists: Shortlists) -> Chosen:
        found = super().choose(lists)
        nodes = (~np.isnan(lists.log[:, :, self.depth - 1, : self.nodes])).sum(-1)
        return Chosen(np.full_like(found.levels, self.depth), nodes, found.known)


def _dynamic(nodes: int, drafting: Drafting) -> Policy:
    return DynamicTree(nodes, drafting.depth, drafting.beam, drafting.width)


def _calibrated(nodes: int, drafting: Drafting) -> Policy:
    return DynamicTree(nodes, drafting.depth, drafting.beam, drafting.width, calibration=_straight(drafting))


def _opt_tree(nodes: int, drafting: Drafting) -> Policy:
    return _Unstopped(nodes, drafting.depth, 0.0, drafting.beam, drafting.width)


def _cost_aware(nodes: int, drafting: Drafting) -> Policy:
    onward = (Curve((0.0,), (0.0,)),) * (drafting.depth - 1)
    free = ((0.0,) * nodes,) * drafting.depth
    reach = (drafting.depth, drafting.beam, drafting.width)
    return CostAware(nodes, *reach, False, 0.0, free, onward, _straight(drafting))


def _straight(drafting: Drafting) -> Calibration:
    """A calibration that changes nothing."""
    line = tuple(i / (KNOTS - 1) for i in range(KNOTS))
    return ((Curve(line, line),) * drafting.width,) * drafting.depth


_MAKERS: Mapping[str, Callable[[int, Drafting], Policy]] = {
    "dynamic-tree": _dynamic,
    "calibrated-tree": _calibrated,
    "opt-tree": _opt_tree,
    "cost-aware": _cost_aware,
}
