"""Dynamic policies step by step in plain Python: the slow twin of shortlists, policies and running batches."""

import math
from dataclasses import dataclass

import numpy as np

from treeopt.policies import DynamicTree, OptTree, Policy
from treeopt.policies.beam import Drafting
from treeopt.policies.reranking import Calibration
from treeopt.statistics import Curve
from treeopt.traces.trace import Trace

CALIBRATION = tuple(tuple(Curve((0.1 * rank, 0.75), (0.01, 0.5 / (rank + 1))) for rank in range(3)) for _ in range(2))
CALIBRATED = DynamicTree(nodes=8, depth=2, beam=3, width=3, min_probability=0.05, calibration=CALIBRATION)
# One of each kind and some of their settings, for a drafter of 2 levels and more.
POLICIES: list[Policy] = [
    DynamicTree(nodes=8, depth=3, beam=4),
    CALIBRATED,
    OptTree(nodes=8, depth=3, threshold=0.1),
    OptTree(nodes=8, depth=3, threshold=0.0, beam=4, width=2),
]


@dataclass(frozen=True)
class Node:
    """A drafted candidate: its place in the recording, level, values and whether it is true."""

    place: int
    level: int
    value: np.float32  # the drafter's
    log: np.float32  # the policy's
    hit: bool
    expanded: bool

    @property
    def order(self):
        """Before what it is verified."""
        return (-self.log, -self.value, self.place)


def drafted(trace: Trace, anchor: int, drafting: Drafting, calibration: Calibration | None) -> list[Node]:
    """What is drafted at an anchor, all children having been recorded."""
    own = slice(*trace.candidates.offset[anchor : anchor + 2].tolist())
    parent, rank = trace.candidates.parent[own].tolist(), trace.candidates.rank[own].tolist()
    logs, hit = trace.candidates.logprob[own], trace.candidates.hit[own].tolist()
    found: dict[int, Node] = {}
    above: dict[int, tuple[np.float32, np.float32]] = {-1: (np.float32(0), np.float32(0))}
    for level in range(1, drafting.depth + 1):
        new = []
        for place in range(len(parent)):
            if parent[place] in above and rank[place] < drafting.width:
                value, log = above[parent[place]]
                edge = logs[place]
                if calibration is not None:
                    chance = calibration[level - 1][rank[place]].at(np.exp(np.float64(edge)))
                    edge = np.float32(math.log(chance)) if chance else np.float32(-np.inf)
                new.append((place, value + logs[place], log + edge))
        best = sorted(new, key=lambda node: (-node[1], node[0]))[: drafting.beam]
        above = {place: (value, log) for place, value, log in best}
        for place, value, log in new:
            found[place] = Node(place, level, value, log, hit[place], place in above)
    return list(found.values())


def chosen(policy: Policy, rows: list[list[Node]]) -> tuple[list[int], list[list[Node]]]:
    """Levels that each row of a batch wants, and the nodes that it verifies."""
    match policy:
        case DynamicTree():
            return _confident(policy, rows)
        case OptTree():
            found = [_opt_tree(policy, nodes) for nodes in rows]
            return [levels for levels, _ in found], [nodes for _, nodes in found]
    raise AssertionError(policy)


def _confident(policy, rows):
    least = np.float32(math.log(policy.min_probability)) if policy.min_probability else -np.inf
    levels = []
    for nodes in rows:
        level = 1
        while level < policy.depth and any(node.log >= least for node in nodes if node.level == level):
            level += 1
        levels.append(level)
    best = [[n for n in sorted(nodes, key=lambda n: n.order)[: policy.nodes] if n.log >= least] for nodes in rows]
    return levels, best


def _opt_tree(policy, nodes):
    before = 0.0
    for level in range(1, policy.depth + 1):
        best = sorted((n for n in nodes if n.level <= level), key=lambda n: n.order)[: policy.nodes]
        total = float(np.sum([np.exp(np.float64(n.log)) for n in best]))
        if level == policy.depth or total - before <= policy.threshold:
            return level, best
        before = total
    raise AssertionError


def run(policy: Policy, trace: Trace, *, batch: int, queues: list[list[int]]) -> list[list[tuple]]:
    """The steps of each batch: levels, and of each row its anchor, whether it counts, accepted and verified nodes."""
    return [_run(policy, trace, batch, queue) for queue in queues]


def _run(policy, trace, batch, queue):
    turn = list(range(batch))
    anchors = [int(trace.starts[queue[t % len(queue)]]) for t in turn]
    steps = []
    while any(t < len(queue) for t in turn):
        rows = [drafted(trace, anchor, policy.drafting, policy.calibration) for anchor in anchors]
        levels, nodes = chosen(policy, rows)
        kept = [sum(node.hit for node in verified) for verified in nodes]
        steps.append(
            (
                max(levels),
                [(a, t < len(queue), k, len(v)) for a, t, k, v in zip(anchors, turn, kept, nodes, strict=True)],
            )
        )
        following = max(turn) + 1
        for row in range(batch):
            stop = int(trace.stops[queue[turn[row] % len(queue)]])
            anchors[row] += kept[row] + 1
            if anchors[row] >= stop:
                turn[row] = following
                following += 1
                anchors[row] = int(trace.starts[queue[turn[row] % len(queue)]])
    return steps
