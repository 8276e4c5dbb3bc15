"""Totals of a server's counters at a scrape, and their growth since an earlier one; restarts count from zero."""

from dataclasses import astuple, dataclass
from itertools import zip_longest

from treeopt.errors import TraceError
from treeopt.traces.importers.prometheus_counters import of_model
from treeopt.traces.importers.sources.counters import counter_names, totals_by_engine


@dataclass(frozen=True)
class Totals:
    """Totals over all engines and workers behind one address.

    Attributes:
        accepted: steps of a request that accepted at least 1, 2, ... drafted tokens.
        steps: steps of a request that drafted.
        latency_s: seconds between the outputs of a request, summed; 0 where the engine does not count them.
        outputs: outputs of a request after its first.
        iterations: steps of the engine, each for all running requests.
        finished: requests.
    """

    accepted: tuple[float, ...]
    steps: float
    latency_s: float
    outputs: float
    iterations: float
    finished: float

    def since(self, before: "Totals") -> "Totals":
        """Return the growth; all of it where a total fell, because the server was restarted (as in Prometheus)."""
        accepted = tuple(now - old for now, old in zip_longest(self.accepted, before.accepted, fillvalue=0.0))
        others = [now - old for now, old in zip(astuple(self)[1:], astuple(before)[1:], strict=True)]
        return self if min(*accepted, *others) < 0 else Totals(accepted, *others)

    @property
    def running(self) -> float | None:
        """Mean number of requests that decode together; None where the engine does not count it."""
        return self.outputs / self.iterations if self.iterations and self.outputs else None


def totals_of(text: str, model: str | None) -> Totals:
    """Return the totals of a scrape.

    Args:
        text: Prometheus text.
        model: the `model_name` to read, if there are several.

    Raises:
        TraceError: no Prometheus text, no counters of speculative decoding, or several models and none named.
    """
    from prometheus_client.parser import text_string_to_metric_families

    try:
        families = list(text_string_to_metric_families(text))
    except (ValueError, KeyError, IndexError) as error:  # the parser's of damaged lines
        raise TraceError(f"the answer is not Prometheus text: {error}") from error
    read = [sample for family in families for sample in family.samples]
    samples = of_model({(s.name, tuple(sorted(s.labels.items()))): s.value for s in read}, model)
    engine, steps, accepted = totals_by_engine(samples)
    names = counter_names()[engine]

    def summed(name: str) -> float:
        return sum((value for (key, _), value in samples.items() if key == name), 0.0)

    latency_s, outputs = summed(f"{names.latency}_sum"), summed(f"{names.latency}_count")
    return Totals(tuple(map(float, accepted)), steps, latency_s, outputs, summed(names.iterations), summed(names.ended))
