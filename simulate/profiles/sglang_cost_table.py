"""SGLang's cost table of DSpark's planner: steps per second by the tokens of a batch, written from a profile and read.

Source: `SpsCostTable` in dspark_components/dspark_sps.py of SGLang 0.5.23, the sampled form. A number of tokens is
looked up at the largest probe that does not exceed it. Tokens are requests and drafted tokens together, and a step
includes drafting.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from simulate.profiles.profile import Profile
from simulate.profiles.step_tables import BatchTimes
from treeopt.errors import CostError
from treeopt.storage.atomic_files import write_text
from treeopt.storage.json_records import reading
from treeopt.storage.typed_records import Count, Positive, Record, read_record
from treeopt.storage.user_files import read_text

Rising = Annotated[tuple[Count, ...], Meta(min_length=1)]
DIGITS = 6  # significant, of a rate
MOST_BATCHES, MOST_TOKENS = 64, 64  # batch sizes, and tokens per request, of the profile that a table makes
ERROR = 0.05  # half-width of step / plain step: SGLang's table has medians and no errors; assumed


class SampledTable(Record, frozen=True):
    """The sampled form."""

    sample_batch_tokens: Rising
    sample_steps_per_sec: Annotated[tuple[Positive, ...], Meta(min_length=1)]
    max_batch_tokens: Count


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
    if not isinstance(record, dict) or "sample_batch_tokens" not in record:
        return None
    with reading(path, CostError):
        table = read_record(record, SampledTable)
    probes, step_s = np.array(table.sample_batch_tokens), 1 / np.array(table.sample_steps_per_sec)
    if probes.shape != step_s.shape or (np.diff(probes) <= 0).any():
        raise CostError(f"{path}: `sample_batch_tokens` must rise strictly and have as many rates, found {len(step_s)}")
    last = table.max_batch_tokens
    batches = []
    for batch in probes[2 * probes <= last][:MOST_BATCHES].tolist():
        total = batch * np.arange(1, min(MOST_TOKENS, last // batch) + 1)
        rest = step_s[np.maximum(np.searchsorted(probes, total, side="right") - 1, 0)].tolist()
        draft = tuple((levels, 0.0) for levels in range(1, len(rest)))
        batches.append(BatchTimes(batch, rest[0], draft, tuple(enumerate(rest, 1))))
    if not batches:
        raise CostError(f"{path}: has no number of requests with a drafted token: its most tokens are {last}")
    meta = {"imported": {"format": "sglang-cost-table", "file": path.name}, "device": device}
    return Profile(tuple(batches), (0, 2**20), ERROR, meta)
