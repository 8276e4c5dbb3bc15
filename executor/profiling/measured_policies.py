"""Policies that never stop early, used to time dynamic drafting: one for each kind and size."""

from collections.abc import Callable, Mapping

import numpy as np

from treeopt.policies import Chosen, CostAware, DynamicTree, OptTree, Policy
from treeopt.policies.beam import Drafting
from treeopt.policies.reranking import Calibration, Shortlists
from treeopt.statistics.isotonic_regression import Curve

WIDTH = 8  # children of each expanded node, or as many as nodes are expanded
KNOTS = 16  # of the curves of a calibration


def unstopped_policies(max_nodes: int, max_depth: int) -> list[Policy]:
    """Return the same few policies for each of `treeopt.policies.GROWTHS`: shallow and deep, narrow and wide.

    None is deeper than the deepest chain of `max_nodes` nodes, against which its steps are priced.
    """
    max_depth = min(max_depth, max_nodes)
    sizes = (  # nodes, depth, beam
        (1, 1, 1),
        (8, max_depth, 1),
        (8, max_depth, 16),
        (48, max_depth, 16),
        (16, 2, 4),
        (32, max_depth, 4),
    )
    policies: dict[Policy, None] = {}
    for make in _MAKERS.values():
        for nodes, depth, beam in sizes:
            drafting = Drafting(min(depth, max_depth), beam, max(beam, WIDTH))
            policies[make(min(nodes, max_nodes, drafting.candidates), drafting)] = None
    return list(policies)


class _Unstopped(OptTree):
    """Computes what another level adds, and drafts it even if that is nothing; no threshold can express this."""

    def choose(self, lists: Shortlists) -> Chosen:
        stopping = super().choose(lists)
        nodes = (~np.isnan(lists.log[:, :, self.depth - 1, : self.nodes])).sum(-1)
        return Chosen(np.full_like(stopping.levels, self.depth), nodes, stopping.known)


def _dynamic(nodes: int, drafting: Drafting) -> Policy:
    return DynamicTree(nodes, drafting.depth, drafting.beam, drafting.width)


def _calibrated(nodes: int, drafting: Drafting) -> Policy:
    return DynamicTree(nodes, drafting.depth, drafting.beam, drafting.width, calibration=_identity(drafting))


def _opt_tree(nodes: int, drafting: Drafting) -> Policy:
    return _Unstopped(nodes, drafting.depth, 0.0, drafting.beam, drafting.width)


def _cost_aware(nodes: int, drafting: Drafting) -> Policy:
    onward = (Curve((0.0,), (0.0,)),) * (drafting.depth - 1)
    free = ((0.0,) * nodes,) * drafting.depth
    reach = (drafting.depth, drafting.beam, drafting.width)
    return CostAware(nodes, *reach, False, 0.0, free, onward, _identity(drafting))


def _identity(drafting: Drafting) -> Calibration:
    """Return a calibration that changes nothing."""
    line = tuple(i / (KNOTS - 1) for i in range(KNOTS))
    return ((Curve(line, line),) * drafting.width,) * drafting.depth


_MAKERS: Mapping[str, Callable[[int, Drafting], Policy]] = {
    "dynamic-tree": _dynamic,
    "calibrated-tree": _calibrated,
    "opt-tree": _opt_tree,
    "cost-aware": _cost_aware,
}
