"""Along given texts, which nodes of a tree a rule would keep: the live loop, led from token to token.

Every step drafts and verifies as it would from there, keeps nothing, and emits the text's own next token.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from executor.decoding.decoder import Decoder
from executor.drafters.drafter import Drafter
from executor.target.target_model import Target
from executor.verification.longest_accepted_path import Accepted
from executor.verification.tree_tensors import Draft
from executor.verification.typical_acceptance import Typical
from treeopt.tree import Tree


class Led:
    """A rule that says of every step which nodes another one would keep, and goes on along texts.

    Row i of a run walks along text i, so all requests begin together.

    Attributes:
        rule: which nodes it would keep is noted.
        kept: of each step, bool (batch, count), the root first.
    """

    lossless = needs_scores = sampled_candidates = False

    def __init__(self, rule: Typical, texts: Tensor) -> None:
        """Nothing is noted yet; `texts` are int64 (batch, longest), padded."""
        self.rule, self._texts = rule, texts
        self.kept: list[Tensor] = []

    def check(self, tree: Tree) -> None:
        """Any tree will do."""

    def candidates(self, scores: Tensor, width: int) -> Tensor:
        """As the rule draws them."""
        return self.rule.candidates(scores, width)

    def accept(self, logits: Tensor, draft: Draft) -> Accepted:
        """Nothing, and the texts' next tokens; their last again when they are over."""
        step = min(len(self.kept), self._texts.shape[1] - 1)
        self.kept.append(self.rule.kept(logits, draft))
        nothing = torch.zeros_like(self._texts[:, :1])
        path = nothing.expand(-1, draft.topology.path.shape[-1])
        return Accepted.of(draft, nothing[:, 0], path, self._texts[:, step : step + 1])


def nodes_kept(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    texts: Sequence[Sequence[int]],
    *,
    rule: Typical,
    tree: Tree,
) -> list[NDArray[np.bool_]]:
    """Of each text, bool (length, nodes): whether a step from each of its tokens would keep each node of the tree.

    What the rest of the text has no room for is not kept.

    Args:
        target: what verifies.
        drafter: what drafts.
        prompts: token ids.
        texts: what was written after each.
        rule: that judges.
        tree: static.
    """
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    led = Led(rule, padded.to(target.device))
    lengths = [len(text) for text in texts]
    for _ in Decoder(target, drafter, tree=tree, batch=len(texts), rule=led).steps(prompts, new_tokens=lengths):
        pass
    kept = torch.stack(led.kept[: max(lengths)], 1)[:, :, 1:].cpu().numpy()
    depths = np.array(tree.depths)
    return [
        each[:length] & (depths <= np.arange(length, 0, -1)[:, None])
        for each, length in zip(kept, lengths, strict=True)
    ]
