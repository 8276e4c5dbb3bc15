"""Seconds of matrix products: c0 + p-norm(bytes / (eta_b BW), FLOP / (eta_f P)), FLOP rounded up to tiles of rows."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulate.roofline.fixed_and_work import Split

Floats = NDArray[np.float64]

ACTIVATION_BYTES = 2


@dataclass(frozen=True)
class MatrixProducts:
    """The rates at which a device computes matrix products.

    Attributes:
        weight_bytes: bytes per weight; arithmetic counts as bf16 at any size.
        byte_rate: B/s that products reach.
        flop_rate: FLOP/s that products reach.
        overhead_s: c0, seconds of a product beyond its bytes and its FLOP.
    """

    weight_bytes: float
    byte_rate: float
    flop_rate: float
    overhead_s: float

    def seconds(
        self, copies: int, outputs: int, inputs: int, rows: Floats, *, matrices: ArrayLike = 1, active: ArrayLike = 1
    ) -> Split:
        """Return the seconds of `copies` products of `rows` tokens; float64, of the shape of `rows`.

        The p-norm's exponent is 2; fits to timings of operators gave 1.8 to 2.4.

        Args:
            copies: products of this size, one after the other.
            outputs: rows of the matrix.
            inputs: columns of the matrix.
            rows: tokens of the batch.
            matrices: matrices that are read per product: 1, or the experts or groups of rows that the tokens need.
            active: matrices that each token is multiplied with: 1, or the experts or groups of rows that it picks.
        """
        moved = np.asarray(matrices) * outputs * inputs * self.weight_bytes
        moved = moved + np.asarray(active) * rows * (outputs + inputs) * ACTIVATION_BYTES
        flops = 2 * np.asarray(active) * outputs * inputs * tiled_rows(rows)
        work = copies * np.hypot(moved / self.byte_rate, flops / self.flop_rate)
        return Split(np.full_like(rows, copies * self.overhead_s), work)


def tiled_rows(rows: ArrayLike) -> Floats:
    """Return the rows that a matrix product computes: multiples of 16 up to 64, of 64 above.

    >>> tiled([1, 16, 17, 64, 65, 129]).tolist()
    [16.0, 16.0, 32.0, 64.0, 128.0, 192.0]
    """
    used = np.asarray(rows, dtype=np.float64)
    tile = np.where(used <= 64, 16, 64)
    return np.asarray(np.ceil(used / tile) * tile)
