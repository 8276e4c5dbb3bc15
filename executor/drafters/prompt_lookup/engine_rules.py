"""Prompt lookup as inference engines have it: one piece of the text is proposed, or nothing.

Each rule looks for an earlier occurrence of the last tokens of the text, the root included, and proposes the tokens
behind it, at most K of them (the depth of the tree), never beyond the end of the text. With K cut to a smaller number
the piece is the same but shorter, so one recording serves all K. In llama.cpp it serves all K of at least `size`: its K
is `most`, and it drops pieces shorter than `size`. The rules differ in which occurrence they take:

| rule | tokens that must match | which occurrence | proposes nothing if |
|---|---|---|---|
| vLLM | `longest` down to `shortest` | of the longest match the earliest | nothing matches |
| transformers | `longest` down to 1 | of the longest match the earliest | nothing matches, or a stop token follows |
| llama.cpp | exactly `size` | the latest, not the text's start | fewer than `size` tokens follow; the text is short |

An engine proposes less at the end of a request (limit of new tokens, context of the model); that is not modelled here.
Sources: vLLM 0.32 v1/spec_decode/ngram_proposer.py (also `ngram_gpu`), transformers 5.23
generation/candidate_generator.py (`PromptLookupCandidateGenerator`), llama.cpp build 11434 common/ngram-map.cpp
(`common_ngram_simple_draft`, `--spec-type ngram-simple`).
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from executor.drafters.base.drafter import Drafter, Forced
from executor.drafters.prompt_lookup.drafter import PromptLookup, TextDrafter, TextState, match_lengths, suffixes
from executor.target.target_model import Target
from executor.target.tokenizer import end_tokens
from treeopt.errors import UsageError
from treeopt.traces.trace import MAX_DEPTH

NOTHING = -1  # no token is proposed
LARGEST = 1024  # tokens of a match, llama.cpp's limit; the others have none


@dataclass(frozen=True)
class EngineRule(ABC):
    """Proposes a piece of the text; the fields of a rule are its parameters."""

    engine: ClassVar[str]

    @property
    def max_depth(self) -> int:
        """The most tokens that it proposes."""
        return MAX_DEPTH

    @property
    def least(self) -> int:
        """The shortest draft length K at which the engine drafts."""
        return 1

    @property
    def settings(self) -> Mapping[str, Any]:
        """The parameters by name, JSON values."""
        return asdict(self)

    @abstractmethod
    def propose(self, text: Tensor, ends: Tensor, depth: int) -> Tensor:
        """Return the proposed tokens, int64 (b, n, depth), NOTHING behind the last of each piece.

        Args:
            text: int64 (b, columns).
            ends: int64 (b, n), tokens of the text that are read, the root last.
            depth: K.
        """


@dataclass(frozen=True)
class Vllm(EngineRule):
    """The rule of vLLM's methods `ngram` and `ngram_gpu`.

    Attributes:
        shortest: `prompt_lookup_min`.
        longest: `prompt_lookup_max`; vLLM's default is 5 for both, and one that is missing equals the other.
    """

    shortest: int = 5
    longest: int = 5
    engine = "vllm"

    def __post_init__(self) -> None:
        """Raise UsageError, naming the number, if one is out of range."""
        check_size("longest match", self.longest)
        if not 1 <= self.shortest <= self.longest:
            raise UsageError(f"the shortest match must be in 1..{self.longest} (the longest), got {self.shortest}")

    def propose(self, text: Tensor, ends: Tensor, depth: int) -> Tensor:
        """See `EngineRule.propose`."""
        return earliest_of_longest(text, ends, depth, shortest=self.shortest, longest=self.longest)


@dataclass(frozen=True)
class Transformers(EngineRule):
    """The rule of `generate(prompt_lookup_num_tokens=K)` in transformers.

    Attributes:
        longest: `max_matching_ngram_size`, default 2.
        stop: the target's end tokens: a piece ends before the first of them.
    """

    longest: int = 2
    stop: tuple[int, ...] = ()
    engine = "transformers"

    def __post_init__(self) -> None:
        """Raise UsageError, naming the number, if one is out of range."""
        check_size("longest match", self.longest)

    def propose(self, text: Tensor, ends: Tensor, depth: int) -> Tensor:
        """See `EngineRule.propose`; where a stop token follows the match, no other match is tried."""
        tokens = earliest_of_longest(text, ends, depth, shortest=1, longest=self.longest)
        stops = torch.zeros_like(tokens, dtype=torch.bool)
        for token in self.stop:
            stops |= tokens == token
        return torch.where(stops.cumsum(-1) > 0, NOTHING, tokens)


@dataclass(frozen=True)
class LlamaCpp(EngineRule):
    """The rule of llama.cpp's `ngram-simple`.

    Attributes:
        size: `--spec-ngram-simple-size-n`, default 12: tokens that must match, and the least that are proposed before
            the piece is cut to K.
        most: `--spec-ngram-simple-size-m`, default 48: the most tokens that are proposed; llama.cpp's K. A text of
            size + most + 2 tokens or fewer gets nothing.
    """

    size: int = 12
    most: int = 48
    engine = "llama.cpp"

    def __post_init__(self) -> None:
        """Raise UsageError, naming the number, if one is out of range."""
        check_size("match", self.size)
        check_size("piece", self.most)

    @property
    def max_depth(self) -> int:
        """See `EngineRule.max_depth`."""
        return min(self.most, MAX_DEPTH)

    @property
    def least(self) -> int:
        """See `EngineRule.least`."""
        return self.size

    def propose(self, text: Tensor, ends: Tensor, depth: int) -> Tensor:
        """See `EngineRule.propose`.

        The engine's history lacks the last token (the root), so a match may not end at it and neither may a piece.
        """
        length = match_lengths(text, suffixes(text, ends, self.size))
        place = torch.arange(text.shape[1], device=text.device)
        end = ends[..., None]
        # Behind a match that begins at the first token or ends one token before the last, nothing is taken.
        matches = (length == self.size) & (place > self.size) & (place <= end - 2) & (end > self.size + self.most + 2)
        start = torch.where(matches, place, 0).amax(-1)
        count = (ends - 1 - start).clamp(max=self.most)
        return piece(text, start, torch.where((start > 0) & (count >= self.size), count, 0), depth)


def earliest_of_longest(text: Tensor, ends: Tensor, depth: int, *, shortest: int, longest: int) -> Tensor:
    """Return what follows the earliest occurrence of the longest suffix that occurs; see `EngineRule.propose`."""
    length = match_lengths(text, suffixes(text, ends, longest))
    place = torch.arange(text.shape[1], device=text.device)
    length = torch.where((place < ends[..., None]) & (length >= shortest), length, 0)
    best = length.max(-1)  # of equals the first
    return piece(text, best.indices, torch.where(best.values > 0, ends - best.indices, 0), depth)


def piece(text: Tensor, start: Tensor, count: Tensor, depth: int) -> Tensor:
    """Return `count` tokens of the text from `start` on, both (b, n), at most `depth`: int64 (b, n, depth)."""
    step = torch.arange(depth, device=text.device)
    place = (start[..., None] + step).clamp(max=text.shape[1] - 1)
    tokens = text.gather(1, place.flatten(1)).view_as(place)
    return torch.where(step < count[..., None], tokens, NOTHING)


def check_size(name: str, size: int) -> None:
    """Raise UsageError if a number of tokens is out of range."""
    if not 1 <= size <= LARGEST:
        raise UsageError(f"the {name} must be in 1..{LARGEST} tokens, got {size}")


class PieceDrafter(TextDrafter, ABC):
    """Base of drafters that propose one piece or nothing: a token per level, also to children of other nodes."""

    abstains = True

    @abstractmethod
    def propose(self, text: Tensor, ends: Tensor, depth: int) -> Tensor:
        """Return the proposed tokens; see `EngineRule.propose`."""

    @torch.no_grad()
    def level(self, state: TextState, tokens: Tensor, parents: Tensor) -> Tensor:
        """See `Drafter.level`; the piece is looked up at level 0."""
        if state.level == 0:
            state.read = self.propose(state.text[:, : state.view], state.lengths[:, None], state.depth)
        state.level += 1
        return one_token(state.read[..., state.level - 1], state.vocabulary)

    def teacher_forced(
        self, target: Target, tokens: Tensor, features: Tensor, depth: int, *, rows: Tensor | None = None
    ) -> Iterator[Forced]:
        """See `Drafter.teacher_forced`; at row t the text ends with the root x_{t+1} at every depth."""
        anchor = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens) if rows is None else rows
        proposed = self.propose(tokens, anchor + 2, depth)
        for k in range(depth):
            yield Forced(one_token(proposed[..., k], target.vocabulary))


class EngineLookup(PieceDrafter):
    """Proposes the piece of an engine's rule."""

    def __init__(self, rule: EngineRule) -> None:
        """Follow `rule`."""
        super().__init__()
        self.rule = rule
        self.kind = f"{PromptLookup.kind}:{rule.engine}"
        self.max_depth = rule.max_depth
        self.settings: Mapping[str, Any] = {"engine": rule.engine, **rule.settings}
        self.facts: Mapping[str, Any] = {"least": rule.least} if rule.least > 1 else {}

    def propose(self, text: Tensor, ends: Tensor, depth: int) -> Tensor:
        """Follow the rule."""
        return self.rule.propose(text, ends, depth)


