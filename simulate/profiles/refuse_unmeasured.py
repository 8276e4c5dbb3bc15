"""Refuse to price what was not measured: sizes outside a table, instead of an extrapolation; and how to measure them.

Straight lines through two batch sizes are wrong by up to a quarter of step / plain step at twice the larger one, and by
up to 43 % at four times it, mostly too fast (the shipped profiles, tests/simulate/profiles/test_batches_between.py).
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import CostError
from treeopt.storage.provenance import look

NEW_FILE = "profile.json"  # named by the command that measures a profile again

Sizes = NDArray[np.float64] | NDArray[np.int64]
Points = tuple[tuple[int, float], ...]


def check_measured(name: str, sizes: Sizes, points: Points, *, batch: int) -> None:
    """Raise CostError for the first size that lies outside the points of a table.

    Args:
        name: the quantity, for the message: tokens, depth or width.
        sizes: sizes to price.
        points: (size, seconds) by rising size.
        batch: batch size of the table, for the message.

    Raises:
        CostError: names the size and the range that was measured.

    >>> check_measured("tokens", np.array([9]), ((2, 0.5), (8, 0.7)), batch=1)
    Traceback (most recent call last):
    treeopt.errors.CostError: tokens 9 at batch 1: the profile measured tokens 2 to 8
    """
    outside = ~is_measured(sizes, points)
    if outside.any():
        low, high = points[0][0], points[-1][0]
        raise CostError(f"{name} {sizes[outside][0]:g} at batch {batch}: the profile measured {name} {low} to {high}")


def is_measured(sizes: Sizes, points: Points) -> NDArray[np.bool_]:
    """Return which sizes lie within the points of a table; bool, of the shape of `sizes`."""
    return np.asarray((sizes >= points[0][0]) & (sizes <= points[-1][0]))


def outside_of(batches: Sequence[int], sizes: Collection[int]) -> list[int]:
    """Return the batch sizes that lie outside those that were measured.

    >>> outside_of((1, 2, 8), (1, 4))
    [8]
    """
    return [batch for batch in batches if not min(sizes) <= batch <= max(sizes)]


def outside_text(batches: Sequence[int], sizes: Collection[int]) -> str:
    """Return that batch sizes lie outside a profile.

    >>> outside_text((8, 16), (1, 4))
    'batch 8, 16 lie outside the profile, which measured batch 1, 4'
    """
    outside, measured = (", ".join(map(str, numbers)) for numbers in (batches, sizes))
    return (
        f"batch {outside} {'lies' if len(batches) == 1 else 'lie'} outside the profile, which measured batch {measured}"
    )


def way_to_measure(meta: Mapping[str, Any], sizes: Collection[int], *, option: str = "--batch") -> tuple[str, str]:
    """Return how a profile gets further batch sizes or contexts, in words, and the command.

    Words of the command in capitals are for the user to replace.

    Args:
        meta: provenance of the profile, which holds the command that made it.
        sizes: all batch sizes that it shall have, or contexts.
        option: `--context` for contexts.

    >>> recorded = {"command": "treeopt profile --target t --batch 1,4 --drafter d --output old.json"}
    >>> way_to_measure({"provenance": recorded}, (1, 4, 8))
    ('profile again with all of them', 'treeopt profile --target t --drafter d --batch 1,4,8 --output profile.json')
    """
    values = ",".join(map(str, sorted(set(sizes))))
    if look(meta, "imported") is not None:
        table = look(meta, "imported", "file") or "the table"
        return f"add their step times to {table} and read it again with `treeopt times`", ""
    words = str(look(meta, "provenance", "command") or "").split()
    words[:1] = ["treeopt" if word.endswith("__main__.py") else word.rpartition("/")[2] for word in words[:1]]
    if words[:2] == ["treeopt", "whatif"] and any(word.startswith("--profiles") for word in words):
        return "predict all of them", " ".join([*_without(words, option, "--output"), option, values])
    if words[:2] != ["treeopt", "profile"]:
        name = look(meta, "engine", "name") or "ENGINE"
        engine = f" --engine {name}" if look(meta, "engine") is not None else ""
        words = f"treeopt profile{engine} --target TARGET --drafter DRAFTER --prompts PROMPTS".split()
    kept = _without([word for word in words if word != "--force"], option, "--output")
    return "profile again with all of them", " ".join([*kept, option, values, "--output", NEW_FILE])


def _without(words: Sequence[str], *options: str) -> Iterator[str]:
    """Yield the words of a command line without these options and their values."""
    skipped = False
    for word in words:
        option, equals, _ = word.partition("=")
        if skipped:
            skipped = False
        elif option in options:
            skipped = not equals
        else:
            yield word


# Largest error of step / plain step at a batch size that was left out and interpolated, the basis fitted without it:
# over all sizes and all pairs around them in data/profiles and data/gpu (tests/simulate/profiles/test_batches_between).
ONE_THREAD = 0.078
OTHER_DEVICES = 0.156  # a GPU, or several threads of a processor


def batch_shares(batch: int, sizes: Collection[int]) -> tuple[tuple[float, int], ...]:
    """Return the measured batch sizes that price a batch size, with their shares: itself, or the two around it.

    Shares are those of a straight line in the batch size.

    Args:
        batch: batch size to price.
        sizes: batch sizes that were measured.

    Raises:
        CostError: the batch size lies outside those that were measured.

    >>> batch_shares(2, (1, 4)), batch_shares(4, (1, 4))
    (((0.6666666666666667, 1), (0.3333333333333333, 4)), ((1.0, 4),))
    """
    measured = sorted(set(sizes))
    if batch in measured:
        return ((1.0, batch),)
    if outside_of((batch,), measured):
        raise CostError(outside_text((batch,), measured))
    above = bisect_left(measured, batch)
    low, high = measured[above - 1], measured[above]
    share = (batch - low) / (high - low)
    return ((1 - share, low), (share, high))


def error_between(device: str) -> float:
    """Return the half-width of the 95 % interval that interpolation between batch sizes adds to step / plain step.

    Args:
        device: device of the profile, as its provenance names it.

    >>> error_between("cpu, 1 threads") < error_between("NVIDIA H200")
    True
    """
    return ONE_THREAD if device == "cpu, 1 threads" else OTHER_DEVICES
