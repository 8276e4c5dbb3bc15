"""The tree nodes that rule typical would accept along a given text: the live loop with the text forced.

Every step drafts and verifies as it would from there, accepts no node, and emits the text's own next token.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from executor.decoding.decoder import Decoder
from executor.drafters.base.drafter import Drafter
from executor.target.target_model import Target
from executor.verification.longest_accepted_path import Accepted
from executor.verification.tree_tensors import Draft
from executor.verification.typical_acceptance import Typical
from treeopt.tree import Tree


class ForcedText:
    """A rule that records which nodes another rule would accept in each step, and emits given texts instead.

    Row i of a run follows text i, so all requests must begin together.

    Attributes:
        rule: the rule whose accepted nodes are recorded.
        accepted: per step bool (batch, count), the root first.
    """

    lossless = needs_scores = sampled_candidates = False

    def __init__(self, rule: Typical, texts: Tensor) -> None:
        """Begin before the first step; `texts` are int64 (batch, longest), padded."""
        self.rule, self._texts = rule, texts
        self.accepted: list[Tensor] = []

    def check(self, tree: Tree) -> None:
        """Allow any tree."""

    def candidates(self, scores: Tensor, width: int) -> Tensor:
        """Return the candidates of the recorded rule."""
        return self.rule.candidates(scores, width)

    def accept(self, logits: Tensor, draft: Draft) -> Accepted:
        """Accept no node, and emit the texts' next tokens; the last one is repeated when a text is over."""
        step = min(len(self.accepted), self._texts.shape[1] - 1)
        self.accepted.append(self.rule.kept(logits, draft))
        root = torch.zeros_like(self._texts[:, :1])
        path = root.expand(-1, draft.topology.path.shape[-1])
        return Accepted.of(draft, root[:, 0], path, self._texts[:, step : step + 1])


def accepted_nodes(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    texts: Sequence[Sequence[int]],
    *,
    rule: Typical,
    tree: Tree,
) -> list[NDArray[np.bool_]]:
    """Return for each text, bool (length, nodes), the nodes that a step from each of its tokens would accept.

    Nodes that reach past the end of the text are not accepted.

    Args:
        target: what verifies.
        drafter: what drafts.
        prompts: token ids.
        texts: what was written after each.
        rule: the rule that accepts.
        tree: a static tree.
    """
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    forced = ForcedText(rule, padded.to(target.device))
    lengths = [len(text) for text in texts]
    for _ in Decoder(target, drafter, tree=tree, batch=len(texts), rule=forced).steps(prompts, new_tokens=lengths):
        pass
    accepted = torch.stack(forced.accepted[: max(lengths)], 1)[:, :, 1:].cpu().numpy()
    depths = np.array(tree.depths)
    return [
        nodes[:length] & (depths <= np.arange(length, 0, -1)[:, None])
        for nodes, length in zip(accepted, lengths, strict=True)
    ]