def one_token(tokens: Tensor, vocabulary: int) -> Tensor:
    """Return scores that propose one token each, or none: 0 for it, -inf for all others; (..., ) -> (..., vocabulary).

    >>> one_token(torch.tensor([1, -1]), 3)
    tensor([[-inf, 0., -inf],
            [-inf, -inf, -inf]])
    """
    scores = torch.full((*tokens.shape, vocabulary), -torch.inf, device=tokens.device)
    value = torch.where(tokens == NOTHING, -torch.inf, 0.0)
    return scores.scatter_(-1, tokens.clamp(min=0)[..., None], value[..., None])


KIND = PromptLookup.kind
SGLANG = (
    f"{KIND}:sglang: SGLang's NGRAM drafts from one trie of all texts that a server has served, which a thread fills "
    f"while it decodes; what it proposes depends on other requests and on timing, so it cannot be replayed"
)


NUMBER = r"\d{1,20}"
Stops = Callable[[], Sequence[int]]  # end tokens, asked for only by a rule that reads them


def lookup_drafter(name: str, target: Target) -> Drafter | None:
    """Return the drafter of that name; None if the name is not of this family.

    Raises:
        UsageError: an unknown engine, or numbers that are not valid.
    """
    if name != KIND and not name.startswith(f"{KIND}:"):
        return None
    rule = engine_rule(name, lambda: end_tokens(target))
    if rule is not None:
        return EngineLookup(rule)
    size = name.removeprefix(KIND).removeprefix(":")
    if name != KIND and not re.fullmatch(NUMBER, size):
        raise UsageError(f"{name}: must be {KIND} or {KIND}:N, such as {KIND}:5, or {KIND}:ENGINE, such as {KIND}:vllm")
    return (PromptLookup(int(size)) if size else PromptLookup()).to(target.device)


