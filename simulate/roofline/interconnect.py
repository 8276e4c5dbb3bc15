"""Interconnect: seconds that devices of one node take for all-reduces and all-gathers, by bytes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
MOST = 8  # devices of a node; constants were fitted for 2, 4 and 8


@dataclass(frozen=True)
class Link:
    """The link between devices, with constants fitted to timings of vLLM's all-reduces in CUDA graphs.

    Attributes:
        bandwidth: B/s that a device sends, by its data sheet.
        latency_s: seconds of an exchange of almost no bytes.
        share: share of `bandwidth` that is reached, in (0, 1].
        second_s: additional seconds of the two-phase all-reduce (reduce parts, gather them) over the one-phase one
            (every device reads everything).
        source: where the figures come from.
    """

    bandwidth: float
    latency_s: float
    share: float
    second_s: float
    source: str

    def sum_s(self, size: ArrayLike, *, devices: int) -> Floats:
        """Return the seconds of an all-reduce of one array of `size` bytes per device; float64, of its shape.

        Each device reads the arrays of all others, or reduces its part and gathers the rest: whichever is quicker.

        >>> Link(1e9, 1e-6, 0.5, 2e-6, "x").sum_s([500, 50_000], devices=4).round(6).tolist()
        [4e-06, 0.000153]
        """
        sent = np.asarray(size, dtype=np.float64) / (self.share * self.bandwidth)
        one_phase = (devices - 1) * sent
        two_phases = self.second_s + 2 * (devices - 1) / devices * sent
        return np.asarray(self.latency_s + np.minimum(one_phase, two_phases))

    def gather_s(self, size: ArrayLike, *, devices: int) -> Floats:
        """Return the seconds of an all-gather of `size` bytes, of which each device has an equal part."""
        sent = np.asarray(size, dtype=np.float64) / (self.share * self.bandwidth)
        return np.asarray(self.latency_s + (devices - 1) / devices * sent)
