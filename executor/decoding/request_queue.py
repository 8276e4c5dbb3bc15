"""The request queue: which requests wait, which row each one has, where its text ends; the steps, and their counts.

This is the host's view; `batch_rows` holds the same sequences on the device.
"""

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from executor.decoding.batch_rows import Rows, Tokens
from treeopt.errors import UsageError


@dataclass(frozen=True)
class Generation:
    """The text of one request.

    Attributes:
        tokens: the new tokens, up to the limit or the first stop token (included).
        accepted: drafted tokens accepted in each step (those beyond the end of the text not counted).
        drafted: tokens drafted in each step, the nodes of its tree.
    """

    tokens: tuple[int, ...]
    accepted: tuple[int, ...]
    drafted: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """A step of the batch: the output of each row, cut at the end of its request, and the times.

    Attributes:
        requests: the request of each row, -1 for an idle one.
        committed: tokens that each row emitted; idle rows none.
        accepted: drafted tokens accepted in each row; idle rows 0.
        drafted: tokens drafted in each row, the nodes of its tree; idle rows 0.
        ended: True for each row whose request ended with this step.
        draft_s: seconds of drafting, taking in the last step's outcome included.
        rest_s: seconds of verifying, accepting and committing, and of the host's bookkeeping.
        admit_s: seconds before the step: of prefilling the requests that joined, of capturing CUDA graphs, and of
            earlier steps whose requests had all ended.

    On CUDA seconds are the device's own, from the end of one step to the end of the next: the host's work counts where
    the device waited for it. The caller's work between steps does not count, nor does a step that is under way when the
    last request ends.
    """

    requests: tuple[int, ...]
    committed: tuple[tuple[int, ...], ...]
    accepted: tuple[int, ...]
    drafted: tuple[int, ...]
    ended: tuple[bool, ...]
    draft_s: float = 0.0
    rest_s: float = 0.0
    admit_s: float = 0.0

    @property
    def full(self) -> bool:
        """True if no row was idle."""
        return min(self.requests) >= 0


class Gathered:
    """Steps added up to requests and to counts; the caller computes means from the counts.

    Attributes:
        steps: steps of the batch.
        ended: requests that ended.
        histogram: maps a number of accepted tokens to how often a step of a sequence accepted that number.
        committed: tokens of all sequences.
        draft_s, rest_s, admit_s: seconds, see `Step`.
    """

    def __init__(self) -> None:
        """Begin with no steps."""
        self.steps = self.ended = self.committed = 0
        self.histogram: Counter[int] = Counter()
        self.draft_s = self.rest_s = self.admit_s = 0.0
        self._open: dict[int, tuple[list[int], list[int], list[int]]] = {}

    def add(self, step: Step) -> list[tuple[int, Generation]]:
        """Count a step; return the requests that ended with it, and what they emitted."""
        self.steps += 1
        self.draft_s += step.draft_s
        self.rest_s += step.rest_s
        self.admit_s += step.admit_s
        generations = []
        for request, committed, accepted, drafted, ended in zip(
            step.requests, step.committed, step.accepted, step.drafted, step.ended, strict=True
        ):
            if request < 0:
                continue
            tokens, accepted_so_far, drafted_so_far = self._open.setdefault(request, ([], [], []))
            tokens.extend(committed)
            accepted_so_far.append(accepted)
            drafted_so_far.append(drafted)
            self.committed += len(committed)
            self.histogram[accepted] += 1
            if ended:
                del self._open[request]
                self.ended += 1
                generations.append((request, Generation(tuple(tokens), tuple(accepted_so_far), tuple(drafted_so_far))))
        return generations

    @property
    def tau(self) -> float:
        """Mean tokens committed per step of a sequence; nan before the first step."""
        total = self.histogram.total()
        return self.committed / total if total else math.nan


NewTokens = int | Sequence[int]


@dataclass
class _Row:
    """A row of the batch, as far as the host knows it.

    Attributes:
        request: number of its request; -1: idle.
        length: tokens in the cache, as far as outcomes were read.
        limit: new tokens that its request may have.
        in_flight: tokens that launched steps may still add.
        idle_length: length at which the row stays while it is idle.
        tokens: what its request has emitted.
    """

    request: int = -1
    length: int = 0
    limit: int = 0
    in_flight: int = 0
    idle_length: int = 0
    tokens: list[int] = field(default_factory=list)


