"""Batch sizes between two profiled ones: which measured sizes price them, and the error that this adds.

Drafting and plain steps lie on a straight line between the two batch sizes. For the rest of a step, the ratio of the
measurement to the fitted `Basis` is interpolated at the same number of rows (batch x tokens), because kernels compute
rows: on a GPU a tree that is free at one sequence is not free at 16. A profile without a basis gets one fitted to its
points.
"""

from bisect import bisect_left
from collections.abc import Collection

from simulate.profiles.refuse_unmeasured import outside_of, outside_text
from treeopt.errors import CostError

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
