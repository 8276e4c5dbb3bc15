"""The roofline cost model for devices that were not measured: model sizes, a data sheet, host time.

A step verifies batch x tokens rows (`forward_time`), runs the drafter once per level, moves the keys and values of
the accepted tokens, and spends host time (`data_sheets`). Several devices of a node share every layer. Not covered:
in the drafter's attention the nodes of earlier levels (a level's own nodes are counted).
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulate.drafter_kinds import DrafterShape
from simulate.model_sizes.forward_pass import Forward
from simulate.model_sizes.model_shape import Shape
from simulate.roofline.data_sheets import MOST, ROWS_ERROR, Hardware, load_hardware, stated_error
from simulate.roofline.forward_time import Kernels, Split
from simulate.roofline.host_overhead import Overheads
from treeopt.cost_model import CostParts, StepShape
from treeopt.errors import CostError

Floats = NDArray[np.float64]
SLOW_ROWS = 8  # rows that kernels for quantised weights multiply one by one (llama.cpp)
WIDEST = 1024  # largest accepted size of a number, in bytes
PIECE = 2048  # tokens of a prompt that engines compute at once, about


@dataclass(frozen=True)
class Roofline:
    """Predicted step times of a target and a drafter on a device: a `CostModel` with a stated error, nothing measured.

    Attributes:
        target: sizes of the target.
        drafter: sizes of the drafter.
        device: data sheet.
        like: a device whose fitted constants are used if `device` and its class have none.
        context: tokens per sequence in the cache where a shape does not state them.
        overheads: host time and launches.
        weight_bytes: bytes per weight of the target, 2 for bf16, of LM heads at least that; arithmetic counts as bf16
            at any size.
        draft_bytes: bytes per weight of the drafter.
        devices: devices of one node that share every layer of target and drafter (tensor parallelism).
        tensor: devices of a group that shares every layer and has sequences of its own, while the experts are spread
            over all devices (expert parallelism); 0: all devices share everything.
        kv_bytes: bytes of a number in the cache.
        spread: lambda of `Experts.touched`; 0.6 is fitted to SpecBundle's Qwen3-30B-A3B and 235B-A22B (105 speedups).
        committed: tokens per sequence that a step commits where a shape does not state them: the drafter reads them
            first, and their keys and values are moved.
        observed_rows: rows of the largest step that the model was shifted to, whose error the overheads state; 0: none.

    Raises:
        CostError: constants of the device or of its interconnect are not known, or a size is out of range.
    """

    target: Shape
    drafter: DrafterShape
    device: Hardware
    like: Hardware | None = None
    context: int = 512
    overheads: Overheads = field(default_factory=Overheads)
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0
    spread: float = 0.6
    committed: float = 1.0
    draft_bytes: float = 2.0
    devices: int = 1
    tensor: int = 0
    observed_rows: int = 0

    def __post_init__(self) -> None:
        """Check the sizes, and that constants are known."""
        for name in ("weight_bytes", "draft_bytes", "kv_bytes"):
            if not 0 < getattr(self, name) <= WIDEST:
                raise CostError(f"{name} must be above 0 and at most {WIDEST}, got {getattr(self, name)}")
        if not 1 <= self.devices <= MOST:
            raise CostError(f"devices must be 1 to {MOST}, those of one node, got {self.devices}")
        if self.tensor and (self.target.experts is None or self.devices % self.tensor):
            raise CostError("experts can be spread over devices in equal groups, of a target that has experts")
        if self.devices > 1 and self.device.link is None:
            known = ", ".join(name for name, device in load_hardware().items() if device.link)
            raise CostError(
                f"{self.device.name}: the speed of its interconnect is not known, only that of {known}; give it with "
                "--link"
            )
        _ = self.kernels.constants, self.forward, self.drafts

    @property
    def label(self) -> str:
        """Name of the device, with the number of devices and degrees of parallelism if there are several."""
        degrees = f" tp{self.tensor}ep{self.devices}" if self.tensor else ""
        return self.device.name if self.devices == 1 else f"{self.devices} x {self.device.name}{degrees}"

    @property
    def sharing(self) -> str:
        """How several devices share the models; "" for one."""
        if self.devices == 1 or self.device.link is None:
            return ""
        shares = "share every layer of target and drafter"
        if self.tensor:
            shares = (
                f"share the layers in {self.forward.groups} groups with sequences of their own and hold whole experts, "
                "which are taken to be needed equally often (no measured step was compared)"
            )
        return f"{shares}; their exchange: {self.device.link.source}"

    @cached_property
    def kernels(self) -> Kernels:
        """The device with the settings of this model."""
        return Kernels(self.device, self.like, self.overheads, self.weight_bytes, self.kv_bytes, self.spread)

    @cached_property
    def draft_kernels(self) -> Kernels:
        """The device with the drafter's weights."""
        return replace(self.kernels, weight_bytes=self.draft_bytes)

    @cached_property
    def forward(self) -> Forward:
        """The target's forward on one device."""
        with _named("target"):
            return Forward.of(self.target).shared(self.devices, self.tensor)

    @cached_property
    def drafts(self) -> DrafterShape:
        """The drafter's forwards on one device."""
        with _named("drafter"):
            return self.drafter.shared(self.devices, self.tensor)

    @property
    def separable(self) -> bool:
        """True for parallel heads and blocks: no level is drafted from the nodes of another."""
        return self.drafter.parallel or bool(self.drafter.slots)

    @property
    def growths(self) -> Collection[str]:
        """Empty: dynamic trees are priced as static ones."""
        return ()

    @property
    def _read_bytes(self) -> float:
        """Bytes of the weights that a forward of one token reads."""
        picked = None if self.target.experts is None else self.target.experts.active
        layers = self.target.weight_bytes(self.weight_bytes, experts=picked)
        head = self.kernels.head_bytes if self.target.head_bytes is None else self.target.head_bytes
        return layers + head * self.target.vocab * self.target.hidden

    @property
    def meta(self) -> Mapping[str, Any]:
        """Provenance: that nothing was measured, the device, its constants and all settings."""
        settings = ("context", "weight_bytes", "draft_bytes", "kv_bytes", "spread", "committed")
        return {
            "kind": "roofline: predicted from sizes and a data sheet, nothing measured",
            "device": self.label,
            "source": self.device.source,
            "constants": asdict(self.kernels.constants),
            "link": asdict(self.device.link) if self.device.link and self.devices > 1 else None,
            "target": asdict(self.target),
            "forward": {"bytes": self._read_bytes, "flops": 2.0 * self.target.step_parameters},
            "drafter": asdict(self.drafter),
            "overheads": asdict(self.overheads),
            "settings": {name: getattr(self, name) for name in settings},
        }

    def step_s(self, shapes: Sequence[StepShape]) -> Floats:
        """See `CostModel.step_s`."""
        seconds = np.empty(len(shapes))
        for batch, context in {(shape.batch, shape.context) for shape in shapes}:
            rows = [i for i, shape in enumerate(shapes) if (shape.batch, shape.context) == (batch, context)]
            depth = max(len(shapes[i].widths) for i in rows)
            padded = [shapes[i].widths + (0,) * (depth - len(shapes[i].widths)) for i in rows]
            widths = np.array(padded, dtype=np.int64).reshape(len(rows), depth)
            tokens = np.array([shapes[i].tokens for i in rows])
            place: dict[str, Any] = {"batch": batch, "context": context}
            table = self._table((int(tokens.max()), depth, int(widths.max(initial=0))), **place)
            seconds[rows] = table.step_s(tokens, widths) + self._commit_s([shapes[i] for i in rows], **place)
        return seconds

    @cached_property
    def _tables(self) -> dict[tuple[int, int], tuple[tuple[int, ...], CostParts]]:
        """Parts by batch size and context, with their numbers of tokens, levels and nodes."""
        return {}

    def _table(self, sizes: tuple[int, int, int], *, batch: int, context: int | None) -> CostParts:
        """Return parts of at least these tokens, levels and nodes of a level, computed once for many steps."""
        key = (batch, self._context(context))
        known = self._tables.get(key)
        if known is None or any(size > most for size, most in zip(sizes, known[0], strict=True)):
            larger = [2 ** math.ceil(math.log2(max(size, 8))) for size in sizes]
            larger = larger if known is None else [max(pair) for pair in zip(larger, known[0], strict=True)]
            tokens, depth, width = larger
            parts = self.parts(batch=batch, tokens=tokens, depth=depth, width=width, context=context)
            known = self._tables[key] = (tuple(larger), parts)
        return known[1]

    def _commit_s(self, shapes: Sequence[StepShape], *, batch: int, context: int | None) -> Floats:
        """Return the seconds by which what each step commits differs from `committed`; float64 (shapes,)."""
        committed = np.array([self.committed if s.committed is None else s.committed for s in shapes])
        moved_s = (committed - self.committed) * self._move_s(batch)
        drafts = np.array([len(shape.widths) > 0 for shape in shapes])
        if not drafts.any() or np.all(committed == self.committed):
            return moved_s
        kept = np.append(committed, self.committed)
        first = self.level(np.ones(len(kept)), batch=batch, depth=0, context=context, committed=kept).total_s
        return np.asarray(moved_s + np.where(drafts, first[:-1] - first[-1], 0.0))

    def _move_s(self, batch: int) -> float:
        """Return the seconds of moving the keys and values of one committed token per sequence."""
        batch = math.ceil(batch / self.forward.groups)
        return 2 * batch * self.forward.kept_elements(1) * self.kv_bytes / self.kernels.kv_rate

    def error(self, shape: StepShape) -> float:
        """Return the stated errors of device and engine together; see `stated_error` and `Overheads.error`."""
        rows = shape.batch * shape.tokens
        if self.observed_rows:
            return self.overheads.error + ROWS_ERROR * math.log2(max(1, rows / self.observed_rows))
        experts = bool(self.forward.routed or self.drafter.level.routed)
        device = stated_error(self.device, rows, experts=experts, devices=self.devices)
        return math.hypot(device, self.overheads.error)

    def plain_s(self, *, batch: int, context: int | None = None) -> float:
        """See `CostModel.plain_s`."""
        return float(self.plain(batch=batch, context=context).total_s)

    def parts(self, *, batch: int, tokens: int, depth: int, width: int, context: int | None = None) -> CostParts:
        """See `CostModel.parts`."""
        verify = self.verify(np.arange(1, tokens + 1), batch=batch, context=context).total_s
        draft, fed = np.zeros((depth, width + 1)), np.arange(1, width + 1)
        differing = depth if self.drafter.shared_head else max(2, 1 + len(self.drafter.deeper))
        for level in range(min(depth, differing)):  # all later levels cost the same
            draft[level:, 1:] = self.level(fed, batch=batch, depth=level, context=context).total_s
        return CostParts(np.concatenate(([np.inf], verify)), draft)

    def plain(self, *, batch: int, context: int | None = None) -> Split:
        """Return the seconds of a plain decoding step; arrays without dimensions."""
        rows = np.asarray(batch, dtype=np.float64)
        logits = np.full_like(rows, batch)
        step = self.kernels.forward(self.forward, rows, logits, batch=batch, context=self._context(context))
        host = np.full_like(rows, self.overheads.plain_s + self.overheads.request_s * batch)
        return step + Split(host, self._row_by_row_s(rows, context))

    def verify(self, tokens: ArrayLike, *, batch: int, context: int | None = None) -> Split:
        """Return the seconds of a speculative step without drafting, by verified tokens per sequence; of their shape.

        Both parts are float64.
        """
        rows = np.asarray(batch * np.asarray(tokens, dtype=np.float64))
        step = self.kernels.forward(self.forward, rows, rows, batch=batch, context=self._context(context))
        host = self.overheads.step_s + self.overheads.request_s * batch
        work = self.committed * self._move_s(batch) + self._row_by_row_s(rows, context)
        return step + Split(np.full_like(rows, host), work)

    def _row_by_row_s(self, rows: Floats, context: int | None) -> Floats:
        """Return the seconds by which kernels take longer that multiply the first rows one by one; of their shape."""
        if not self.overheads.row_share:
            return np.zeros_like(rows)
        one = self.kernels.forward(self.forward, *np.ones((2, 1)), batch=1, context=self._context(context))
        return np.asarray(self.overheads.row_share * (np.minimum(rows, SLOW_ROWS) - 1) * one.work_s[0])

    def level(
        self,
        fed: ArrayLike,
        *,
        batch: int,
        depth: int = 1,
        context: int | None = None,
        committed: ArrayLike | None = None,
    ) -> Split:
        """Return the seconds of drafting one level, by nodes per sequence fed to the drafter; float64, of their shape.

        At the first level, of depth 0, a drafter that attends also reads the tokens that the last step committed.
        Parallel heads read one token per sequence whatever is fed, blocks all their slots, and the host waits once. An
        LM head that several share is one product over the rows of all. `committed` takes the place of the model's.
        """
        forward, opening = self.drafts.at(depth), self.drafts.opening if depth == 0 else None
        nodes = np.asarray(fed, dtype=np.float64)
        kept = np.full_like(nodes, self.committed if committed is None else committed)
        wait = self.overheads.level_s
        if self.separable and depth:
            wait = 0.0 if forward.head is None else self.overheads.head_s
        slots = self.drafter.slots if depth == 0 else 0
        logits = np.full_like(nodes, batch * max(1, slots)) if self.separable else batch * nodes
        reads_committed = depth == 0 and forward.layers and not self.drafter.parallel
        committed_rows = batch * (kept - 1) if reads_committed else 0
        place: dict[str, Any] = {"batch": batch, "context": self._context(context)}
        step = self.draft_kernels.forward(forward, logits + committed_rows, logits, **place)
        if self.drafter.shared_head and depth:
            own = logits / forward.groups
            heads = [self.draft_kernels.head(forward, rows) for rows in (own, depth * own, (depth + 1) * own)]
            step += Split(-heads[0].fixed_s, heads[2].work_s - heads[1].work_s - heads[0].work_s)
        if opening is not None:
            step += self.draft_kernels.forward(opening, batch * kept, logits, **place)
        return step + Split.fixed(wait, nodes)

    def chain(self, depth: int, *, batch: int, context: int | None = None) -> Split:
        """Return the seconds of drafting chains of 1 to `depth` tokens; float64 (depth,)."""
        levels = [self.level(1, batch=batch, depth=before, context=context) for before in range(depth)]
        return Split(*(np.cumsum([getattr(level, part) for level in levels]) for part in ("fixed_s", "work_s")))

    def prefill(self, tokens: int, *, drafted: bool) -> Split:
        """Return the seconds of reading a prompt of `tokens` tokens alone, in pieces; arrays without dimensions.

        All tokens but the last are read, which is the root of the first step; no logits are computed. Every token sees
        the tokens before it, on average half of its own piece, and no more than a sliding window.

        Args:
            tokens: tokens of the prompt.
            drafted: a sequential drafter reads the prompt too.
        """
        total = Split.fixed(0.0, np.zeros(()))
        for start in range(0, tokens - 1, PIECE):
            rows = np.asarray(float(min(PIECE, tokens - 1 - start)))
            total += _read_piece(self.kernels, self.forward, start, rows) + Split.fixed(self.overheads.plain_s, rows)
            for forward in self.drafts.read if drafted else ():
                total += _read_piece(self.draft_kernels, forward, start, rows)
        return total

    def _context(self, context: int | None) -> int:
        return self.context if context is None else context


def _read_piece(kernels: Kernels, forward: Forward, start: int, rows: Floats) -> Split:
    """Return the seconds of reading `rows` tokens of a prompt after the first `start`, without logits."""
    without_head = replace(forward, head=None, state_bytes=0.0)  # states stay on the chip
    return kernels.forward(without_head, rows, np.zeros(()), batch=1, context=start - int(rows) // 2)


@contextmanager
def _named(model: str) -> Iterator[None]:
    """Prefix errors with the model that they concern."""
    try:
        yield
    except CostError as error:
        raise CostError(f"{model}: {error}") from error
