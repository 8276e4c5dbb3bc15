"""Suffix decoding (Oliaro et al. 2024, arXiv 2411.04975) by the rule of Arctic Inference 0.1.1, which vLLM 0.32 runs.

A trie counts how often each piece of up to 24 tokens stands in the text. For m = 1, 2, ... < 24 the last m tokens are
continued by at most min(K, m) tokens: each is the most frequent one after the piece so far, and its probability is that
of the token before times count(longer) / count(shorter). A continuation ends where this falls below 0.1, or the trie
does. The one with the largest sum of probabilities is proposed, of equals that of the longest match. Sums are float32.

Of equally frequent tokens Arctic takes the first of a list: a token that gains on others moves before those that it
overtakes, and of a count that others have already, it comes last if others had its own former count and stood before
it, else first (`Node.count_child`).

A second trie may hold the outputs of requests before and of the running one (`EarlierOutputs`; in vLLM
`suffix_decoding_max_cached_requests`). Its proposal counts where the sum is larger. What is before depends on the order
of requests, so they are decoded and recorded one at a time.

Left out: Arctic's trees, best first by probability, which vLLM 0.32 does not ask for: each step has one of its own
shape, for which no ranks can be recorded. The draft is cut at the end of a request.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from executor.drafters.base.drafter import Admitted, Forced
from executor.drafters.prompt_lookup.drafter import TextState
from executor.drafters.prompt_lookup.engine_rules import NOTHING, PieceDrafter
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

    def forget_child(self, token: int) -> "Node | None":
        """Count one occurrence of `token` less; return the longer piece, None if it is gone or never was."""
        child = self.children.get(token)
        if child is None:
            return None
        self.after.remove(token)
        if child.count == 1:
            del self.children[token]
            return None
        fewer = (place for place, other in enumerate(self.after) if self.children[other].count < child.count)
        self.after.insert(next(fewer, len(self.after)), token)  # last of its former count, first of the next
        child.count -= 1
        return child


class SuffixTrie:
    """The pieces of texts, which grow at their ends.

    Attributes:
        texts: the texts by number.
    """

    def __init__(self) -> None:
        """Begin with no text."""
        self.texts: dict[int, list[int]] = {}
        self._root = Node()
        self._ends: dict[int, list[Node]] = {}  # the last tokens' pieces, longest first

    def extend(self, tokens: Sequence[int], number: int = 0) -> None:
        """Append tokens to a text."""
        text, ends = self.texts.setdefault(number, []), self._ends.get(number, [])
        for token in tokens:
            ends = [node.count_child(token) for node in [*ends, self._root][-DEPTH:]]
            text.append(token)
        self._ends[number] = ends

    def remove(self, number: int) -> None:
        """Forget a text."""
        text = self.texts.pop(number, [])
        self._ends.pop(number, None)
        for start in range(len(text)):
            node: Node | None = self._root
            for token in text[start : start + DEPTH]:
                node = node.forget_child(token) if node is not None else None

    def propose(self, last: Sequence[int], most: int) -> tuple[list[int], np.float32]:
        """Return the tokens that are likely next after the last ones, at most `most`, and the sum of probabilities."""
        best, best_score = list[int](), np.float32(0)
        for match in range(1, min(len(last), DEPTH)):
            node: Node | None = self._root
            for token in last[-match:]:
                node = node.children.get(token) if node is not None else None
            if node is None:
                break
            tokens, score = self._continued(node, min(most, match))
            if score >= best_score:
                best, best_score = tokens, score
        return best, best_score

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


class EarlierOutputs:
    """The outputs of the last requests, the running one included; the oldest leaves first.

    Attributes:
        kept: most outputs.
        requests: number of requests so far.
        trie: the pieces of the outputs.
    """

    def __init__(self, kept: int) -> None:
        """Begin with no request."""
        self.kept, self.requests, self.trie = kept, 0, SuffixTrie()

    def begin(self) -> None:
        """Begin the next request."""
        self.requests += 1
        self.trie.remove(self.requests - self.kept)

    def write(self, output: Sequence[int]) -> None:
        """Take in the running request's output, as far as it is written."""
        self.trie.extend(output[len(self.trie.texts.get(self.requests, ())) :], self.requests)

    def remember(self, outputs: Iterable[Sequence[int]]) -> None:
        """Forget all requests, then take in these."""
        self.requests, self.trie = 0, SuffixTrie()
        for output in outputs:
            self.begin()
            self.write(output)


