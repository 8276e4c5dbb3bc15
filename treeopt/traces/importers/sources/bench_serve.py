"""Results of `vllm bench serve --save-result`: rates by position as shares of the drafts, with exact totals.

Source: vllm/benchmarks/serve.py of vLLM 0.32.0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError
from treeopt.traces.importers.chain_counts import Chain, chain_from_counts, with_windows
from treeopt.traces.importers.trace_source import Content, Output, TraceSource
from treeopt.traces.trace import MAX_DEPTH


@dataclass(frozen=True)
class Printed:
    """A result that a program printed, of a whole run or of a window of time.

    Attributes:
        rates: share of the steps that accepted each position.
        error: largest rounding error of a rate.
        steps: steps that drafted; None if not printed.
        accepted: drafted tokens that were accepted; None if not printed.
        draft_tokens: tokens drafted; None if not printed.
    """

    rates: tuple[float, ...]
    error: float
    steps: int | None = None
    accepted: int | None = None
    draft_tokens: int | None = None

    @classmethod
    def checked(cls, rates: Sequence[float], error: float, counts: Sequence[int | None], where: str) -> "Printed":
        """Return a result after checking its rates and its steps, accepted and drafted tokens.

        Raises:
            TraceError: rates that are no shares, no step, or more drafted tokens than the steps can have.
        """
        if len(rates) > MAX_DEPTH or not all(0 <= rate <= 1 for rate in rates):
            raise TraceError(f"{where}: rates must be at most {MAX_DEPTH} shares in 0..1, found {list(rates)!r:.80}")
        steps, accepted, drafted = counts
        if steps == 0:
            raise TraceError(f"{where}: no step was counted: did the engine speculate?")
        if steps is not None and drafted is not None and drafted > len(rates) * steps:
            raise TraceError(f"{where}: {drafted} tokens drafted in {steps} drafts of {len(rates)} are too many")
        return cls(tuple(float(rate) for rate in rates), error, steps, accepted, drafted)


def unrounded(result: Printed) -> NDArray[np.float64]:
    """Return the rates that add up to the accepted tokens per step; as printed, if these are not known.

    >>> unrounded(Printed((0.67, 0.33), 0.005, steps=3, accepted=3)).tolist()
    [0.6666666666666666, 0.3333333333333333]

    Raises:
        TraceError: rounding does not explain the difference.
    """
    rates = np.array(result.rates)
    if not result.steps or result.accepted is None:
        return rates
    counts = np.rint(rates * result.steps)
    if result.steps * result.error < 0.5 and counts.sum() == result.accepted:
        return np.asarray(counts / result.steps)
    gap = result.accepted / result.steps - rates.sum()
    if abs(gap) > len(rates) * result.error + 1 / result.steps:
        raise TraceError(
            f"{result.accepted} accepted tokens in {result.steps} steps are {result.accepted / result.steps:.3f} per "
            f"step, but the rates by position add up to {rates.sum():.3f}: positions are missing, or the length of "
            "drafts changed"
        )
    moved = np.minimum.accumulate(np.clip(rates + gap / len(rates), 0, 1))
    if result.accepted == 0 or moved.sum() == 0:
        return np.zeros(len(rates))
    return np.asarray(np.minimum(moved * (result.accepted / result.steps / moved.sum()), 1.0))


def printed_chain(results: Sequence[Printed], *, uneven: bool = False, assumed: Sequence[str] = ()) -> Chain:
    """Return the chain of all results, pooled by steps; each is a window of time.

    Raises:
        TraceError: results that do not go together, or that contradict themselves; see `chain_from_counts`.
    """
    depths = {len(result.rates) for result in results}
    if len(depths) > 1:
        raise TraceError(f"it has results of {min(depths)} to {max(depths)} positions: keep those of one length")
    counted = [(unrounded(result), result.steps) for result in results if result.steps]
    if not counted:
        if len(results) > 1:
            raise TraceError(f"it has {len(results)} results without numbers of steps: keep one")
        return Chain(results[0].rates, assumed=tuple(assumed))
    steps = sum(number for _, number in counted if number)
    accepted = sum(rates * (number or 0) for rates, number in counted)
    tokens = [result.draft_tokens for result in results if result.steps]
    drafted = None if None in tokens else sum(number or 0 for number in tokens)
    chain = chain_from_counts(
        np.asarray(accepted).tolist(), steps=steps, draft_tokens=drafted, uneven=uneven, assumed=assumed
    )
    return with_windows(chain, [(rates.tolist(), number or 0) for rates, number in counted])


RATES = "spec_decode_per_position_acceptance_rates"
COUNTS = ("spec_decode_num_drafts", "spec_decode_accepted_tokens", "spec_decode_draft_tokens")
EXACT = 1e-9  # error of a rate that is stored as a float


def read_results(content: Content, *, uneven: bool = False) -> Chain:
    """Return the chain of all results, pooled.

    Raises:
        TraceError: results of several models; or names the result and the field that is missing or contradicts others.
    """
    results, records = [], content.with_key(RATES)
    if len(models := sorted({str(record["model_id"]) for record in records if record.get("model_id")})) > 1:
        raise TraceError(f"it has results of several models, {', '.join(models):.200}: keep those of one")
    for number, record in enumerate(records):
        where = f"result {number}"
        rates = record[RATES]
        if not isinstance(rates, list) or not all(type(rate) in (int, float) for rate in rates):
            raise TraceError(f"{where}: `{RATES}` must be a list of rates, found {rates!r:.60}")
        steps, accepted, drafted = (_count(record, key, where) for key in COUNTS)
        results.append(Printed.checked(rates, EXACT, (steps, accepted, drafted), where))
    return printed_chain(results, uneven=uneven)


def _count(record: Mapping[str, Any], key: str, where: str) -> int:
    value = record.get(key)
    if type(value) is not int or not 0 <= value < 2**63:
        raise TraceError(f"{where}: `{key}` must be a count, found {value!r:.40}")
    return value


ENTRY = TraceSource(
    name="bench-serve",
    title="results of `vllm bench serve`",
    settings={
        "uneven": "count what short drafts left out as rejected",
        "requests": "most texts that stand for the steps",
        "steps": "number of steps to draw, if the file has none",
    },
    holds=lambda content: bool(content.with_key(RATES)),
    chain=read_results,
    outputs=(Output("vLLM", "totals by position", "the JSON of `vllm bench serve --save-result`", first=4),),
)
