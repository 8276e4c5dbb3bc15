"""Confidences: the drafter's probability of each token of its own chain at every anchor, and how often it was right."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeopt.acceptance_rule_entries import draws_candidates, may_accept_several
from treeopt.traces.trace import Trace

BINS = 10
ALONG_TEXT = (
    "the trace records the drafter's probabilities along the text, and no confidences: behind a rejected token the "
    "text's own tokens stand for the drafted ones; record with --confidences"
)


def confidences(trace: Trace) -> tuple[NDArray[np.float64], str] | None:
    """Return the confidence of each token of the chain drafted from each anchor, float64 (P, D), and what was assumed.

    They come from the array `confidence`, else from `draft_prob`; None without both. They are 0 where nothing is
    proposed.
    """
    if trace.confidence is not None:
        return trace.confidence.astype(np.float64), ""
    return None if trace.draft_prob is None else (trace.draft_prob[:, :, 0].astype(np.float64), ALONG_TEXT)


@dataclass(frozen=True)
class Bin:
    """The drafted tokens of one range of confidence whose ancestors were right.

    Attributes:
        tokens: their number.
        confidence: mean confidence.
        right: share that the target accepted.
    """

    tokens: int
    confidence: float
    right: float


@dataclass(frozen=True)
class Reliability:
    """The reliability curve of confidences.

    Attributes:
        bins: ten ranges of equal width from 0 to 1; empty ones are left out.
        error: expected calibration error, the mean of |confidence - right| over the tokens of all bins.
            Source: Guo et al. 2017, arXiv 1706.04599, eq. 3.
    """

    bins: tuple[Bin, ...]
    error: float

    def as_json(self) -> dict[str, Any]:
        """Return bins and error as JSON values, rounded to four digits."""
        rounded = [{key: round(value, 4) for key, value in asdict(row).items()} for row in self.bins]
        return {"error": round(self.error, 4), "bins": rounded}


def reliability(trace: Trace) -> Reliability | None:
    """Return how often drafted tokens below right ones are right, by confidence, over all anchors of the trace.

    None without confidences, or where ranks do not say what the rule accepts.

    >>> from dataclasses import replace
    >>> trace = Trace(np.int32([0, 0]), np.int32([0, 1]), np.int16([[0, -1], [0, -2]]), 2)
    >>> reliability(replace(trace, confidence=np.float16([[1, 0.25], [0.75, 0.5]]))).error
    0.1666...
    """
    given, rule = confidences(trace), trace.meta.get("verification")
    if given is None or may_accept_several(rule) or (draws_candidates(rule) and not trace.meta.get("drawn_ranks")):
        return None
    right = trace.rank == 0
    below = np.cumprod(np.pad(right, ((0, 0), (1, 0)), constant_values=True)[:, :-1], axis=1, dtype=bool)
    reach = trace.left if trace.drafted is None else np.minimum(trace.left, trace.drafted)
    counted = below & (np.arange(trace.depth) < reach[:, None])
    promised, kept = given[0][counted], right[counted]
    place = np.minimum((promised * BINS).astype(int), BINS - 1)
    tokens, sums, hits = (np.bincount(place, weights, BINS) for weights in (None, promised, kept))
    bins = [Bin(int(n), float(p / n), float(k / n)) for n, p, k in zip(tokens, sums, hits, strict=True) if n]
    error = sum(b.tokens * abs(b.confidence - b.right) for b in bins) / max(int(tokens.sum()), 1)
    return Reliability(tuple(bins), error)
