"""Suffix decoding (Oliaro et al. 2024, arXiv 2411.04975) by the rule of Arctic Inference 0.1.1, which vLLM 0.32 runs.

A trie counts how often each piece of up to 24 tokens stands in the text. For m = 1, 2, ... < 24 the last m tokens are
continued by at most min(K, m) tokens: each is the most frequent one after the piece so far, and its probability is that
of the token before times count(longer) / count(shorter). A continuation ends where this falls below 0.1, or the trie
does. The one with the largest sum of probabilities is proposed, of equals that of the longest match. Sums are float32.

Of equally frequent tokens Arctic takes the first of a list: a token that gains on others moves before those that it
overtakes, and of a count that others have already, it comes last if others had its own former count and stood before
it, else first (`Node.count_child`).

Left out: Arctic's tree of other requests' outputs, whose content depends on their order (in vLLM
`suffix_decoding_max_cached_requests` 0); the draft is cut at the end of a request.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from executor.drafters.base.drafter import Forced
from executor.drafters.prompt_lookup.drafter import TextDrafter, TextState
from executor.drafters.prompt_lookup.engine_rules import NOTHING, one_token
from executor.target.target_model import Target
from treeopt.errors import UsageError

DEPTH = 24  # tokens of a piece that is counted; vLLM's default, and its default K
LEAST = np.float32(0.1)  # probability of a token that is proposed


class Node:
    """A piece of the text: how often it stands there, and the tokens after it, most frequent first."""

    __slots__ = ("after", "children", "count")

    def __init__(self) -> None:
        """Make a piece that was not seen yet."""
        self.count = 0
        self.children: dict[int, Node] = {}
        self.after: list[int] = []

    def count_child(self, token: int) -> "Node":
        """Count one more occurrence of `token` after the piece; return the longer piece."""
        child = self.children.get(token)
        if child is None:
            child = self.children[token] = Node()
            self.after.append(token)
        child.count += 1
        place = at = self.after.index(token)
        former = child.count - 1
        if at and former:
            before = self.children[self.after[at - 1]].count
            if before in (former, child.count):  # move before all that have this count
                while place and self.children[self.after[place - 1]].count == before:
                    place -= 1
                self.after.insert(place, self.after.pop(at))
        return child


class SuffixTrie:
    """The pieces of one text, which grows at its end."""

    def __init__(self) -> None:
        """Begin with no text."""
        self.tokens: list[int] = []
        self._root = Node()
        self._ends: list[Node] = []  # the last tokens' pieces, longest first

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            self._ends = [node.count_child(token) for node in [*self._ends, self._root][-DEPTH:]]
            self.tokens.append(token)

    def propose(self, most: int) -> list[int]:
        """Return the tokens that are likely next, at most `most`."""
        best, best_score = list[int](), np.float32(0)
        for match in range(1, min(len(self.tokens), DEPTH)):
            tokens, score = self._continued(self._ends[-match], min(most, match))
            if score >= best_score:
                best, best_score = tokens, score
        return best

    def _continued(self, node: Node, most: int) -> tuple[list[int], np.float32]:
        tokens, probability, score = list[int](), np.float32(1), np.float32(0)
        while len(tokens) < most and node.after:
            child = node.children[node.after[0]]
            probability = probability * (np.float32(child.count) / np.float32(node.count))
            if probability < LEAST:
                break
            tokens.append(node.after[0])
            score, node = score + probability, child
        return tokens, score


class Suffix(TextDrafter):
    """Proposes a continuation of at most `most` tokens, or nothing."""

    kind = "suffix"
    abstains = True

    def __init__(self, most: int = DEPTH) -> None:
        """Propose at most `most` tokens, Arctic's K."""
        super().__init__()
        self.max_depth = most
        self.settings: Mapping[str, Any] = {"most": most}
        self._tries: dict[int, SuffixTrie] = {}

    @torch.no_grad()
    def level(self, state: TextState, tokens: Tensor, parents: Tensor) -> Tensor:
        """See `Drafter.level`; looked up at level 0, and children of other nodes get its tokens too."""
        if state.level == 0:
            texts, lengths = state.text[:, : state.view].tolist(), state.lengths.tolist()
            pairs = enumerate(zip(texts, lengths, strict=True))
            rows = [[self._proposed(row, text[:length], state.depth)] for row, (text, length) in pairs]
            state.read = torch.tensor(rows, device=state.text.device)
        state.level += 1
        return one_token(state.read[..., state.level - 1], state.vocabulary)

    def teacher_forced(
        self, target: Target, tokens: Tensor, features: Tensor, depth: int, *, rows: Tensor | None = None
    ) -> Iterator[Forced]:
        """See `Drafter.teacher_forced`; at row t the text ends with the root x_{t+1} at every depth."""
        anchors = torch.arange(tokens.shape[1]).expand(tokens.shape) if rows is None else rows
        texts = enumerate(zip(tokens.tolist(), anchors.tolist(), strict=True))
        drafts = [[self._proposed(row, text[: at + 2], depth) for at in some] for row, (text, some) in texts]
        proposed = torch.tensor(drafts, device=tokens.device)
        for k in range(depth):
            yield Forced(one_token(proposed[..., k], target.vocabulary))

    def _proposed(self, row: int, text: list[int], depth: int) -> list[int]:
        """Return what is proposed after a text, `depth` tokens, NOTHING after the last; a row's text mostly grows."""
        trie = self._tries.get(row)
        if trie is None or text[: len(trie.tokens)] != trie.tokens:
            trie = self._tries[row] = SuffixTrie()
        trie.extend(text[len(trie.tokens) :])
        found = trie.propose(self.max_depth)[:depth]
        return found + [NOTHING] * (depth - len(found))


def suffix_drafter(name: str, target: Target) -> Suffix:
    """Return the drafter of `suffix` or `suffix:K`; see `DrafterKind.named`.

    Raises:
        UsageError: another name.
    """
    _, colon, most = name.partition(":")
    if colon and not (most.isdecimal() and 1 <= int(most) <= DEPTH):
        raise UsageError(f"{name}: must be suffix or suffix:K with K in 1..{DEPTH}, such as suffix:8")
    return Suffix(int(most) if colon else DEPTH)
