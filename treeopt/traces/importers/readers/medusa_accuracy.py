"""Import Medusa's `*_heads_accuracy.pt`: for each position and head, which of its top candidates was right.

The script (FasterDecoding/Medusa, medusa/eval/heads_accuracy.py) decodes every prompt greedily for a fixed number of
steps. For head c (0 is the first) it stores a row for each of the first steps − c positions of each prompt: by rank,
True if that candidate is the token c + 1 further on. The heads' rows of a position belong together, so the file holds
the whole joint trace: nothing is averaged, and no denominator is needed.
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
    """Return the trace that the rows make up: one request per prompt, one anchor per step.

    Args:
        heads: bool (prompts · (steps − c), ranks) for each head c.
        prompts: number of prompts; with two heads or more it is computed from the rows of the first two.
        steps: tokens per prompt; computed in the same case.
        meta: `meta` of the trace.

    >>> first, second = np.array([[True, False], [False, True], [False, False]]), np.array([[1, 0], [1, 0]], dtype=bool)
    >>> joint_trace([first, second], meta={}).rank.tolist()
    [[0, 0], [1, 0], [-1, -2]]

    Raises:
        TraceError: other shapes or values; names head and row.
    """
    _check(heads)
    rows = [len(head) for head in heads]
    prompts, steps = _counts(rows, prompts, steps)
    for number, count in enumerate(rows):
        expected = prompts * (steps - number)
        if count != expected or expected <= 0:
            raise TraceError(
                f"head {number} must have {max(expected, 1)} rows ({prompts} prompts of {steps} steps, {number} fewer "
                f"each), found {count}"
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
        raise TraceError(f"must be a list of one array per head, found {type(heads).__name__}; {hint}")
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
            raise TraceError(f"head {number}, row {row} must have at most one true rank, found {ranks}")


def _counts(rows: Sequence[int], prompts: int | None, steps: int | None) -> tuple[int, int]:
    """Return prompts and steps: a head has one row per prompt less than the head before it."""
    if len(rows) > 1:
        fewer = rows[0] - rows[1]
        if fewer <= 0 or rows[0] % fewer:
            raise TraceError(
                "the first head must have steps x prompts rows, the second head one row per prompt less, "
                f"found {rows[0]} and {rows[1]}"
            )
        counts = fewer, rows[0] // fewer
    elif prompts is None and steps is None:
        raise TraceError(f"{rows[0]} rows of one head do not determine the number of prompts: add --prompts or --steps")
    else:
        known = prompts or steps or 1
        if rows[0] % known:
            raise TraceError(f"{rows[0]} rows cannot be divided into {known} {'prompts' if prompts else 'steps'}")
        counts = (known, rows[0] // known) if prompts else (rows[0] // known, known)
    for name, given, number in zip(("prompts", "steps"), (prompts, steps), counts, strict=True):
        if given not in (None, number):
            raise TraceError(f"the rows belong to {number} {name}, --{name} says {given}")
    return counts