class Suffix(PieceDrafter):
    """Proposes a continuation of at most `most` tokens, or nothing.

    Attributes:
        history: outputs of requests before; None if only the text itself is read.
    """

    kind = "suffix"

    def __init__(self, most: int = DEPTH, kept: int = 0) -> None:
        """Propose at most `most` tokens, Arctic's K; `kept` outputs are remembered."""
        super().__init__()
        self.max_depth, self.history = most, EarlierOutputs(kept) if kept else None
        self.facts: Mapping[str, Any] = {"cached_requests": kept} if kept else {}
        self.settings: Mapping[str, Any] = {"most": most, **self.facts}
        self._tries: dict[int, SuffixTrie] = {}
        self._prompt = 0

    def begin(self, target: Target, batch: int, depth: int, length: int, capacity: int) -> TextState:
        """Forget earlier runs; see `Drafter.begin`."""
        if self.history is not None:
            self.history.remember(())
        return super().begin(target, batch, depth, length, capacity)

    def admit(self, state: TextState, admitted: Admitted) -> None:
        """See `Drafter.admit`."""
        super().admit(state, admitted)
        for row, text in zip(admitted.numbers, admitted.texts, strict=True):
            self._start(row, len(text))

    def _start(self, row: int, prompt: int) -> None:
        self._tries.pop(row, None)
        self._prompt = prompt
        if self.history is not None:
            self.history.begin()

    def propose(self, text: Tensor, ends: Tensor, depth: int) -> Tensor:
        """Look up each row's ends in turn; see `EngineRule.propose`."""
        pairs = enumerate(zip(text.tolist(), ends.tolist(), strict=True))
        rows = [[self._proposed(row, line[:end], depth) for end in some] for row, (line, some) in pairs]
        return torch.tensor(rows, device=text.device)

    def teacher_forced(
        self, target: Target, tokens: Tensor, features: Tensor, depth: int, *, rows: Tensor | None = None
    ) -> Iterator[Forced]:
        """See `Drafter.teacher_forced`; before the first anchor stands the prompt."""
        for row, first in enumerate([0] * len(tokens) if rows is None else rows[:, 0].tolist()):
            self._start(row, first + 2)
        yield from super().teacher_forced(target, tokens, features, depth, rows=rows)

    def _proposed(self, row: int, text: list[int], depth: int) -> list[int]:
        """Return what is proposed after a text, `depth` tokens, NOTHING after the last; a row's text mostly grows."""
        trie = self._tries.setdefault(row, SuffixTrie())
        trie.extend(text[len(trie.texts.get(0, ())) :])
        found, score = trie.propose(text[-DEPTH:], self.max_depth)
        if self.history is not None:
            self.history.write(text[self._prompt :])
            earlier, larger = self.history.trie.propose(text[-DEPTH:], self.max_depth)
            found = earlier if larger > score else found
        return found[:depth] + [NOTHING] * (depth - len(found))


def suffix_drafter(name: str, target: Target) -> Suffix:
    """Return the drafter of `suffix`, `suffix:K` or `suffix:K:N` (N earlier outputs); see `DrafterKind.named`.

    Raises:
        UsageError: another name.
    """
    numbers = name.split(":")[1:]
    whole = all(each.isdecimal() for each in numbers)
    if not whole or len(numbers) > 2 or not 1 <= int(numbers[0] if numbers else 1) <= DEPTH:
        raise UsageError(f"{name}: must be suffix, suffix:K with K in 1..{DEPTH}, or suffix:K:N with N earlier outputs")
    return Suffix(*map(int, numbers))
