"""Step times that a verdict takes: the cost table of SGLang's DSpark planner, written and read, and two measured arms.

Source: dspark_components/dspark_sps.py of SGLang 0.5.23. Tokens are requests and drafted tokens together, and a step
includes drafting. The sampled form is written and read, the additive form is read.
"""

import json
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from simulate.profiles.engine_times_csv import column_of, number_of, table_of
from simulate.profiles.profile import Profile
from simulate.profiles.step_tables import BatchTimes
from treeopt.errors import CostError
from treeopt.replay.static_tree import replay_tree
from treeopt.storage.json_records import reading
from treeopt.storage.typed_records import Count, Positive, Record, read_record
from treeopt.storage.user_files import read_text, write_text
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

Rising = Annotated[tuple[Count, ...], Meta(min_length=1)]
DIGITS = 6  # significant, of a rate
MOST_BATCHES, MOST_TOKENS = 64, 64  # batch sizes, and tokens per request, of the profile that a table makes
ERROR = 0.05  # half-width of step / plain step: SGLang's table has medians and no errors; assumed


class SampledTable(Record, frozen=True):
    """The sampled form, `SpsCostTable`: tokens are looked up at the largest probe that does not exceed them."""

    sample_batch_tokens: Rising
    sample_steps_per_sec: Annotated[tuple[Positive, ...], Meta(min_length=1)]
    max_batch_tokens: Count

    @property
    def probes(self) -> dict[str, tuple[tuple[int, ...], tuple[float, ...]]]:
        """The probes with their values, by field; the first are also numbers of requests."""
        return {"sample_batch_tokens": (self.sample_batch_tokens, self.sample_steps_per_sec)}

    def step_s(self, requests: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return seconds of steps of as many tokens, those of all requests together."""
        places = np.searchsorted(self.sample_batch_tokens, tokens, side="right") - 1
        return np.asarray(1 / np.array(self.sample_steps_per_sec)[np.maximum(places, 0)])


class AdditiveTable(Record, frozen=True):
    """The additive form, `SpsAdditiveCostTable`: bias + alpha(requests) + theta(tokens), lines between probes."""

    bias_seconds: Positive
    bs_probes: Rising
    alpha_seconds: tuple[float, ...]
    m_probes: Rising
    theta_seconds: tuple[float, ...]

    @property
    def max_batch_tokens(self) -> int:
        """The most tokens that were measured."""
        return self.m_probes[-1]

    @property
    def probes(self) -> dict[str, tuple[tuple[int, ...], tuple[float, ...]]]:
        """See `SampledTable`."""
        return {"bs_probes": (self.bs_probes, self.alpha_seconds), "m_probes": (self.m_probes, self.theta_seconds)}

    def step_s(self, requests: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """See `SampledTable`."""
        alpha_s = np.interp(requests, self.bs_probes, self.alpha_seconds)
        return np.asarray(self.bias_seconds + alpha_s + np.interp(tokens, self.m_probes, self.theta_seconds))


def write_cost_table(profile: Profile, path: Path) -> None:
    """Write the sampled form: at each measured batch size, all its verified tokens, the longest chain drafted.

    Where several batch sizes have as many tokens the median counts; more tokens never make steps faster. Probes that
    change nothing are left out.
    """
    known: dict[int, list[float]] = {}
    for batch in sorted({times.batch for times in profile.batches}):
        parts = profile.parts(batch=batch, tokens=MOST_TOKENS, depth=MOST_TOKENS, width=1)
        levels = parts.draft_s[:, 1]
        verify_s = parts.verify_s[1:]
        verify_s[0] = verify_s[0] if np.isfinite(verify_s[0]) else profile.plain_s(batch=batch)
        drafted = min(np.isfinite(levels).sum(), np.isfinite(verify_s).sum() - 1)
        for tokens in np.flatnonzero(np.isfinite(verify_s)).tolist():
            seconds = float(verify_s[tokens] + levels[:drafted].sum())
            known.setdefault(batch * (tokens + 1), []).append(seconds)
    totals = sorted(known)
    slowest = np.maximum.accumulate([float(np.median(known[total])) for total in totals])
    rates = [float(f"{1 / s:.{DIGITS}g}") for s in slowest.tolist()]
    changed = [place for place, rate in enumerate(rates) if not place or rate != rates[place - 1]]
    table = {
        "sample_batch_tokens": [totals[place] for place in changed],
        "sample_steps_per_sec": [rates[place] for place in changed],
        "max_batch_tokens": totals[-1],
    }
    write_text(path, json.dumps(table) + "\n")


def read_cost_table(path: Path, *, device: str) -> Profile | None:
    """Return the step times of a table, as a profile of chains; None if the file holds none.

    Raises:
        CostError: names the file and the field that is missing or wrong.
    """
    with reading(path, CostError):
        text = read_text(path)
    try:
        record: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not record.keys() & {"sample_batch_tokens", "bias_seconds"}:
        return None
    kind: type[SampledTable | AdditiveTable] = AdditiveTable if "bias_seconds" in record else SampledTable
    meta = {"imported": {"format": "sglang-cost-table", "file": path.name}, "device": device}
    with reading(path, CostError):
        return Profile(_batches(read_record(record, kind)), (0, 2**20), ERROR, meta)


def _batches(table: SampledTable | AdditiveTable) -> tuple[BatchTimes, ...]:
    for name, (probes, values) in table.probes.items():
        if len(probes) != len(values) or (np.diff(probes) <= 0).any():
            raise CostError(f"`{name}` must rise strictly and have as many values, found {len(values)}")
    requests, last = next(iter(table.probes.values()))[0], table.max_batch_tokens
    batches = []
    for batch in [size for size in requests if 2 * size <= last][:MOST_BATCHES]:
        rest = table.step_s(batch, batch * np.arange(1, min(MOST_TOKENS, last // batch) + 1)).tolist()
        draft = tuple((levels, 0.0) for levels in range(1, len(rest)))
        batches.append(BatchTimes(batch, rest[0], draft, tuple(enumerate(rest, 1))))
    if not batches:
        raise CostError(f"no number of requests has a drafted token: its most tokens are {last}")
    return tuple(batches)


ARMS_ERROR = 0.1  # half-width of step / plain step where a length between the arms was not measured; assumed
FAR = 4  # ratio of neighbouring batch sizes between which a line says little
SENTENCE = (
    "step times come from two arms: drafting is taken to be the least that a speculative step takes beyond a plain "
    "one, at any load and length, and verification to depend on the drafted tokens of all requests together"
)


def profile_of_arms(path: Path, trace: Trace) -> tuple[Profile, list[str]]:
    """Return the step times that two arms imply, given the tokens per step of the trace, and what to know of them.

    The file is a table with the columns `batch` (requests at once), `drafted` (0, or the one fixed length) and
    `tokens_s` (of all requests, prompts excluded as far as possible).

    Raises:
        CostError: names file and line, or the arm that is missing; or the trace is not as deep as the arm.
    """
    with reading(path, CostError):
        text = read_text(path)
    rates: dict[int, dict[int, float]] = {}
    for number, row in table_of(path, text):
        columns, where = {column.holds: column for column in map(column_of, row)}, f"{path}: line {number}"
        if missing := {"batch", "drafted", "tokens_s"} - {*columns}:
            raise CostError(
                f"{path}: which column is {', '.join(sorted(missing))}? the columns are {', '.join(row):.300}: rename "
                "or add it; drafted is 0 for plain decoding, tokens_s of all requests"
            )
        batch, drafted = (int(number_of(row, columns[name], where, whole=True)) for name in ("batch", "drafted"))
        rate = number_of(row, columns["tokens_s"], where)
        if rate == 0 or batch in rates.get(drafted, {}):
            raise CostError(
                f"{where}: {batch}, {drafted}, {rate:g} {'are there twice' if rate else 'are not possible'}"
            )
        rates.setdefault(drafted, {})[batch] = rate
    lengths = sorted(rates)
    both = sorted(set.intersection(*map(set, rates.values()))) if rates else []
    if len(lengths) != 2 or lengths[0] != 0 or not both:
        raise CostError(f"{path}: `drafted` must be 0 and one length, at the same batch sizes; found {lengths}")
    if len(both) == 1:
        raise CostError(
            f"{path}: one batch size, {both[0]}, does not tell drafting from verification: measure a small and a large"
        )
    length = lengths[1]
    if length > trace.depth:
        raise CostError(
            f"{path}: {length} tokens are drafted, the acceptance has {trace.depth} positions: give as many, or "
            f"--accepted-length L@{length}"
        )
    tau = replay_tree(Tree.chain(length), trace).tau
    plain_s = np.array([batch / rates[0][batch] for batch in both])
    more_s = np.array([batch * tau / rates[length][batch] for batch in both]) - plain_s
    if more_s.min() < 0:
        raise CostError(
            f"{path}: at batch {both[int(more_s.argmin())]} a step of {tau:.2f} tokens takes less than a plain one: "
            "the acceptance is not that of the measurement"
        )
    draft_s = float(more_s.min())
    totals = np.append(0, np.array(both) * length)
    verify_s = np.maximum.accumulate(np.append(0.0, more_s - draft_s))
    draft = tuple((levels, draft_s) for levels in range(1, length + 1))
    batches = []
    for size, alone_s in zip(both, plain_s.tolist(), strict=True):
        rest = alone_s + np.interp(size * np.arange(length + 1), totals, verify_s)
        batches.append(BatchTimes(size, alone_s, draft, tuple(enumerate(rest.tolist(), 1))))
    meta = {"imported": {"format": "arms", "file": path.name}, "device": "the measured machine"}
    alone = [f"{size}" for size in sorted(set.union(*map(set, rates.values())) - {*both})]
    left_out = f"only one of the two arms was measured at batch {', '.join(alone)}: left out"
    apart = [f"{a} and {b}" for a, b in pairwise(both) if b > FAR * a]
    line = f"between batch {', '.join(apart)} verification is taken to rise on a line: measure loads between them"
    known = [SENTENCE, *([left_out] if alone else []), *([line] if apart else [])]
    return Profile(tuple(batches), (0, 2**20), ARMS_ERROR, meta), known
