"""How devices of one node exchange what each of them computed of a layer: sums and parts, by bytes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
MOST = 8  # devices of a node; constants are of 2, 4 and 8


@dataclass(frozen=True)
class Link:
    """What a device sends to others, and constants fitted to timings of vLLM's all-reduces in CUDA graphs.

    Attributes:
        bandwidth: B/s that a device sends, by its data sheet.
        latency_s: seconds of an exchange of next to nothing.
        share: share of `bandwidth` that is reached, in (0, 1].
        second_s: seconds that reducing parts and gathering them takes more than having everyone read everything.
        source: where the figures come from.
    """

    bandwidth: float
    latency_s: float
    share: float
    second_s: float
    source: str

    def sum_s(self, size: ArrayLike, *, devices: int) -> Floats:
        """Seconds until all devices have the sum of as many arrays of `size` bytes; float64, of its shape.

        Each reads those of all others, or reduces its part and gathers the rest: whichever is quicker.

        >>> Link(1e9, 1e-6, 0.5, 2e-6, "x").sum_s([500, 50_000], devices=4).round(6).tolist()
        [4e-06, 0.000153]
        """
        sent = np.asarray(size, dtype=np.float64) / (self.share * self.bandwidth)
        once = (devices - 1) * sent
        twice = self.second_s + 2 * (devices - 1) / devices * sent
        return np.asarray(self.latency_s + np.minimum(once, twice))

    def gather_s(self, size: ArrayLike, *, devices: int) -> Floats:
        """Seconds until all devices have an array of `size` bytes that each has an equal part of."""
        sent = np.asarray(size, dtype=np.float64) / (self.share * self.bandwidth)
        return np.asarray(self.latency_s + (devices - 1) / devices * sent)
