"""Steps that were launched and are read late, and the seconds that belong to each of them.

On an accelerator the host launches a step before it reads the outcome of the last one, so that the device never waits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from executor.device.clock import Clock, Mark, elapsed_s


@dataclass(frozen=True)
class StepMarks:
    """Marks of one step on the device's time line.

    Attributes:
        away: marks between which the caller had the last step, if the device's clock ran on meanwhile.
        begun: the step begins; requests are admitted.
        admitted: they are; the same mark as `begun` if none joined.
        started: drafting begins; between `admitted` and this, CUDA graphs are captured.
        drafted: the trees are drafted.
        done: the outcome is written.
    """

    away: tuple[Mark, Mark] | None
    begun: Mark
    admitted: Mark
    started: Mark
    drafted: Mark
    done: Mark

    @property
    def seconds(self) -> tuple[float, float, float]:
        """Seconds of admitting, of drafting, and of all else; the step must have been read."""
        away_s = 0.0 if self.away is None else elapsed_s(*self.away)
        admit_s, draft_s = elapsed_s(self.begun, self.admitted), elapsed_s(self.started, self.drafted)
        if self.admitted is not self.begun:
            admit_s -= away_s
        elif self.started is self.begun:
            draft_s -= away_s
        return admit_s, draft_s, elapsed_s(self.drafted, self.done)


@dataclass(frozen=True)
class LaunchedStep:
    """A step that the device has been given: the requests of its rows, where its outcome will stand, and its marks."""

    requests: tuple[int, ...]
    outcome: Tensor
    marks: StepMarks

    def read(self) -> list[list[int]]:
        """Return the outcome, a list per row; the one time in a step that the host reads from the device."""
        if isinstance(self.marks.done, torch.cuda.Event):
            self.marks.done.synchronize()
        outcome: list[list[int]] = self.outcome.tolist()
        return outcome


class StepTimer:
    """The time line of a run: steps begin where the last one ended, and pauses with the caller count nowhere."""

    def __init__(self, clock: Clock) -> None:
        """Begin with no step done."""
        self.clock = clock
        self._last_done: Mark | None = None
        self._paused: Mark | None = None
        self._away: tuple[Mark, Mark] | None = None

    def begin(self) -> Mark:
        """Mark the beginning of a step.

        A device that runs after the host begins a step when it is done with the last one, even if it then waits.
        """
        if self._last_done is not None and self.clock.queued:
            return self._last_done
        return self.clock.mark()

    def finish(self, begun: Mark, admitted: Mark, started: Mark, drafted: Mark) -> StepMarks:
        """Mark the end of a step."""
        marks = StepMarks(self._away, begun, admitted, started, drafted, self.clock.mark())
        self._last_done, self._away = marks.done, None
        return marks

    def pause(self) -> None:
        """Mark that the caller is given a step."""
        self._paused = self.clock.mark() if self.clock.queued else None

    def resume(self) -> None:
        """Mark that the caller asks for the next step."""
        self._away = None if self._paused is None else (self._paused, self.clock.mark())


def copy_to_host(outcome: Tensor, *, queued: bool, late: bool) -> Tensor:
    """Return the outcome where it survives the next step; on a device with a queue the copy does not wait.

    Args:
        outcome: int64 (batch, depth + 4), overwritten by the next step.
        queued: the device runs after the host.
        late: the outcome is read after the next step was launched.
    """
    if queued:
        pinned = torch.empty(outcome.shape, dtype=outcome.dtype, pin_memory=True)
        pinned.copy_(outcome, non_blocking=True)
        return pinned
    return outcome.clone() if late else outcome