def engine_rule(name: str, stops: Stops = tuple) -> EngineRule | None:
    """Return the engine's rule that a name states; None if it states no engine.

    Args:
        name: such as `prompt-lookup:vllm:2-4`.
        stops: returns the target's end tokens.

    Raises:
        UsageError: an engine whose rule cannot be replayed, or numbers that are not valid.
    """
    kind, _, rest = name.partition(":")
    engine, _, sizes = rest.partition(":")
    if kind != KIND or engine not in {*ENGINES, "sglang"}:
        return None
    if engine == "sglang":
        raise UsageError(SGLANG)
    form, make = ENGINES[engine]
    numbers = sizes.split("-") if name != f"{KIND}:{engine}" else []
    if not all(re.fullmatch(NUMBER, number) for number in numbers) or len(numbers) > 2:
        raise UsageError(f"{name}: must be {KIND}:{engine} or {KIND}:{engine}:{form}")
    return make(name, [int(number) for number in numbers], stops)


def _vllm(name: str, sizes: list[int], stops: Stops) -> EngineRule:
    return Vllm(sizes[0], sizes[-1]) if sizes else Vllm()


def _llama_cpp(name: str, sizes: list[int], stops: Stops) -> EngineRule:
    if len(sizes) == 1:
        raise UsageError(f"{name}: give both sizes, such as {KIND}:llama.cpp:12-48")
    return LlamaCpp(*sizes)


def _transformers(name: str, sizes: list[int], stops: Stops) -> EngineRule:
    if len(sizes) > 1:
        raise UsageError(f"{name}: give one number, max_matching_ngram_size, such as {KIND}:transformers:2")
    stop = tuple(stops())
    return Transformers(sizes[0], stop) if sizes else Transformers(stop=stop)


# Engine -> the form of its numbers, and what makes its rule.
ENGINES: dict[str, tuple[str, Callable[[str, list[int], Stops], EngineRule]]] = {
    "vllm": ("MIN-MAX", _vllm),
    "llama.cpp": ("N-M", _llama_cpp),
    "transformers": ("N", _transformers),
}
