"""Overheads of engines: host time and launches per step, drafted level, request, layer and exchange."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Annotated

from msgspec import Meta

from treeopt.errors import UsageError
from treeopt.storage.json_records import check_schema
from treeopt.storage.typed_records import Record, read_record
from treeopt.storage.user_files import shipped_json

OVERHEADS_SCHEMA = "treeopt.engine_overheads/1"
NO_ENGINE_ERROR = 0.23  # engines without a name: 215 of 228 published speedups are inside, with the device's
NO_ROW_ERROR = 0.34  # an engine without a row: every engine's rows left out in turn (docs/results/engines_published.md)
STUDY_ERROR = 0.078  # between studies of an engine, 95 %: nine tenths of what is left out by study are inside
# How far predicted plain steps are off published ones, and of how many: docs/results/engines_published.md.
PLAIN_ERRORS = {"dense models": (-0.05, 0.23, 23), "mixtures of experts": (-0.46, 0.45, 14)}
NEW_KIND_ERROR = 0.25  # an engine's row that no study of this kind of drafter stands behind


@dataclass(frozen=True)
class Overheads:
    """Seconds that no byte and no FLOP explains; by default those of an engine with little host time.

    Attributes:
        step_s: host time of a speculative step. SpecDecode-Bench (arXiv 2601.11580), vLLM on H100: 1.207 ms.
        plain_s: host time of a plain step. Published steps of good engines exceed the device's time by 0.4 to 1.2 ms.
        level_s: host time of a drafted level. SpecBundle (SGLang, H200): 0.35 ms per level, of which about 0.24 are the
            device's by these equations.
        request_s: host time per sequence and step. Fitted by BLIS to serving runs on H100.
        attention_s: a layer's attention beyond its bytes and FLOP. Operator timings on Hopper: about 12 us.
        layer_s: a layer's norms, rotations and activations; with four products and attention 35 us per layer on H100,
            where BLIS fitted 32.
        head_s: a further parallel head's activation and choice of tokens.
        exchange_s: an exchange between devices beyond the link's own time.
        launches: share of the fixed time of products, attention and layers that is left where kernels are fused.
        row_share: share of the bytes and FLOP of a step of one row that each further row takes, up to `SLOW_ROWS`.
        error: relative error of a step over a plain step, 95 %, beyond the device's.
        source: where the figures come from, and what they hold for.

    >>> Overheads.none().step_s, Overheads.of("vllm", kind="eagle3", version="0.9").level_s > Overheads().level_s
    (0.0, True)
    """

    step_s: float = 1.2e-3
    plain_s: float = 0.8e-3
    level_s: float = 1.1e-4
    request_s: float = 4.4e-6
    attention_s: float = 12e-6
    layer_s: float = 8e-6
    head_s: float = 2e-5
    exchange_s: float = 0.0
    launches: float = 1.0
    row_share: float = 0.0
    error: float = NO_ENGINE_ERROR
    source: str = "engines with CUDA graphs and little host time; name yours with --for"

    @classmethod
    def none(cls) -> "Overheads":
        """Return no overhead at all: products with their c0, bytes and FLOP alone."""
        return cls(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, error=0.0, source="none")

    @classmethod
    def of(
        cls, engine: str, *, kind: str, version: str | None = None, trees: str = "static", devices: int = 1
    ) -> "Overheads":
        """Return an engine's overheads from data/engine_overheads.json; those of any engine where it has no row.

        Args:
            engine: its name.
            kind: the kind of drafter.
            version: its version, such as "0.10.2"; None: the newest.
            trees: "static" for trees that are fixed, "dynamic" for those that are grown in each step.
            devices: devices that share every layer.

        Raises:
            UsageError: the version is no number.
        """
        release = None if version is None else _release(version)
        for row in _rows():
            if row.engine == engine and row.holds(kind, release, trees, devices):
                studies = row.studies.get(kind, row.studies.get("any", 0))
                return cls(**row.seconds, error=study_error(studies), source=f"{row.label}: {row.source}")
        known = f"{engine} {version}" if version else engine
        return cls(error=NO_ROW_ERROR, source=f"no figures are known for {known} with {kind}, so those of any engine")


def study_error(studies: int) -> float:
    """Return the relative error of a step over a plain step in a study beside those that figures come from.

    >>> [round(study_error(studies), 3) for studies in (0, 1, 2, 8)]
    [0.25, 0.11, 0.096, 0.083]
    """
    return STUDY_ERROR * math.sqrt(1 + 1 / studies) if studies else NEW_KIND_ERROR


Positive = Annotated[float, Meta(ge=0, le=10)]


class OverheadRow(Record, frozen=True, kw_only=True):
    """A row of the table: what it holds for, `Overheads` by field, and by kind of drafter the studies behind it."""

    engine: str
    versions: tuple[str | None, str | None] = (None, None)
    kinds: tuple[str, ...] = ()
    trees: str | None = None
    devices: tuple[int, int] = (1, 8)
    seconds: dict[str, Positive]
    studies: dict[str, Annotated[int, Meta(ge=1)]]
    source: str

    @property
    def label(self) -> str:
        """The engine and its versions."""
        first, end = self.versions
        words = [self.engine, *([f"from {first}"] if first else []), *([f"before {end}"] if end else [])]
        return " ".join(words)

    def holds(self, kind: str, release: tuple[int, ...] | None, trees: str, devices: int) -> bool:
        """Return whether the row holds for a drafter's kind, a release (None: the newest), trees and devices."""
        first, end = self.versions
        recent = (
            end is None
            if release is None
            else (first is None or _release(first) <= release) and (end is None or release < _release(end))
        )
        fits = (not self.kinds or kind in self.kinds) and self.trees in (None, trees)
        return recent and fits and self.devices[0] <= devices <= self.devices[1]


@cache
def _rows() -> tuple[OverheadRow, ...]:
    """Return the table of engines' overheads; the first row that holds counts."""
    return read_record(
        check_schema(shipped_json("engine_overheads.json"), OVERHEADS_SCHEMA)["rows"], tuple[OverheadRow, ...]
    )


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version.

    >>> _release("0.10.2"), _release("0.5.6.post1")
    ((0, 10, 2), (0, 5, 6))
    """
    numbers = version.removeprefix("v").partition(".post")[0].partition("rc")[0].split(".")
    try:
        return tuple(int(number) for number in numbers if number)
    except ValueError:
        raise UsageError(f"a version must be numbers such as 0.10.2, got {version!r:.40}") from None
