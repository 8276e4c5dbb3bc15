"""Imposed acceptance: steps accept the tokens that a trace says, whatever the models drafted; all work is done."""

import torch
from torch import Tensor

from executor.device import to_device
from executor.verification.acceptance_rules import Accepted, Greedy, Rule
from executor.verification.tree_tensors import Draft
from treeopt.errors import ExecutorError, counted
from treeopt.replay.static_tree import deepest
from treeopt.traces.trace import Trace
from treeopt.tree import Tree


class Imposed:
    """Runs another rule, then accepts the path that the tree accepts at this position of the trace's request.

    Each row walks along one request of the trace, as `visit` does, so step costs can be measured with any models,
    also with random weights. The text is meaningless. Request i of a run is request i of the trace and has as many
    tokens, if its token limit is the trace's.

    Attributes:
        rule: judges first; its time counts, and its bonus token is committed, but its path is not.
        tree: the only tree that this instance supports.
        nodes: int64 (P + 1,), entry of the deepest node accepted by a step from each anchor, the root (0) at the end.
        anchor: int64 (batch,), where the next step of each row starts; changed in place.
    """

    lossless = False

    def __init__(self, trace: Trace, tree: Tree, *, rule: Rule | None = None) -> None:
        """Find the deepest accepted node of every anchor; the tree is static, the empty one for plain decoding.

        Raises:
            TraceError: the tree is deeper than the trace, or uses ranks that were not recorded.
        """
        self.rule: Rule = Greedy() if rule is None else rule
        self.tree = tree
        self.needs_scores, self.sampled_candidates = self.rule.needs_scores, self.rule.sampled_candidates
        self._starts, self._entries = trace.starts, deepest(tree, trace) + 1
        self.nodes = self.anchor = torch.zeros(0, dtype=torch.long)

    def check(self, tree: Tree) -> None:
        """Raise ExecutorError for any other tree, or one that the rule refuses."""
        if tree != self.tree:
            raise ExecutorError(f"acceptance is imposed for tree {self.tree.id}, got tree {tree.id}")
        self.rule.check(tree)

    def candidates(self, scores: Tensor, width: int) -> Tensor:
        """Return the rule's candidates."""
        return self.rule.candidates(scores, width)

    def begin(self, batch: int, device: torch.device) -> None:
        """Start a run with `batch` rows without requests."""
        self.nodes = torch.tensor([*self._entries.tolist(), 0], device=device)
        self.anchor = torch.full((batch,), len(self._entries), device=device)

    def admit(self, rows: Tensor, requests: list[int]) -> None:
        """Start these requests of the trace in these rows; raise ExecutorError if the trace has fewer."""
        if max(requests) >= len(self._starts):
            raise ExecutorError(
                f"request {max(requests)} is not in the trace, which has {counted(len(self._starts), 'request')}"
            )
        self.anchor[rows] = to_device(self._starts[requests].tolist(), rows.device)

    def accept(self, logits: Tensor, draft: Draft) -> Accepted:
        """Return the path of the trace and the rule's bonus token; each row advances."""
        bonus = self.rule.accept(logits, draft).emitted[:, -1:]
        node = self.nodes[self.anchor]
        count = draft.topology.depth[0, node]
        self.anchor.add_(count + 1).clamp_(max=len(self._entries))
        return Accepted.of(draft, count, draft.topology.path[0, node], bonus)