class RequestQueue:
    """Requests in order of arrival, and the rows of a batch that they pass through."""

    def __init__(
        self, prompts: Sequence[Tokens], limits: Sequence[int], *, batch: int, stop: Sequence[int], path_tokens: int
    ) -> None:
        """Queue all requests, with a limit of new tokens each; a step commits at most `path_tokens` of a row."""
        self.stop, self.path_tokens = frozenset(map(int, stop)), path_tokens
        self._waiting = deque(zip(range(len(prompts)), prompts, limits, strict=True))
        self._rows = [_Row() for _ in range(batch)]

    @property
    def requests(self) -> tuple[int, ...]:
        """The request of each row, -1 for idle ones."""
        return tuple(row.request for row in self._rows)

    @property
    def busy(self) -> bool:
        """True if any row has a request."""
        return any(row.request >= 0 for row in self._rows)

    @property
    def longest(self) -> int:
        """Most tokens that a row may have in the cache once all launched steps are done."""
        return max(row.length + row.in_flight for row in self._rows)

    @property
    def empty_rows(self) -> list[int]:
        """Idle rows that hold no prompt."""
        return [i for i, row in enumerate(self._rows) if row.request < 0 and not row.idle_length]

    def admit(self, rows: Rows) -> bool:
        """Give idle rows to waiting requests; return True if any request joined."""
        joined: dict[int, tuple[Tokens, int]] = {}  # prompt and number of a row's request
        for i, row in enumerate(self._rows):
            if row.request < 0 and self._waiting:
                request, prompt, limit = self._waiting.popleft()
                filled, joined[i] = len(prompt) - 1, (prompt, request)
                self._rows[i] = _Row(request, filled, limit, idle_length=filled * rows.target.keeps_prompts)
        if joined:
            rows.admit(list(joined), *zip(*joined.values(), strict=True))
        return bool(joined)

    def launch(self) -> None:
        """Count the tokens that a step just launched may add to each busy row."""
        for row in self._rows:
            row.in_flight += self.path_tokens * (row.request >= 0)

    def settle(self, requests: Sequence[int], outcome: Sequence[Sequence[int]]) -> Step:
        """Take in a step's `Rows.outcome`, launched for these requests: cut what lies past their ends, free their rows.

        The step has no times.
        """
        emitted = [self._settle_row(*one) for one in zip(self._rows, requests, outcome, strict=True)]
        numbers, committed, accepted, drafted, ended = zip(*emitted, strict=True)
        return Step(numbers, committed, accepted, drafted, ended)

    def _settle_row(
        self, row: _Row, request: int, outcome: Sequence[int]
    ) -> tuple[int, tuple[int, ...], int, int, bool]:
        """Return the request, committed tokens, accepted and drafted tokens, and True if the request ended."""
        if request < 0 or request != row.request:  # idle, or its end was read after this step had been launched
            return -1, (), 0, 0, False
        accepted, _, drafted = outcome[:3]
        row.length += accepted + 1
        row.in_flight -= self.path_tokens
        tokens = tuple(outcome[3 : 4 + min(accepted, row.limit - len(row.tokens) - 1)])
        stopped = not self.stop.isdisjoint(tokens)
        if stopped:
            tokens = tokens[: 1 + next(i for i, token in enumerate(tokens) if token in self.stop)]
        row.tokens.extend(tokens)
        ended = stopped or len(row.tokens) >= row.limit
        if ended:
            row.request, row.length, row.in_flight = -1, row.idle_length, 0
        return request, tokens, min(accepted, len(tokens)), drafted, ended

    def output(self, row: int) -> Sequence[int]:
        """Return what the row's last request has written."""
        return self._rows[row].tokens

    def idle_lengths(self, ended: Sequence[bool]) -> dict[int, int]:
        """Return the rows whose requests ended, and the length at which each stays."""
        return {i: self._rows[i].idle_length for i, over in enumerate(ended) if over}


def limit_each(new_tokens: NewTokens, requests: int) -> list[int]:
    """Return the limit of each request.

    >>> limit_each(8, requests=2)
    [8, 8]

    Raises:
        UsageError: a limit below 1, or not one for each request.
    """
    limits = [new_tokens] * max(1, requests) if isinstance(new_tokens, int) else list(new_tokens)
    if min(limits, default=1) < 1:
        raise UsageError(f"new tokens must be at least 1, got {min(limits)}")
    if isinstance(new_tokens, int):
        return limits[:requests]
    if len(limits) != requests:
        raise UsageError(f"new tokens must be given for each of {requests} requests, got {len(limits)} numbers")
    return limits
