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

DRAFTING = 0.2  # of what a speculative step takes beyond a plain one; assumed
ERROR = 0.1  # half-width of step / plain step where a length between the arms was not measured; assumed
SENTENCE = (
    f"step times come from two arms: drafting is taken to be {DRAFTING:.0%} of what a speculative step takes beyond a "
    "plain one, at any length, and verification to lie on a straight line between the arms"
)


def profile_of_arms(path: Path, trace: Trace) -> Profile:
    """Return the step times that two arms imply, given the tokens per step of the trace.

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
            if batch < 1 or drafted < 0 or not 0 < rate < np.inf:
                raise ValueError(f"{batch}, {drafted}, {rate} are not possible")
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
    batches = []
    for batch in both:
        plain_s, step_s = batch / rates[0][batch], batch * tau / rates[length][batch]
        if step_s < plain_s:
            raise CostError(
                f"{path}: at batch {batch} a step of {tau:.2f} tokens takes {1e3 * step_s:.3g} ms, less than a plain "
                f"one of {1e3 * plain_s:.3g} ms: the acceptance is not that of the measurement"
            )
        draft_s = DRAFTING * (step_s - plain_s)
        rest = ((1, plain_s), (length + 1, step_s - draft_s))
        draft = tuple(dict.fromkeys([(1, draft_s), (length, draft_s)]))
        batches.append(BatchTimes(batch, plain_s, draft, rest))
    return Profile(tuple(batches), (0, 2**20), ERROR, {"predicted": {"arms": path.name}, "device": "as measured"})
