"""Seconds split into a fixed part (launches, host) and work (bytes and FLOP) that a faster device shortens."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Split:
    """Seconds in two parts.

    Attributes:
        fixed_s: launches and host time; float64.
        work_s: bytes over bandwidth and FLOP over arithmetic; float64, of the same shape.

    >>> (Split(np.array([1.0]), np.array([2.0])) + Split.fixed(0.5, np.array([0.0]))).total_s.tolist()
    [3.5]
    """

    fixed_s: Floats
    work_s: Floats

    @classmethod
    def fixed(cls, seconds: float, like: Floats) -> "Split":
        """Return the same fixed seconds for every element of `like`, and no work."""
        return cls(np.full_like(like, seconds), np.zeros_like(like))

    def __add__(self, other: "Split") -> "Split":
        """Return the sum of both, part by part."""
        return Split(self.fixed_s + other.fixed_s, self.work_s + other.work_s)

    @property
    def total_s(self) -> Floats:
        """Sum of both parts."""
        return np.asarray(self.fixed_s + self.work_s)
