"""The state of the controls as arguments of the library."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treeopt.defaults import NODES
from treeopt.errors import UsageError
from treeopt.replay.objective import THROUGHPUT

MOST_BATCHES = 12  # that one question may ask for
LARGEST_BATCH = 4096
ANY_TREE = "any tree"  # label of no engine
NO_POLICIES, ALL_POLICIES = "none", "all kinds"  # labels of dynamic trees
SOURCES = MEASURED, PREDICTED = "measured", "from a data sheet"  # labels of step times


@dataclass(frozen=True)
class Device:
    """A device that is priced from its data sheet.

    Attributes:
        name: as in data/hardware.json.
        count: devices that share every layer.
        target: sizes of the target, by the offered name.
        context: tokens in the cache.
    """

    name: str
    count: int = 1
    target: str = "8b"
    context: int = 512

    @property
    def hardware(self) -> str:
        """The device as `treeopt whatif --hardware` takes it.

        >>> Device("H100 SXM", count=4).hardware
        '4xH100 SXM'
        """
        return self.name if self.count == 1 else f"{self.count}x{self.name}"


@dataclass(frozen=True)
class Question:
    """A state of the controls.

    Attributes:
        trace: name of a trace that is offered.
        steps: name of a profile that is offered, or a device; None: the profile that `treeopt search` finds.
        batches: batch sizes.
        engine: whose rules trees keep; None: any tree.
        max_nodes: largest tree tried; None: the library's default.
        max_depth: deepest tree tried; None: the library's default.
        max_tpot_s: most seconds per output token; None: no limit.
        objective: name of the objective.
        policies: kinds of dynamic policies that are tried too.
    """

    trace: str
    steps: str | Device | None = None
    batches: tuple[int, ...] = (1, 4)
    engine: str | None = None
    max_nodes: int | None = None
    max_depth: int | None = None
    max_tpot_s: float | None = None
    objective: str = THROUGHPUT.name
    policies: tuple[str, ...] = ()


def question_of(controls: Mapping[str, Any], *, deepest: int, policies: bool = False) -> Question:
    """Return the question of the controls' values, by their names in `treeopt.explore.controls`.

    Args:
        controls: the values.
        deepest: the depth of the trace; the sliders' right ends stand for the library's defaults.
        policies: dynamic trees can be tried.

    Raises:
        UsageError: batch sizes that are none.
    """
    measured, engine, dynamic = controls["source"] == MEASURED, controls["engine"], controls["dynamic"]
    return Question(
        trace=controls["trace"],
        steps=controls["profile"]
        if measured
        else Device(*(controls[name] for name in ("device", "count", "target", "context"))),
        batches=batch_sizes(controls["batches"]),
        engine=None if engine == ANY_TREE else engine,
        max_nodes=controls["nodes"] if controls["nodes"] < NODES else None,
        max_depth=controls["depth"] if controls["depth"] < deepest else None,
        max_tpot_s=controls["tpot"] / 1e3 if controls["tpot"] else None,
        objective=controls["objective"],
        policies={NO_POLICIES: (), ALL_POLICIES: ("all",)}.get(dynamic, (dynamic,)) if measured and policies else (),
    )


def batch_sizes(text: str) -> tuple[int, ...]:
    """Return the batch sizes of a text, each once, in rising order.

    Raises:
        UsageError: other than whole numbers between commas or spaces, or too many of them.

    >>> batch_sizes("4, 1 16")
    (1, 4, 16)
    """
    words = text.replace(",", " ").split()
    if not words or not all(word.isascii() and word.isdigit() and len(word) < 8 for word in words):
        raise UsageError(f"batch sizes must be whole numbers such as 1, 4, 16, got {text.strip()[:40]!r}")
    sizes = tuple(sorted(set(map(int, words))))
    if not 1 <= sizes[0] <= sizes[-1] <= LARGEST_BATCH:
        raise UsageError(f"batch sizes must be from 1 to {LARGEST_BATCH}, got {text.strip()[:40]!r}")
    if len(sizes) > MOST_BATCHES:
        raise UsageError(f"the page answers at most {MOST_BATCHES} batch sizes at a time, got {len(sizes)}")
    return sizes
