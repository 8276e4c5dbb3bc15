"""Imposed acceptance: steps keep what a trace says they keep, whatever the models drafted; the work is all done."""

import torch
from torch import Tensor

from executor.device.upload import uploaded
from executor.verification.acceptance_rules import Greedy, Rule
from executor.verification.longest_path import Accepted
from executor.verification.tree_tensors import Draft
from treeopt.errors import ExecutorError
from treeopt.replay.static_tree import deepest
from treeopt.traces.trace import Trace
from treeopt.tree import Tree


class Imposed:
    """Another rule judges, then the path is kept that the tree keeps at this position of the trace's request.

    Each row walks along one request of the trace, as `visit` does, so what steps cost can be measured
    with any models, also of random weights. The text means nothing. Request i of a run is request i of the trace;
    its tokens are those of the trace if it is told to end where the trace's does.

    Attributes:
        rule: judges first; its time counts, and its bonus token is committed, but not its path.
        tree: the only tree that this will do for.
        nodes: int64 (P + 1,), entry of the deepest node kept by a step from each anchor, the root (0) at the end.
        anchor: int64 (batch,), where the next step of each row starts; changed in place.
    """

    lossless = False

    def __init__(self, trace: Trace, tree: Tree, *, rule: Rule | None = None) -> None:
        """Look every anchor up.

        Args:
            trace: whose requests are walked.
            tree: static; the empty one decodes plainly.
            rule: default greedy.

        Raises:
            TraceError: the tree is deeper than the trace, or looks at ranks that were not recorded.
        """
        self.rule: Rule = Greedy() if rule is None else rule
        self.tree = tree
        self.needs_scores, self.sampled_candidates = self.rule.needs_scores, self.rule.sampled_candidates
        self._starts, self._found = trace.starts, deepest(tree, trace) + 1
        self.nodes = self.anchor = torch.zeros(0, dtype=torch.long)

    def check(self, tree: Tree) -> None:
        """Refuse any other tree.

        Raises:
            ExecutorError: it is not the one whose acceptance is known; or the rule's own reason.
        """
        if tree != self.tree:
            raise ExecutorError(f"acceptance is imposed for tree {self.tree.id}, got tree {tree.id}")
        self.rule.check(tree)

    def candidates(self, scores: Tensor, width: int) -> Tensor:
        """As the rule draws them."""
        return self.rule.candidates(scores, width)

    def begin(self, batch: int, device: torch.device) -> None:
        """A run begins: `batch` rows without requests."""
        self.nodes = torch.tensor([*self._found.tolist(), 0], device=device)
        self.anchor = torch.full((batch,), len(self._found), device=device)

    def admit(self, rows: Tensor, requests: list[int]) -> None:
        """These requests of the trace begin in these rows.

        Raises:
            ExecutorError: the trace has fewer.
        """
        if max(requests) >= len(self._starts):
            raise ExecutorError(f"request {max(requests)} is not in the trace, which has {len(self._starts)} requests")
        self.anchor[rows] = uploaded(self._starts[requests].tolist(), rows.device)

    def accept(self, logits: Tensor, draft: Draft) -> Accepted:
        """The path of the trace, and the bonus that the rule gives; each row moves on."""
        bonus = self.rule.accept(logits, draft).emitted[:, -1:]
        node = self.nodes[self.anchor]
        count = draft.topology.depth[0, node]
        self.anchor.add_(count + 1).clamp_(max=len(self._found))
        return Accepted.of(draft, count, draft.topology.path[0, node], bonus)
