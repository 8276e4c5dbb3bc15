"""Medusa's `*_heads_accuracy.pt`: which of each head's top candidates came true, position by position.

The script (FasterDecoding/Medusa, medusa/eval/heads_accuracy.py) decodes every prompt greedily for a fixed number of
steps and keeps, of head c (0 is the first), a row for each of the first steps − c positions of each prompt: for each
rank, whether that candidate is the token c + 1 further on. Rows of one position belong together over the heads, so the
whole joint trace is there: nothing is averaged, and no denominator has to be known.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError
from treeopt.traces.trace import Trace
from treeopt.traces.trace_checks import MAX_DEPTH, MAX_WIDTH, MISSED, PAST_END

ASSUMED = ("texts run for a fixed number of tokens: the script does not stop where the target would",)


def joint_trace(
    heads: Sequence[NDArray[Any]],
    *,
    prompts: int | None = None,
    steps: int | None = None,
    meta: Mapping[str, Any],
) -> Trace:
    """The trace that the rows make up: one request a prompt, one anchor a step.

    Args:
        heads: bool (prompts · (steps − c), ranks) of each head c.
        prompts: how many; found from the first two heads' rows where there are two.
        steps: how many tokens of each prompt; likewise.
        meta: of the trace.

    >>> first, second = np.array([[True, False], [False, True], [False, False]]), np.array([[1, 0], [1, 0]], dtype=bool)
    >>> joint_trace([first, second], meta={}).rank.tolist()
    [[0, 0], [1, 0], [-1, -2]]

    Raises:
        TraceError: other values than these; names head and row.
    """
    _check(heads)
    rows = [len(head) for head in heads]
    prompts, steps = _counts(rows, prompts, steps)
    for number, found in enumerate(rows):
        due = prompts * (steps - number)
        if found != due or due <= 0:
            raise TraceError(
                f"head {number} must have {max(due, 1)} rows ({prompts} prompts of {steps} steps, {number} fewer "
                f"each), found {found}"
            )
    rank = np.full((prompts, steps, len(heads)), PAST_END, dtype=np.int16)
    for number, head in enumerate(heads):
        best = np.where(head.any(axis=1), head.argmax(axis=1), MISSED)
        rank[:, : steps - number, number] = best.reshape(prompts, steps - number)
    return Trace(
        request=np.repeat(np.arange(prompts, dtype=np.int32), steps),
        position=np.tile(np.arange(steps, dtype=np.int32), prompts),
        rank=rank.reshape(-1, len(heads)),
        width=heads[0].shape[1],
        meta=meta,
    )


def _check(heads: Any) -> None:
    hint = "averaged figures are a positional table (--format table)"
    if not isinstance(heads, list | tuple) or not heads:
        raise TraceError(f"must be a list of one array a head, found {type(heads).__name__}; {hint}")
    if len(heads) > MAX_DEPTH:
        raise TraceError(f"a trace has at most {MAX_DEPTH} depths, found {len(heads)} heads")
    for number, head in enumerate(heads):
        if not isinstance(head, np.ndarray) or head.dtype != np.bool_:
            found = getattr(head, "dtype", type(head).__name__)
            raise TraceError(f"head {number} must hold truth values, found {found}; {hint}")
        if head.ndim != 2 or head.shape[1] != heads[0].shape[-1] or not 1 <= head.shape[1] <= MAX_WIDTH:
            raise TraceError(f"head {number} must be (rows, ranks) with ranks as head 0, found {head.shape}")
        twice = head.sum(axis=1) > 1
        if twice.any():
            row = int(np.argmax(twice))
            ranks = np.flatnonzero(head[row]).tolist()
            raise TraceError(f"head {number}, row {row} must have one true rank at most, found {ranks}")


def _counts(rows: Sequence[int], prompts: int | None, steps: int | None) -> tuple[int, int]:
    """Prompts and steps: a head has one row less a prompt than the head before it."""
    if len(rows) > 1:
        fewer = rows[0] - rows[1]
        if fewer <= 0 or rows[0] % fewer:
            raise TraceError(
                f"the first head must have steps x prompts rows and the second one less a prompt, found {rows[0]} "
                f"and {rows[1]}"
            )
        found = fewer, rows[0] // fewer
    elif prompts is None and steps is None:
        raise TraceError(f"one head of {rows[0]} rows does not tell how many prompts: give --prompts or --steps")
    else:
        known = prompts or steps or 1
        if rows[0] % known:
            raise TraceError(f"{rows[0]} rows cannot be {known} {'prompts' if prompts else 'steps'}")
        found = (known, rows[0] // known) if prompts else (rows[0] // known, known)
    for name, given, number in zip(("prompts", "steps"), (prompts, steps), found, strict=True):
        if given not in (None, number):
            raise TraceError(f"the rows are of {number} {name}, asked for {given}")
    return found
