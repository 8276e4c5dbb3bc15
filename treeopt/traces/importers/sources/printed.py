"""Results that vLLM's programs print: the table of `vllm bench serve`, and what its offline examples print.

Both have rates by position as shares of the drafts; a form of another program is a `Form`. Rates are
rounded, totals exact: `printed_chain` finds the counts behind them. Source:
vllm/benchmarks/serve.py of vLLM 0.32.0, and examples/features/speculative_decoding of the same version.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import TraceError
from treeopt.traces.importers.chain_counts import Chain, chain_from_counts, with_windows
from treeopt.traces.importers.trace_source import Content, Output, TraceSource
from treeopt.traces.trace_checks import MAX_DEPTH


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


@dataclass(frozen=True)
class Form:
    """A form of printed rates.

    Attributes:
        sign: what stands in the text.
        row: a row of a position and its rate.
        counts: names before the rows: steps, accepted and drafted tokens.
        decimals: of a rate.
        percent: rates are in percent.
        mean: the printed tokens per step, which tells whether position 0 is the bonus token.
    """

    sign: str
    row: re.Pattern[str]
    counts: tuple[str, str, str]
    decimals: int
    percent: bool = False
    mean: re.Pattern[str] | None = None

    @property
    def error(self) -> float:
        """The largest error of a rate."""
        return 0.5 * 10.0**-self.decimals


FORMS = (
    Form(
        "Per-position acceptance (%):",
        re.compile(r"^[^\n]*?Position (\d{1,3}):\s+(\d{1,3}(?:\.\d+)?)\s*$", re.MULTILINE),
        ("Drafts:", "Accepted tokens:", "Draft tokens:"),
        decimals=4,
        percent=True,
    ),
    Form(
        "acceptance at token",
        re.compile(r"acceptance at token (\d{1,3}):\s*(\d(?:\.\d+)?)\s*$", re.MULTILINE),
        ("num_drafts:", "num_accepted_tokens:", "num_draft_tokens:"),
        decimals=2,
        mean=re.compile(r"mean acceptance length:\s*(\d{1,3}\.\d+)", re.IGNORECASE),
    ),
)


def forms_in(content: Content) -> list[Form]:
    """Return the forms that stand in a text."""
    if content.values is not None:
        return []
    return [form for form in FORMS if form.sign in content.text and form.row.search(content.text)]


def read_printed(content: Content, *, uneven: bool = False) -> Chain:
    """Return the chain of printed results, pooled.

    Raises:
        TraceError: positions are missing, or figures contradict each other.
    """
    forms = forms_in(content)
    results = [result for form in forms for result in _results(content.text, form)]
    return printed_chain(results, uneven=uneven, assumed=(f"rates have {forms[0].decimals} decimals",))


def _results(text: str, form: Form) -> list[Printed]:
    """Return one result for each run of rows 0, 1, ..., with the last counts printed before it."""
    blocks: list[list[re.Match[str]]] = []
    for match in form.row.finditer(text):
        position = int(match[1])
        if position == 0:
            blocks.append([])
        if not blocks or position != len(blocks[-1]):
            expected = len(blocks[-1]) if blocks else 0
            raise TraceError(f"position {position} is printed where position {expected} must be")
        blocks[-1].append(match)
    results, start = [], 0
    for number, block in enumerate(blocks):
        before, where = text[start : block[0].start()], f"result {number}"
        counts = [_last(before, name) for name in form.counts]
        rates: Sequence[float] = [float(match[2]) / (100 if form.percent else 1) for match in block]
        if form.mean is not None and (means := form.mean.findall(before)):
            rates = _of_drafts(rates, float(means[-1]), form.error, where)
        results.append(Printed.checked(rates, form.error, counts, where))
        start = block[-1].end()
    return results


def _of_drafts(rates: Sequence[float], mean: float, error: float, where: str) -> Sequence[float]:
    """Return the rates of drafted tokens: until the middle of 2025 vLLM's examples printed the bonus as token 0.

    Raises:
        TraceError: the printed mean, tokens per step with the bonus, fits the rates in neither form.
    """
    room = 1.01 * error * (len(rates) + 1)
    if abs(1 + sum(rates) - mean) <= room:
        return rates
    if rates[0] == 1 and len(rates) > 1 and abs(sum(rates) - mean) <= room:
        return rates[1:]
    raise TraceError(f"{where}: rates by token add up to {sum(rates):.2f}, which a mean length of {mean} does not fit")


def _last(text: str, name: str) -> int | None:
    counts = re.findall(rf"(?:^|[^\w-]){re.escape(name)}\s+(\d{{1,15}})(?:\.0)?\s*$", text, re.MULTILINE)
    return int(counts[-1]) if counts else None


ENTRY = TraceSource(
    name="printed",
    title="printed results of vLLM's benchmarks",
    form="the table that `vllm bench serve` prints; `acceptance at token 0: ...` of vLLM's examples",
    trace_holds="several results are windows, from rates of four and two decimals and exact totals",
    settings={
        "uneven": "count what short drafts left out as rejected",
        "requests": "most texts that stand for the steps",
        "steps": "number of steps to draw, if none is printed",
    },
    holds=lambda content: bool(forms_in(content)),
    chain=read_printed,
    outputs=(
        Output("vLLM", "totals by position", "what `vllm bench serve` or vLLM's offline examples print", first=5),
    ),
)
