"""Charts of throughput against latency: every configuration, the ones that none beats in both, the recommended one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treeopt.charts.chart import Axis, Chart, Layer, floats, short
from treeopt.plans.plan import Plan, PlanEntry

RECOMMENDED = "recommended"
FRONTIER = "none is better in both"


@dataclass(frozen=True)
class Operation:
    """A configuration at one batch size: name, milliseconds per token of a sequence, tokens per second of all."""

    name: str
    batch: int
    tpot_ms: float
    tokens_s: float


def throughput_and_latency(plan: Plan) -> Chart:
    """Return tokens per second against time per token of all configurations of a plan.

    The recommended one is that of the batch size that the objective prefers, or of every batch size if it prefers none.
    """
    best = [_operation(entry) for entry in plan.entries if plan.best in (None, entry.batch)]
    others = {
        "chosen at its batch size": [_operation(entry) for entry in plan.entries],
        "compared": [
            Operation(c.name, entry.batch, c.step_s / c.tau.value * 1e3, c.tokens_s(entry.batch))
            for entry in plan.entries
            for c in entry.compared
            if not c.plain and (c.grown is None or c.grown.policy is not None)  # a bound runs nowhere
        ],
        "no speculation": [
            Operation(c.name, entry.batch, c.step_s * 1e3, c.tokens_s(entry.batch))
            for entry in plan.entries
            for c in (entry.choice, *entry.compared)
            if c.plain
        ],
    }
    return _chart(others, best, muted=("compared",))


def _operation(entry: PlanEntry) -> Operation:
    choice = entry.choice
    return Operation(choice.name, entry.batch, choice.step_s / choice.tau.value * 1e3, choice.tokens_s(entry.batch))


def scenario_latency(record: Mapping[str, Any]) -> Chart:
    """Return tokens per second against time per token, a series per device; `record` is a what-if."""
    found: dict[str, list[Operation]] = {}
    for cell in record["cells"]:
        if cell["fits"] is not False:
            tpot_ms = cell["batch"] / cell["tokens_s"] * 1e3
            operation = Operation(cell["name"], cell["batch"], tpot_ms, cell["tokens_s"])
            found.setdefault(short(cell["device"]), []).append(operation)
    everything = [operation for series in found.values() for operation in series]
    return _chart(found, [max(everything, key=lambda o: o.tokens_s)] if everything else [])


def _chart(found: Mapping[str, Sequence[Operation]], best: Sequence[Operation], muted: Sequence[str] = ()) -> Chart:
    edge = pareto([operation for series in found.values() for operation in series])
    layers = [Layer("line", *_columns(edge), FRONTIER, dashed=True, muted=True)]
    layers += [_points(name, series, muted=name in muted) for name, series in reversed(list(found.items())) if series]
    layers.append(_points(RECOMMENDED, best))
    names = ", ".join(f"batch {o.batch} ({o.name}): {o.tokens_s:,.0f} tokens/s at {o.tpot_ms:.2f} ms" for o in best)
    return Chart(
        "Throughput and latency",
        Axis("time per token and sequence, ms", zero=True),
        Axis("tokens/s of the whole batch", zero=True),
        tuple(layer for layer in layers if len(layer)),
        (f"Predicted. Recommended: {names}.",),
        f"Tokens per second against time per token. Recommended: {names}.",
        order=(RECOMMENDED, *(name for name in found if found[name] and name not in muted)),
    )


def pareto(operations: Sequence[Operation]) -> list[Operation]:
    """Return those that no other beats in tokens per second without taking longer per token, by rising time.

    >>> [o.name for o in pareto([Operation("a", 1, 1, 9), Operation("b", 1, 2, 8), Operation("c", 1, 3, 10)])]
    ['a', 'c']
    """
    edge: list[Operation] = []
    for operation in sorted(operations, key=lambda o: (o.tpot_ms, -o.tokens_s)):
        if not edge or operation.tokens_s > edge[-1].tokens_s:
            edge.append(operation)
    return edge


def _columns(operations: Sequence[Operation]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return floats([o.tpot_ms for o in operations]), floats([o.tokens_s for o in operations])


def _points(series: str, operations: Sequence[Operation], *, muted: bool = False) -> Layer:
    details = (
        ("configuration", tuple(o.name for o in operations)),
        ("batch", tuple(str(o.batch) for o in operations)),
    )
    return Layer("points", *_columns(operations), series, details=details, muted=muted)
