"""Policies that never stop early, used to time dynamic drafting: one for each kind and size."""

from treeopt.policies import POLICIES, Policy
from treeopt.policies.beam import Drafting

WIDTH = 8  # children of each expanded node, or as many as nodes are expanded


def unstopped_policies(max_nodes: int, max_depth: int) -> list[Policy]:
    """Return the same few policies for each of `treeopt.policies.growths`: shallow and deep, narrow and wide.

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
    for make in (make for kind in POLICIES.values() for make in kind.growths.values()):
        for nodes, depth, beam in sizes:
            drafting = Drafting(min(depth, max_depth), beam, max(beam, WIDTH))
            policies[make(min(nodes, max_nodes, drafting.candidates), drafting)] = None
    return list(policies)
