"""The state of the controls as arguments of the library; texts are checked here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treeopt.defaults import NODES
from treeopt.errors import UsageError
from treeopt.replay.objective import THROUGHPUT

MOST_BATCHES = 12  # that one question may ask for
LARGEST_BATCH = 4096
LARGEST = 1e9  # milliseconds, and price
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


def question_of(controls: Mapping[str, Any]) -> Question:
    """Return the question of the controls' values, by their names in `treeopt.explore.controls`.

    Raises:
        UsageError: a text that is no number.
    """
    steps: str | Device = controls.get("profile", "")
    if "device" in controls:
        steps = Device(*(controls[name] for name in ("device", "count", "target", "context")))
    return Question(
        trace=controls["trace"],
        steps=steps,
        batches=batch_sizes(controls["batches"]),
        engine=None if controls["engine"] == ANY_TREE else controls["engine"],
        max_nodes=below(controls["nodes"], NODES),
        max_depth=below(controls["depth"], controls["deepest"]),
        max_tpot_s=limit_s(controls["tpot"]),
        objective=controls["objective"],
        policies=policies(controls.get("dynamic", NO_POLICIES)),
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


def policies(label: str) -> tuple[str, ...]:
    """Return the kinds of dynamic policies that a label stands for.

    >>> policies("none"), policies("eagle2"), policies("all kinds")
    ((), ('eagle2',), ('all',))
    """
    return {NO_POLICIES: (), ALL_POLICIES: ("all",)}.get(label, (label,))


def price_of(text: str) -> float | None:
    """Return a price per hour; None for an empty text.

    Raises:
        UsageError: it is not a positive number.

    >>> price_of("2.50"), price_of(" ")
    (2.5, None)
    """
    return _positive(text, "the price per hour")


def below(value: int, limit: int) -> int | None:
    """Return the value of a slider, or None at its right end, where the library's default holds.

    >>> below(8, 63), below(63, 63)
    (8, None)
    """
    return None if value >= limit else value


def limit_s(text: str) -> float | None:
    """Return a limit in seconds of a text in milliseconds; None for an empty text.

    Raises:
        UsageError: it is not a positive number.

    >>> limit_s("20"), limit_s(" ")
    (0.02, None)
    """
    milliseconds = _positive(text, "milliseconds per token")
    return None if milliseconds is None else milliseconds / 1e3


def _positive(text: str, noun: str) -> float | None:
    if not text.strip():
        return None
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < LARGEST:
        raise UsageError(f"{noun} must be a number above 0, got {text.strip()[:40]!r}")
    return number
