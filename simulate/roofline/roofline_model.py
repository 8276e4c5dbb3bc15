"""An analytic cost model for hardware on which nothing was measured: sizes of the models, a data sheet, host time.

A step verifies batch x tokens rows (`kernels`), runs the drafter once a level, moves the keys and values of
what was accepted, and spends host time as `Overheads` says. Several devices of a node share every layer. Not covered:
in the drafter's attention the nodes of earlier levels (a level's own are counted).
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulate.model_sizes.drafter_sizes import DrafterShape
from simulate.model_sizes.forward_pass import Forward
from simulate.model_sizes.model_shape import Shape
from simulate.roofline.data_sheets import Hardware, load_hardware
from simulate.roofline.forward_time import Kernels, Split
from simulate.roofline.interconnect import MOST
from treeopt.cost_model import CostParts, StepShape
from treeopt.errors import CostError, UsageError

Floats = NDArray[np.float64]
WIDEST = 1024  # bytes of a number
PIECE = 2048  # tokens of a prompt that engines compute at once, about


@dataclass(frozen=True)
class Overheads:
    """Seconds that no byte and no FLOP explains, on an engine with little host time.

    Attributes:
        step_s: host time of a speculative step. SpecDecode-Bench (arXiv 2601.11580), vLLM on H100: 1.207 ms.
        plain_s: host time of a plain step. Published steps of good engines exceed the device's time by 0.4 to 1.2 ms.
        level_s: host time of a drafted level. SpecBundle (SGLang, H200): 0.35 ms a level, of which about 0.24 are the
            device's by these equations.
        request_s: host time a sequence and step. Fitted by BLIS to serving runs on H100.
        attention_s: a layer's attention beyond its bytes and FLOP. Operator timings on Hopper: about 12 us.
        layer_s: a layer's norms, rotations and activations; with four products and attention 35 us a layer on H100,
            where BLIS fitted 32.

    Raises:
        UsageError: one is below 0 or not finite.

    >>> Overheads.none().step_s
    0.0
    """

    step_s: float = 1.2e-3
    plain_s: float = 0.8e-3
    level_s: float = 1.1e-4
    request_s: float = 4.4e-6
    attention_s: float = 12e-6
    layer_s: float = 8e-6

    def __post_init__(self) -> None:
        """Check every field."""
        for entry in fields(self):
            value = getattr(self, entry.name)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{entry.name} must be a finite number, 0 or more, got {value}")

    @classmethod
    def none(cls) -> "Overheads":
        """No overhead at all: products with their c0, bytes and FLOP alone."""
        return cls(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Roofline:
    """Predicted step times of a target and a drafter on a device: a `CostModel` with a stated error, nothing measured.

    Attributes:
        target: sizes of the target.
        drafter: sizes of the drafter.
        device: data sheet.
        like: a device whose fitted constants are taken where `device` and its class have none.
        context: tokens a sequence in the cache where a shape does not say.
        overheads: host time and launches.
        weight_bytes: bytes a weight of the target, 2 for bf16, of LM heads at least that; arithmetic is taken to be
            bf16's whatever it is.
        draft_bytes: bytes a weight of the drafter.
        devices: of one node that share every layer of target and drafter (tensor parallelism).
        kv_bytes: bytes of a number in the cache.
        spread: lambda of `Experts.touched`; real routing touches 0.8 to 0.9 of what uniform routing does.
        committed: tokens a sequence that a step is taken to commit where a shape does not say: the drafter reads them
            first, and their keys and values are moved.
        captured: rows for which CUDA graphs were captured, rising; a target's forward is padded to the next.

    Raises:
        CostError: no fitted constants for the device or for what several exchange, or a size that is none.
    """

    target: Shape
    drafter: DrafterShape
    device: Hardware
    like: Hardware | None = None
    context: int = 512
    overheads: Overheads = field(default_factory=Overheads)
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0
    spread: float = 0.85
    committed: float = 1.0
    captured: tuple[int, ...] = ()
    draft_bytes: float = 2.0
    devices: int = 1

    def __post_init__(self) -> None:
        """Check the sizes, and that constants are known."""
        for name, least in (("context", 0), ("committed", 1)):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= least):
                raise CostError(f"{name} must be {least} or more, got {getattr(self, name)}")
        for name in ("weight_bytes", "draft_bytes", "kv_bytes"):
            if not 0 < getattr(self, name) <= WIDEST:
                raise CostError(f"{name} must be above 0 and at most {WIDEST}, got {getattr(self, name)}")
        if not 0 < self.spread <= 1:
            raise CostError(f"spread must be above 0 and at most 1, got {self.spread}")
        if list(self.captured) != sorted(set(self.captured)) or any(size < 1 for size in self.captured):
            raise CostError(f"captured must be rising sizes of at least 1, got {self.captured}")
        if not 1 <= self.devices <= MOST:
            raise CostError(f"devices must be 1 to {MOST}, those of one node, got {self.devices}")
        if self.devices > 1 and self.device.link is None:
            known = ", ".join(name for name, device in load_hardware().items() if device.link)
            raise CostError(
                f"{self.device.name}: how fast several exchange is not known, only of {known}: say it with --link"
            )
        _ = self.kernels.constants, self.forward, self.drafts

    @property
    def label(self) -> str:
        """What the device is called, or the devices."""
        return self.device.name if self.devices == 1 else f"{self.devices} x {self.device.name}"

    @cached_property
    def kernels(self) -> Kernels:
        """The device with the settings of this model."""
        return Kernels(
            self.device,
            self.like,
            attention_s=self.overheads.attention_s,
            layer_s=self.overheads.layer_s,
            weight_bytes=self.weight_bytes,
            kv_bytes=self.kv_bytes,
            spread=self.spread,
        )

    @cached_property
    def draft_kernels(self) -> Kernels:
        """The same with the drafter's weights."""
        return replace(self.kernels, weight_bytes=self.draft_bytes)

    @cached_property
    def forward(self) -> Forward:
        """The target's forward, of one device."""
        with _named("target"):
            return Forward.of(self.target).shared(self.devices)

    @cached_property
    def drafts(self) -> DrafterShape:
        """The drafter's forwards, of one device."""
        with _named("drafter"):
            return self.drafter.shared(self.devices)

    @property
    def separable(self) -> bool:
        """True for parallel heads: no level is drafted from the nodes of another."""
        return self.drafter.parallel

    @property
    def growths(self) -> Collection[str]:
        """None: trees that are drawn anew are priced as static ones."""
        return ()

    @property
    def meta(self) -> Mapping[str, Any]:
        """Provenance: that nothing was measured, the device, its constants and all settings."""
        settings = ("context", "weight_bytes", "draft_bytes", "kv_bytes", "spread", "committed", "captured")
        return {
            "kind": "roofline: predicted from sizes and a data sheet, nothing measured",
            "device": self.label,
            "source": self.device.source,
            "constants": asdict(self.kernels.constants),
            "link": asdict(self.device.link) if self.device.link and self.devices > 1 else None,
            "target": asdict(self.target),
            "drafter": asdict(self.drafter),
            "overheads": asdict(self.overheads),
            "settings": {name: getattr(self, name) for name in settings},
        }

    def step_s(self, shapes: Sequence[StepShape]) -> Floats:
        """See `CostModel.step_s`."""
        seconds = np.empty(len(shapes))
        for at in {(shape.batch, shape.context, shape.committed) for shape in shapes}:
            chosen = [i for i, shape in enumerate(shapes) if (shape.batch, shape.context, shape.committed) == at]
            batch, context, committed = at
            model = self if committed is None else replace(self, committed=committed)
            depth = max(len(shapes[i].widths) for i in chosen)
            padded = [shapes[i].widths + (0,) * (depth - len(shapes[i].widths)) for i in chosen]
            widths = np.array(padded, dtype=np.int64).reshape(len(chosen), depth)
            tokens = np.array([shapes[i].tokens for i in chosen])
            width = int(widths.max(initial=0))
            table = model.parts(batch=batch, tokens=int(tokens.max()), depth=depth, width=width, context=context)
            seconds[chosen] = table.step_s(tokens, widths)
        return seconds

    def error(self, shape: StepShape) -> float:
        """See `Kernels.error`; stated, not measured."""
        experts = any(forward.experts is not None for forward in (self.forward, self.drafter.level))
        return self.kernels.error(shape.batch * shape.tokens, experts=experts, devices=self.devices)

    def plain_s(self, *, batch: int, context: int | None = None) -> float:
        """See `CostModel.plain_s`."""
        return float(self.plain(batch=batch, context=context).total_s)

    def parts(self, *, batch: int, tokens: int, depth: int, width: int, context: int | None = None) -> CostParts:
        """See `CostModel.parts`."""
        verify = self.verify(np.arange(1, tokens + 1), batch=batch, context=context).total_s
        draft, fed = np.zeros((depth, width + 1)), np.arange(1, width + 1)
        for level in range(min(depth, max(2, 1 + len(self.drafter.deeper)))):  # all later ones are alike
            draft[level:, 1:] = self.level(fed, batch=batch, depth=level, context=context).total_s
        return CostParts(np.concatenate(([np.inf], verify)), draft)

    def plain(self, *, batch: int, context: int | None = None) -> Split:
        """A plain decoding step; arrays without dimensions."""
        rows = self._padded(np.asarray(batch, dtype=np.float64))
        logits = np.full_like(rows, batch)
        step = self.kernels.forward(self.forward, rows, logits, batch=batch, context=self._context(context))
        return step + Split.fixed(self.overheads.plain_s + self.overheads.request_s * batch, rows)

    def verify(self, tokens: ArrayLike, *, batch: int, context: int | None = None) -> Split:
        """What a speculative step does besides drafting, by verified tokens a sequence; float64, of their shape."""
        rows = self._padded(batch * np.asarray(tokens, dtype=np.float64))
        step = self.kernels.forward(self.forward, rows, rows, batch=batch, context=self._context(context))
        moved = 2 * self.committed * batch * self.forward.kv_elements * self.kv_bytes
        host = self.overheads.step_s + self.overheads.request_s * batch
        return step + Split(np.full_like(rows, host), np.full_like(rows, moved / self.kernels.kv_rate))

    def level(self, fed: ArrayLike, *, batch: int, depth: int = 1, context: int | None = None) -> Split:
        """Drafting one level, by nodes a sequence that the drafter is fed; float64, of their shape.

        At the first level, of depth 0, a drafter that attends also reads what the last step committed; parallel heads
        read one token a sequence whatever is fed, and the host waits for them once.
        """
        forward, opening = self.drafts.at(depth), self.drafts.opening if depth == 0 else None
        nodes = np.asarray(fed, dtype=np.float64)
        wait = 0.0 if self.drafter.parallel and depth else self.overheads.level_s
        logits = np.full_like(nodes, batch) if self.drafter.parallel else batch * nodes
        again = batch * (self.committed - 1) if depth == 0 and forward.layers and not self.drafter.parallel else 0
        where: dict[str, Any] = {"batch": batch, "context": self._context(context)}
        step = self.draft_kernels.forward(forward, logits + again, logits, **where)
        if opening is not None:
            step += self.draft_kernels.forward(opening, np.full_like(nodes, batch * self.committed), logits, **where)
        return step + Split.fixed(wait, nodes)

    def chain(self, depth: int, *, batch: int, context: int | None = None) -> Split:
        """Drafting chains of 1 to `depth`; float64 (depth,)."""
        levels = [self.level(1, batch=batch, depth=before, context=context) for before in range(depth)]
        return Split(*(np.cumsum([getattr(each, part) for each in levels]) for part in ("fixed_s", "work_s")))

    def prefill(self, tokens: int, *, drafted: bool) -> Split:
        """Reading a prompt of so many tokens by itself, in pieces; arrays without dimensions.

        All tokens but the last are read, which is the root of the first step; no logits are computed. Every token sees
        those before it, half of its own piece in the mean, and no more than a sliding window.

        Args:
            tokens: of the prompt.
            drafted: a sequential drafter reads it, too.
        """

        def read(kernels: Kernels, forward: Forward, start: int, rows: Floats) -> Split:
            before = start - int(rows) // 2
            if forward.window is not None:
                before = min(before, forward.window - int(rows))
            bare = replace(forward, head=None, window=None)
            return kernels.forward(bare, rows, np.zeros(()), batch=1, context=before)

        total = Split.fixed(0.0, np.zeros(()))
        for start in range(0, tokens - 1, PIECE):
            rows = np.asarray(float(min(PIECE, tokens - 1 - start)))
            total += read(self.kernels, self.forward, start, rows) + Split.fixed(self.overheads.plain_s, rows)
            for forward in self.drafts.read if drafted else ():
                total += read(self.draft_kernels, forward, start, rows)
        return total

    def weights_bytes(self, *, heads: int = 1) -> float:
        """Least bytes of a device's memory that weights of target and drafter take, `heads` being of such a drafter.

        Not counted: a drafter's embedding, experts that a token of it does not pick, norms, and an LM head of the size
        of the target's, which a sequential drafter is taken to share. A head's blocks count as often as they are
        applied, which of Hydra++'s, one and the same, is more than is held.
        """
        embeddings = (2 - self.target.tied) * self.target.vocab * self.target.hidden
        target = (self.target.parameters - embeddings) * self.weight_bytes + embeddings * self.kernels.head_bytes
        own = self.drafter.parallel or bool(self.drafter.deeper)  # heads, each with an LM head of its own
        drafter = 0.0
        levels = heads if self.drafter.parallel else min(heads, 1 + len(self.drafter.deeper))
        for forward in [self.drafts.at(depth) for depth in range(levels)]:
            head = 0 if forward.head is None else forward.head[0] * forward.head[1]
            held = head if own or forward.head != self.forward.head else 0
            drafter += (forward.weights - head) * self.draft_bytes + held * self.draft_kernels.head_bytes
        once = 0 if self.drafts.opening is None else self.drafts.opening.weights
        return target / self.devices + drafter + once * self.draft_bytes

    def sequence_bytes(self, *, context: int | None = None) -> float:
        """Bytes of a device's memory that keys and values of a sequence take, the target's and the drafter's."""
        layers = [self.forward, self.drafts.level, *([self.drafts.opening] if self.drafts.opening else [])]
        return sum(forward.kv_elements for forward in layers) * self.kv_bytes * self._context(context)

    def _context(self, context: int | None) -> int:
        return self.context if context is None else context

    def _padded(self, rows: Floats) -> Floats:
        """Rows that are computed: those of the next captured size, or as they are beyond the largest."""
        sizes = np.array([*self.captured, np.inf])
        padded = sizes[np.searchsorted(sizes, rows)]
        return np.where(np.isinf(padded), rows, padded)


@contextmanager
def _named(which: str) -> Iterator[None]:
    """Says of which model an error is."""
    try:
        yield
    except CostError as error:
        raise CostError(f"{which}: {error}") from error
