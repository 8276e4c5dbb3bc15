"""Step times from two measured arms: tokens per second without speculation and with one fixed length, by requests."""

import csv
from pathlib import Path

import numpy as np

from simulate.profiles.profile import Profile
from simulate.profiles.step_tables import BatchTimes
from treeopt.errors import CostError
from treeopt.replay.static_tree import replay_tree
from treeopt.storage.atomic_files import why
from treeopt.storage.user_files import read_text
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

ERROR = 0.1  # half-width of step / plain step where a length between the arms was not measured; assumed
SENTENCE = (
    "step times come from two arms: drafting is taken to be the least that a speculative step takes beyond a plain "
    "one, at any load and length, and verification to depend on the drafted tokens of all requests together"
)


def profile_of_arms(path: Path, trace: Trace) -> tuple[Profile, list[str]]:
    """Return the step times that two arms imply, given the tokens per step of the trace, and what to know of them.

    The file is a table with the columns `batch` (requests at once), `drafted` (0, or the one fixed length) and
    `tokens_s` (of all requests, prompts excluded as far as possible).

    Raises:
        CostError: names file and line, or the arm that is missing.
        TraceError: the trace is not as deep as the arm.
    """
    rates: dict[int, dict[int, float]] = {}
    try:
        reader = csv.DictReader(read_text(path).splitlines(), skipinitialspace=True)
        for row in reader:
            batch, drafted, rate = int(row["batch"]), int(row["drafted"]), float(row["tokens_s"])
            if batch < 1 or drafted < 0 or not 0 < rate < np.inf or batch in rates.get(drafted, {}):
                why_not = "are there twice" if batch in rates.get(drafted, {}) else "are not possible"
                raise CostError(f"{path}: line {reader.line_num}: {batch}, {drafted}, {rate} {why_not}")
            rates.setdefault(drafted, {})[batch] = rate
    except (OSError, UnicodeDecodeError) as error:
        raise CostError(f"{path}: cannot be read: {why(error)}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CostError(
            f"{path}: line {reader.line_num}: {error!r:.80}; the columns are batch, drafted, tokens_s"
        ) from error
    lengths = sorted(rates)
    both = sorted(set.intersection(*map(set, rates.values()))) if rates else []
    if len(lengths) != 2 or lengths[0] != 0 or not both:
        raise CostError(f"{path}: `drafted` must be 0 and one length, at the same batch sizes; found {lengths}")
    length = lengths[1]
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
    meta = {"predicted": {"arms": path.name}, "device": "the measured machine"}
    alone = [f"{size}" for size in sorted(set.union(*map(set, rates.values())) - {*both})]
    left_out = f"only one of the two arms was measured at batch {', '.join(alone)}: left out"
    return Profile(tuple(batches), (0, 2**20), ERROR, meta), [SENTENCE, *([left_out] if alone else [])]
