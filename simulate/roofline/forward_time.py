"""Seconds of matrix products and attention on a device, by its data sheet and the constants fitted to its class.

A product of `rows` tokens takes c0 + p-norm(bytes / (eta_b BW), FLOP / (eta_f P)), FLOP rounded up to tiles of rows.
A layer's attention takes a fixed time, one read of each sequence's keys and values, the products of all tokens with
all keys, and the mask of the tree. Constants: `data/hardware.json`; others are said where they stand.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulate.model_sizes.forward_pass import Forward
from simulate.roofline.data_sheets import Fitted, Hardware, load_hardware
from treeopt.errors import CostError

Floats = NDArray[np.float64]

SAME_CLASS_ERROR = 0.10  # products: H100's constants err by 7 % (H200) and 9 % (B200) in the median
FEW_ROWS = 64  # up to which kernels are as the constants say
ACROSS_CLASS_ERROR = 0.25  # by 20 to 22 % on A100; other simulators report 13 to 16 % end to end
EXPERTS_ERROR = 0.35  # uniform-expert bytes on 105 SpecBundle speedups of Qwen3-30B and 235B: mean 16 and 23 %, most 35
ACTIVATION_BYTES = 2
HEAD_BYTES = 2  # quantised models (AWQ, GPTQ) keep their LM heads in bf16
_BEFORE = {"Blackwell": "Hopper"}  # whose share of bandwidth for K/V is taken where a class has none of its own


@dataclass(frozen=True)
class Split:
    """Seconds, parted by what a faster device would shorten.

    Attributes:
        fixed_s: launches and host time; float64.
        work_s: bytes over bandwidth and FLOP over arithmetic; float64, of the same shape.
    """

    fixed_s: Floats
    work_s: Floats

    @classmethod
    def fixed(cls, seconds: float, like: Floats) -> "Split":
        """The same fixed seconds for every element of `like`."""
        return cls(np.full_like(like, seconds), np.zeros_like(like))

    def __add__(self, other: "Split") -> "Split":
        """Both after each other."""
        return Split(self.fixed_s + other.fixed_s, self.work_s + other.work_s)

    @property
    def total_s(self) -> Floats:
        """All seconds."""
        return np.asarray(self.fixed_s + self.work_s)


@dataclass(frozen=True)
class Kernels:
    """A device that runs forwards, one layer after the other.

    Attributes:
        device: data sheet.
        like: a device whose fitted constants are taken where `device` and its class have none.
        attention_s: seconds of a layer's attention beyond its bytes and FLOP.
        layer_s: seconds of a layer's norms, rotations and activations.
        weight_bytes: bytes a weight, of an LM head at least 2; arithmetic is taken to be bf16's whatever it is.
        kv_bytes: bytes of a number in the cache.
        spread: lambda of `Experts.touched`.
    """

    device: Hardware
    like: Hardware | None = None
    attention_s: float = 0.0
    layer_s: float = 0.0
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0
    spread: float = 1.0

    @cached_property
    def constants(self) -> Fitted:
        """Fitted constants of the device, else of its class, else of `like`; the share for K/V is always there.

        Raises:
            CostError: says which are missing.
        """
        found = self.device.fitted or _fitted(self.device.generation) or (self.like.fitted if self.like else None)
        if found is None:
            raise CostError(
                f"{self.device.name}: no constants are known for devices of class {self.device.generation}, only for "
                f"{', '.join(_classes())}; say which device it is like"
            )
        if found.kv_bandwidth_share is None:
            other = self.like.fitted if self.like else _fitted(_BEFORE.get(self.device.generation, ""))
            if other is None or other.kv_bandwidth_share is None:
                raise CostError(f"{self.device.name}: kv_bandwidth_share is not known; say which device it is like")
            found = replace(found, kv_bandwidth_share=other.kv_bandwidth_share)
        return found

    def error(self, rows: int, *, experts: bool = False, devices: int = 1) -> float:
        """The stated error of forwards of so many rows, 95 %, as a share.

        10 % with constants of the device or its class, 25 % where any is of another class, or comes from timings whose
        weights were cached, or beyond 64 rows: there
        kernels change in ways that no data sheet tells. Measured Llama-2-7B layers (Vidur) take at 72 and 136 rows
        1.29 and 1.52 times one row on H100, 1.23 and 1.89 on A100; here it is up to 24 % less. So is that of several
        devices, of whose whole steps only two were looked at: Llama-3.3-70B's in fp8 on two H100 (NVIDIA NIM 1.8.0) are
        10 and 12 % too short. With `experts` 35 %.
        """
        own = self.device.fitted or _fitted(self.device.generation)
        if own is None and self.like is not None and self.like.generation == self.device.generation:
            own = self.like.fitted
        if experts:
            return EXPERTS_ERROR
        sure = own is not None and own.kv_bandwidth_share is not None and not own.weights_cached
        return SAME_CLASS_ERROR if sure and rows <= FEW_ROWS and devices == 1 else ACROSS_CLASS_ERROR

    @property
    def head_bytes(self) -> float:
        """Bytes of a weight of an LM head."""
        return max(self.weight_bytes, HEAD_BYTES)

    @property
    def byte_rate(self) -> float:
        """B/s that products reach."""
        return self.device.bandwidth * self.constants.bandwidth_share

    @property
    def kv_rate(self) -> float:
        """B/s that attention reaches."""
        share = self.constants.kv_bandwidth_share
        assert share is not None
        return self.device.bandwidth * share

    @property
    def flop_rate(self) -> float:
        """FLOP/s that products reach."""
        return self.device.flops * self.constants.flops_share

    def forward(self, forward: Forward, rows: Floats, logits: Floats, *, batch: int, context: int) -> Split:
        """Seconds of a forward.

        Args:
            forward: what it computes.
            rows: tokens of the whole batch; float64.
            logits: those of them whose logits are computed, and read twice more; of the same shape.
            batch: sequences.
            context: tokens of each in the cache.

        Raises:
            CostError: a sliding window would hide part of the context.
        """
        total = Split.fixed(forward.layers * (self.attention_s + self.layer_s), rows)
        for copies, outputs, inputs in (*forward.matrices, *forward.whole):
            total += self.product(copies, outputs, inputs, rows)
        if forward.experts is not None:
            touched = forward.experts.touched(rows, spread=self.spread)
            for outputs, inputs in forward.expert_matrices:
                total += self.product(
                    forward.layers, outputs, inputs, rows, matrices=touched, active=forward.experts.active
                )
        if forward.head is not None:
            outputs, inputs = forward.head
            read_again = 2 * logits * outputs * ACTIVATION_BYTES / self.byte_rate
            total += replace(self, weight_bytes=self.head_bytes).product(1, outputs, inputs, logits)
            total += Split(np.zeros_like(rows), read_again)
        if forward.devices > 1:
            total += self._exchanged(forward, rows, logits)
        return total + Split(np.zeros_like(rows), self._attention(forward, rows / batch, batch, context))

    def product(
        self, copies: int, outputs: int, inputs: int, rows: Floats, *, matrices: ArrayLike = 1, active: int = 1
    ) -> Split:
        """Seconds of `copies` products of `rows` tokens, each of which meets `active` of the `matrices` that are read.

        The p-norm's exponent is 2; fits to timings of operators gave 1.8 to 2.4.
        """
        moved = np.asarray(matrices) * outputs * inputs * self.weight_bytes
        moved = moved + active * rows * (outputs + inputs) * ACTIVATION_BYTES
        flops = 2 * active * outputs * inputs * tiled(rows)
        work = copies * np.hypot(moved / self.byte_rate, flops / self.flop_rate)
        return Split(np.full_like(rows, copies * self.constants.gemm_overhead_s), work)

    def _exchanged(self, forward: Forward, rows: Floats, logits: Floats) -> Split:
        """Seconds of what devices exchange: a sum after each layer's attention and MLP, and the parts of the logits."""
        link, devices = self.device.link, forward.devices
        assert link is not None
        sums = link.sum_s(rows * forward.hidden * ACTIVATION_BYTES, devices=devices)
        count, total = 2 * forward.layers, 2 * forward.layers * sums
        if forward.head is not None:
            whole = logits * forward.head[0] * devices * ACTIVATION_BYTES
            count, total = count + 1, total + link.gather_s(whole, devices=devices)
        fixed = np.full_like(rows, count * link.latency_s)
        return Split(fixed, total - fixed)

    def _attention(self, forward: Forward, tokens: Floats, batch: int, context: int) -> Floats:
        """Seconds of bytes and FLOP of all layers' attention, `tokens` a sequence beside its context."""
        keys = context + tokens
        if forward.window is not None and np.any(keys > forward.window):
            raise CostError(f"context + tokens must fit the sliding window, {forward.window}, got {np.max(keys):g}")
        read = forward.kv_elements * self.kv_bytes * keys + forward.layers * ACTIVATION_BYTES * tokens**2
        flops = 4 * forward.layers * forward.heads * forward.head_dim * tokens * keys
        return np.asarray(batch * (read / self.kv_rate + flops / self.flop_rate))


def tiled(rows: ArrayLike) -> Floats:
    """Rows that a matrix product computes: multiples of 16 up to 64, of 64 above.

    >>> tiled([1, 16, 17, 64, 65, 129]).tolist()
    [16.0, 16.0, 32.0, 64.0, 128.0, 192.0]
    """
    asked = np.asarray(rows, dtype=np.float64)
    tile = np.where(asked <= 64, 16, 64)
    return np.asarray(np.ceil(asked / tile) * tile)


def constants_of(device: Hardware, like: Hardware | None) -> Fitted | None:
    """The constants that a device is priced by; None where none are known."""
    try:
        return Kernels(device, like=like).constants
    except CostError:
        return None


def _fitted(generation: str) -> Fitted | None:
    """Constants of the first shipped device of a class that has any."""
    known = load_hardware().values()
    return next((entry.fitted for entry in known if entry.generation == generation and entry.fitted), None)


def _classes() -> list[str]:
    return list(dict.fromkeys(entry.generation for entry in load_hardware().values() if entry.fitted))
