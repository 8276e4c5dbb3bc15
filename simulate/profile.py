"""A measured profile as a cost model: step times of one target and drafter on one device, nothing beyond them.

step = draft(batch, depth) + rest(batch, tokens): drafting was measured for depths, everything else for the
tokens a sequence that are verified; between measured sizes time is interpolated linearly, outside it is refused.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.cost import StepShape
from treeopt.errors import CostError
from treeopt.files import why, write_text
from treeopt.records import RecordError, get, of_kind, parse

SCHEMA = "treeopt.profile/1"


@dataclass(frozen=True)
class BatchTimes:
    """Medians measured at one batch size.

    Attributes:
        batch: sequences.
        plain_s: seconds of a plain decoding step.
        draft: (depth, seconds) by rising depth, from depth 1.
        rest: (tokens, seconds) by rising tokens a sequence; everything in a step but drafting.
    """

    batch: int
    plain_s: float
    draft: tuple[tuple[int, float], ...]
    rest: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        """Check signs and order.

        Raises:
            CostError: names the field and the index.
        """
        if self.batch < 1:
            raise CostError(f"batch must be at least 1, found {self.batch}")
        if not (math.isfinite(self.plain_s) and self.plain_s > 0):
            raise CostError(f"plain_s must be positive, found {self.plain_s}")
        for name, points in (("draft", self.draft), ("rest", self.rest)):
            if not points:
                raise CostError(f"{name} is empty")
            for i, (size, seconds) in enumerate(points):
                if size < 1 or (i and size <= points[i - 1][0]):
                    raise CostError(f"{name}[{i}] must have a rising size of at least 1, found {size}")
                if not (math.isfinite(seconds) and seconds > 0):
                    raise CostError(f"{name}[{i}] must have positive seconds, found {seconds}")

    def step_s(self, shapes: Sequence[StepShape]) -> NDArray[np.float64]:
        """Seconds of steps of this batch size."""
        tokens = np.array([shape.tokens for shape in shapes])
        depths = np.array([len(shape.widths) for shape in shapes])
        self._covers("tokens", tokens, self.rest)
        if (depths > 0).any():
            self._covers("depth", depths[depths > 0], self.draft)
        draft = np.where(depths > 0, _interpolate(depths, self.draft), 0.0)
        return draft + _interpolate(tokens, self.rest)

    def _covers(self, name: str, asked: NDArray[np.int64], points: tuple[tuple[int, float], ...]) -> None:
        low, high = points[0][0], points[-1][0]
        outside = (asked < low) | (asked > high)
        if outside.any():
            raise CostError(
                f"{name} {asked[outside][0]} at batch {self.batch}: the profile measured {name} {low} to {high}"
            )


def _interpolate(sizes: NDArray[np.int64], points: tuple[tuple[int, float], ...]) -> NDArray[np.float64]:
    table = np.array(points)
    return np.asarray(np.interp(sizes, table[:, 0], table[:, 1]))


@dataclass(frozen=True)
class Profile:
    """Measured step times: a `CostModel` for the batch sizes, tree sizes, depths and contexts that were measured.

    Attributes:
        batches: by rising batch size.
        context: fewest and most tokens a sequence in the cache while measuring.
        relative_error: half-width of the 95 % interval of a step time over a plain step time, as a share.
        meta: provenance.
    """

    batches: tuple[BatchTimes, ...]
    context: tuple[int, int]
    relative_error: float
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check order and signs.

        Raises:
            CostError: names the field.
        """
        sizes = [times.batch for times in self.batches]
        if not sizes or sizes != sorted(set(sizes)):
            raise CostError(f"batches must be of rising size, found {sizes}")
        if not 0 <= self.context[0] <= self.context[1]:
            raise CostError(f"context must be a range of token counts, found {self.context}")
        if not (math.isfinite(self.relative_error) and self.relative_error >= 0):
            raise CostError(f"relative_error must be 0 or more, found {self.relative_error}")

    @property
    def separable(self) -> bool:
        """True: level widths do not enter."""
        return True

    def step_s(self, shapes: Sequence[StepShape]) -> NDArray[np.float64]:
        """See `CostModel.step_s`."""
        seconds = np.empty(len(shapes))
        for size in {shape.batch for shape in shapes}:
            chosen = [i for i, shape in enumerate(shapes) if shape.batch == size]
            for i in chosen:
                self._check_context(shapes[i].context)
            seconds[chosen] = self._at(size).step_s([shapes[i] for i in chosen])
        return seconds

    def plain_s(self, *, batch: int, context: int | None = None) -> float:
        """See `CostModel.plain_s`."""
        self._check_context(context)
        return self._at(batch).plain_s

    def _at(self, batch: int) -> BatchTimes:
        for times in self.batches:
            if times.batch == batch:
                return times
        measured = ", ".join(str(times.batch) for times in self.batches)
        raise CostError(f"batch {batch} is not in the profile, which measured batch {measured}")

    def _check_context(self, context: int | None) -> None:
        low, high = self.context
        if context is not None and not low <= context <= high:
            raise CostError(f"context {context} lies outside what the profile measured, {low} to {high} tokens")


def save_profile(profile: Profile, path: Path) -> None:
    """Write a profile as JSON, whole or not at all."""
    record = {"schema": SCHEMA, **asdict(profile)}
    write_text(path, json.dumps(record, indent=1) + "\n")


def load_profile(path: Path) -> Profile:
    """Read and check a profile.

    Raises:
        CostError: missing or broken; names file and field.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CostError(f"{path}: cannot be read: {why(error)}") from error
    try:
        record = parse(text, SCHEMA)
        batches = tuple(
            _read_batch(times, f"batches[{i}]") for i, times in enumerate(get(record, "batches", list, "profile"))
        )
        low, high = _pair(get(record, "context", list, "profile"), "context", int)
        spread = get(record, "relative_error", float, "profile")
        return Profile(batches, (low, high), spread, get(record, "meta", dict, "profile"))
    except (RecordError, CostError) as error:
        raise CostError(f"{path}: {error}") from error


def _read_batch(record: Any, where: str) -> BatchTimes:
    batch, plain_s = get(record, "batch", int, where), get(record, "plain_s", float, where)
    draft, rest = (
        tuple(_pair(point, f"{where}.{name}[{i}]", float) for i, point in enumerate(get(record, name, list, where)))
        for name in ("draft", "rest")
    )
    try:
        return BatchTimes(batch, plain_s, draft, rest)
    except CostError as error:
        raise CostError(f"{where}: {error}") from error


def _pair(values: Any, name: str, second: type) -> tuple[int, Any]:
    if not isinstance(values, list) or len(values) != 2:
        raise RecordError(f"`{name}` must be a list of two numbers, found {values!r:.60}")
    return of_kind(values[0], int, f"`{name}`[0]"), of_kind(values[1], second, f"`{name}`[1]")
