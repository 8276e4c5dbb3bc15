"""Texts that stand for counted steps: how many, which steps each holds, and how often it repeats them.

Counts say nothing about texts. Few steps in many texts make texts of one to three steps, whose ends cut the steps of
shorter chains; one text has no interval. So each text holds some of the steps, as few as a ratio can bear, and repeats
them until its end does not count: an interval that compares texts is then that of the counted steps.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from treeopt.traces.importers.synthetic_trace import MAX_BYTES, shuffled_outcomes

END_BIAS = 0.0025  # share by which the ends of texts may lower tau of shorter chains
STEPS_PER_TEXT = 25  # counted steps that a text stands for, at least: ratios of fewer are biased
FEWEST_TEXTS = 10  # fewest texts or windows, where there are that many steps: half of them are held out
SHARE_OF_MEMORY = 4  # texts are repeated up to this part of the largest trace

Histogram = NDArray[np.int64]  # steps that accept 0, 1, ... drafts


def dealt(shares: NDArray[np.float64], steps: int, texts: int, rng: np.random.Generator) -> list[Histogram]:
    """Deal counted steps to at most `texts` texts at random; return the histogram of each.

    Args:
        shares: share of the steps that accept 0, 1, ... drafts.
        steps: steps that were counted.
        texts: largest number of texts.
        rng: deals.

    >>> texts = dealt(np.array([0.25, 0.75]), 100, 200, np.random.default_rng(0))
    >>> len(texts), sum(texts).tolist()
    (10, [25, 75])
    """
    number = max(min(texts, max(steps // STEPS_PER_TEXT, min(steps, FEWEST_TEXTS))), 1)
    parts = np.array_split(shuffled_outcomes(shares, steps, rng), number)
    return [np.bincount(part, minlength=len(shares)) for part in parts]


def repetitions(texts: Sequence[Histogram]) -> int:
    """Return how often each text must hold its steps so that ends bias shorter chains by `END_BIAS` at most.

    The last step of a shorter chain's walk passes the end by at most E[a (a + 1)] / (2 E[a + 1]) tokens on average, the
    mean residual life of a renewal process, where a is the number of drafts that a step accepts.
    """
    steps = np.sum(texts, axis=0)
    accepted = np.arange(len(steps))
    tokens = float(steps @ (accepted + 1))
    passed = float(steps @ (accepted * (accepted + 1))) / (2 * tokens)
    needed = passed / END_BIAS * len(texts) / tokens
    affordable = MAX_BYTES / SHARE_OF_MEMORY / (tokens * (2 * len(steps) + 6))
    return max(math.ceil(min(needed, affordable)), 1)
