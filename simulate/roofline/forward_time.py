"""Seconds of a forward on a device: its matrix products, its attention, and what several devices exchange.

Attention reads each sequence's keys and values once and the tree mask, and multiplies with all keys.
Rates come from the data sheet and from the constants fitted to the device's class (`data/hardware.json`).
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulate.device_memory import HEAD_BYTES
from simulate.model_sizes.forward_pass import Forward
from simulate.roofline.data_sheets import Fitted, Hardware, fitted_for
from simulate.roofline.host_overhead import Overheads

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


ACTIVATION_BYTES = 2
EXPONENT = 3  # of the p-norm of bytes and FLOP; with PASSES fitted to the products and steps of data/gpu/h100.json
PASSES = 2  # of activations through memory between two products


def tiled_rows(rows: ArrayLike) -> Floats:
    """Return the rows that a matrix product computes: multiples of 16 up to 64, of 64 above.

    >>> tiled_rows([1, 16, 17, 64, 65, 129]).tolist()
    [16.0, 16.0, 32.0, 64.0, 128.0, 192.0]
    """
    used = np.asarray(rows, dtype=np.float64)
    tile = np.where(used <= 64, 16, 64)
    return np.asarray(np.ceil(used / tile) * tile)


@dataclass(frozen=True)
class Kernels:
    """A device that runs forwards, one layer after the other.

    Attributes:
        device: data sheet.
        like: a device whose fitted constants are used if `device` and its class have none.
        overheads: seconds of attention, layers and exchanges, and the share of launches that is left.
        weight_bytes: bytes per weight, of an LM head at least 2; arithmetic counts as bf16 at any size.
        kv_bytes: bytes of a number in the cache.
        spread: lambda of `Experts.touched`.
    """

    device: Hardware
    like: Hardware | None = None
    overheads: Overheads = field(default_factory=Overheads.none)
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0
    spread: float = 1.0

    @cached_property
    def constants(self) -> Fitted:
        """Fitted constants; see `fitted_for`.

        Raises:
            CostError: says which constants are missing.
        """
        return fitted_for(self.device, self.like)

    @property
    def head_bytes(self) -> float:
        """Bytes of a weight of an LM head."""
        return max(self.weight_bytes, HEAD_BYTES)

    @cached_property
    def byte_rate(self) -> float:
        """B/s that products reach."""
        return self.device.bandwidth * self.constants.bandwidth_share

    @cached_property
    def kv_rate(self) -> float:
        """B/s that attention reaches."""
        share = self.constants.kv_bandwidth_share
        assert share is not None
        return self.device.bandwidth * share

    @cached_property
    def flop_rate(self) -> float:
        """FLOP/s that products reach."""
        return self.device.flops * self.constants.flops_share

    def product(
        self,
        copies: int,
        outputs: int,
        inputs: int,
        stored: float | None,
        rows: Floats,
        *,
        matrices: ArrayLike = 1,
        active: ArrayLike = 1,
    ) -> Split:
        """Return the seconds of `copies` products of `rows` tokens; float64, of the shape of `rows`.

        The p-norm of bytes and FLOP, and the kernels between products, which read and write activations.

        Args:
            copies: products of this size, one after the other.
            outputs: rows of the matrix.
            inputs: columns of the matrix.
            stored: bytes of a weight; None: as all.
            rows: tokens of the batch.
            matrices: matrices that are read per product: 1, or the experts or groups of rows that the tokens need.
            active: matrices that each token is multiplied with: 1, or the experts or groups of rows that it picks.
        """
        size = self.weight_bytes if stored is None else stored
        activations = np.asarray(active) * rows * (outputs + inputs) * ACTIVATION_BYTES
        read_s = (np.asarray(matrices) * outputs * inputs * size + activations) / self.byte_rate
        multiplied_s = 2 * np.asarray(active) * outputs * inputs * tiled_rows(rows) / self.flop_rate
        product_s = (read_s**EXPONENT + multiplied_s**EXPONENT) ** (1 / EXPONENT)
        fixed_s = copies * self.overheads.launches * self.constants.gemm_overhead_s
        work_s = copies * (product_s + PASSES * activations / self.byte_rate)
        return Split(np.full_like(rows, fixed_s), work_s)

    def attention_s(self, forward: Forward, tokens: Floats, *, batch: int, context: int) -> Floats:
        """Return the seconds of bytes and FLOP of all layers' attention; float64, of the shape of `tokens`.

        Args:
            forward: the forward whose layers attend.
            tokens: tokens per sequence that are computed.
            batch: sequences.
            context: tokens of each sequence in the cache.
        """
        keys = context + tokens
        read, flops = forward.state_bytes * (1 + tokens), np.zeros_like(tokens)  # a state per position is written
        for layers, each in forward.attention:
            read = read + layers * (each.read(keys) * self.kv_bytes + ACTIVATION_BYTES * tokens**2)
            flops = flops + 2 * layers * each.products(keys) * tokens
        return np.asarray(batch * (read / self.kv_rate + flops / self.flop_rate))

    def forward(self, forward: Forward, rows: Floats, logits: Floats, *, batch: int, context: int) -> Split:
        """Return the seconds of a forward; of several groups of devices the one with the most sequences counts.

        Args:
            forward: the forward.
            rows: tokens of the whole batch; float64.
            logits: tokens whose logits are computed, and read twice more; of the same shape.
            batch: sequences.
            context: tokens of each sequence in the cache.
        """
        everywhere, own = rows, math.ceil(batch / forward.groups)
        rows, logits = rows * own / batch, logits * own / batch
        host = self.overheads
        total = Split.fixed(host.launches * forward.layers * (host.attention_s + host.layer_s), rows)
        for copies, outputs, inputs, *stored in (*forward.matrices, *forward.whole):
            total += self.product(copies, outputs, inputs, stored[0] if stored else None, rows)
        for group in forward.routed:
            assert group.experts is not None
            holders = forward.devices if forward.tensor else 1
            touched = group.experts.touched(everywhere, spread=self.spread, sequences=batch) / holders
            active = group.experts.active / holders
            for each in group.expert_matrices:
                sizes = (group.count, each.outputs, each.inputs, each.stored)
                total += self.product(*sizes, everywhere, matrices=touched, active=active)
        total += self.head(forward, logits)
        if forward.devices > 1:
            total += self._exchange(forward, rows, logits)
        attention_s = self.attention_s(forward, rows / own, batch=own, context=context)
        return total + Split(np.zeros_like(rows), attention_s)

    def head(self, forward: Forward, logits: Floats) -> Split:
        """Return the seconds of a forward's LM head, if it has one; its logits are read twice more.

        Of a head in groups, all tokens are multiplied with the groups that some token picks.
        """
        if forward.head is None:
            return Split.fixed(0.0, logits)
        stored = self.head_bytes if forward.head_bytes is None else forward.head_bytes
        (outputs, inputs), groups = forward.head, forward.head_groups
        touched: Floats | int = 1
        if groups is not None:
            outputs, touched = -(-outputs // groups.count), groups.touched(logits, spread=self.spread)
        total = self.product(1, outputs, inputs, stored, logits, matrices=touched, active=touched)
        read_again = 2 * logits * touched * outputs * ACTIVATION_BYTES / self.byte_rate
        return total + Split(np.zeros_like(logits), read_again)

    def _exchange(self, forward: Forward, rows: Floats, logits: Floats) -> Split:
        """Return the seconds of exchange: a sum after each layer's attention and MLP, and the parts of the logits.

        Between several groups each token goes to the devices of its experts, which return their results (DeepSeek-V3,
        arXiv 2412.19437, section 3.2.2): k experts stand on N (1 - (1 - 1 / N)^k) of N devices. All experts are taken
        to be needed equally often, and what is sent to be bf16.
        """
        link, devices, split = self.device.link, forward.devices, forward.tensor or forward.devices
        assert link is not None
        size = rows * forward.hidden * ACTIVATION_BYTES
        routed = [group for group in forward.routed if forward.groups > 1]
        exchanges = 2 * forward.layers - sum(group.count for group in routed) if split > 1 else 0
        total_s = exchanges * link.sum_s(size, devices=split)
        for group in routed:
            assert group.experts is not None
            copies = devices * (1 - (1 - 1 / devices) ** group.experts.active)
            exchanges += 2 * group.count
            total_s = total_s + 2 * group.count * link.gather_s(copies * size / split, devices=devices)
        if forward.head is not None and split > 1:
            logit_bytes = logits * forward.head[0] * split * ACTIVATION_BYTES
            exchanges, total_s = exchanges + 1, total_s + link.gather_s(logit_bytes, devices=split)
        fixed_s = np.full_like(rows, exchanges * link.latency_s)
        return Split(fixed_s + exchanges * self.overheads.exchange_s, total_s - fixed_s)
