"""Results of the decoding loop: its steps, what each request emitted, and the counts that they add up to."""

import math
from collections import Counter
from dataclasses import dataclass


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
    """A step of the batch.

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
    draft_s: float
    rest_s: float
    admit_s: float

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
