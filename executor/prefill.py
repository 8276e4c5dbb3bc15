"""Measure prefill: prompts of rising length, each alone in a batch of one, taken in by the loop that decodes."""

import math
import time
from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.acceptance import Rule
from executor.decode import Decoder
from executor.drafters.base import Drafter
from executor.parallel import processes
from executor.target import Target
from simulate.prefill import Prefill, ladder
from treeopt.tree import EMPTY, Tree

PASSES = 6  # over all lengths, the first of which warms up
TREES = {"plain": EMPTY, "drafted": Tree.chain(1)}


def measure_prefill(
    target: Target,
    drafter: Drafter,
    stream: NDArray[Any],
    *,
    low: int,
    high: int,
    rule: Rule,
    rng: np.random.Generator,
    limit_s: float = math.inf,
) -> Prefill:
    """Medians over a few passes, in random order.

    Args:
        target: the verifying model.
        drafter: what proposes.
        stream: token ids that prompts are cut from, going round.
        low: tokens of the shortest prompt.
        high: tokens of the longest.
        rule: of verification.
        rng: of places and order.
        limit_s: no pass is begun that would take the whole beyond so many seconds; the first is always made.
    """
    places = [(name, tokens) for name in TREES for tokens in ladder(low, high)]
    seconds = defaultdict[tuple[str, int], list[float]](list)
    started = last = time.perf_counter()
    for _ in range(PASSES):
        for i in rng.permutation(len(places)).tolist():
            name, tokens = places[i]
            prompt = np.take(stream, rng.integers(len(stream)) + np.arange(tokens), mode="wrap").tolist()
            target.forget_prompts([0])  # inside `keeping_prompts` the same one may come twice
            decoder = Decoder(target, drafter, tree=TREES[name], batch=1, rule=rule)
            seconds[places[i]].append(next(decoder.steps([prompt], new_tokens=1)).admit_s)
        now = time.perf_counter()
        # Several processes must all make as many passes, whatever their clocks say.
        if processes() == 1 and now - started + (now - last) > limit_s:
            break
        last = now
    medians = {place: float(np.median(found[1:] or found)) for place, found in seconds.items()}
    return Prefill(*(tuple((n, medians[name, n]) for n in ladder(low, high)) for name in TREES))
