"""Seconds of attention: one read of each sequence's keys and values, the tree mask, and products with all keys."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulate.model_sizes.forward_pass import Forward
from simulate.roofline.matrix_products import ACTIVATION_BYTES
from treeopt.errors import CostError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Attention:
    """The rates at which a device computes attention.

    Attributes:
        kv_bytes: bytes of a number in the cache.
        kv_rate: B/s that attention reaches.
        flop_rate: FLOP/s that products reach.
    """

    kv_bytes: float
    kv_rate: float
    flop_rate: float

    def work_s(self, forward: Forward, tokens: Floats, *, batch: int, context: int) -> Floats:
        """Return the seconds of bytes and FLOP of all layers' attention; float64, of the shape of `tokens`.

        Args:
            forward: the forward whose layers attend.
            tokens: tokens per sequence that are computed.
            batch: sequences.
            context: tokens of each sequence in the cache.

        Raises:
            CostError: a sliding window of some layers would hide part of the context.
        """
        keys = context + tokens
        if forward.slides and forward.window is not None:
            keys = np.minimum(keys, forward.window)
        elif forward.window is not None and np.any(keys > forward.window):
            raise CostError(f"context + tokens must fit the sliding window, {forward.window}, got {np.max(keys):g}")
        read = forward.kv_elements * self.kv_bytes * keys + forward.layers * ACTIVATION_BYTES * tokens**2
        flops = 4 * forward.layers * forward.heads * forward.head_dim * tokens * keys
        return np.asarray(batch * (read / self.kv_rate + flops / self.flop_rate))
