"""Measure prefill times in the decoding loop: prompts of rising length, and several of the longest at once."""

import math
import time
from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.decoding.decoder import Decoder
from executor.drafters.base.drafter import Drafter
from executor.target.target_model import Target
from executor.target.tensor_parallel import processes
from executor.verification.acceptance_rules import Rule
from simulate.profiles.prefill import Prefill, ladder
from treeopt.tree import EMPTY, Tree

PASSES = 6  # over all sizes, the first of which warms up
ENOUGH = 2048  # tokens read at once: from here on the time grows in proportion
TREES = {"plain": EMPTY, "drafted": Tree.chain(1)}


def measure_prefill(
    target: Target,
    drafter: Drafter,
    stream: NDArray[Any],
    *,
    low: int,
    high: int,
    rows: int,
    rule: Rule,
    rng: np.random.Generator,
    limit_s: float = math.inf,
) -> Prefill:
    """Return the medians over a few passes, each in random order.

    Args:
        target: the verifying model.
        drafter: what proposes.
        stream: token ids that prompts are cut from, going round.
        low: tokens of the shortest prompt.
        high: tokens of the longest.
        rows: most prompts at once, as long as they have `ENOUGH` tokens at most.
        rule: of verification.
        rng: draws places in the stream, and the order.
        limit_s: no pass is begun that would take the total beyond this; the first is always made.
    """
    sizes = [(1, tokens) for tokens in ladder(low, high)]
    sizes += [(batch, high) for batch in ladder(1, rows)[1:] if batch * high <= ENOUGH]
    places = [(name, batch, tokens) for name in TREES for batch, tokens in sizes]
    seconds = defaultdict[tuple[str, int, int], list[float]](list)
    started = last = time.perf_counter()
    for _ in range(PASSES):
        for i in rng.permutation(len(places)).tolist():
            name, batch, tokens = places[i]
            starts = rng.integers(len(stream), size=batch)
            prompts = [np.take(stream, start + np.arange(tokens), mode="wrap").tolist() for start in starts]
            target.forget_prompts(range(batch))  # inside `keeping_prompts` the same one may come twice
            decoder = Decoder(target, drafter, tree=TREES[name], batch=batch, rule=rule)
            seconds[places[i]].append(next(decoder.steps(prompts, new_tokens=1)).admit_s)
        now = time.perf_counter()
        # Several processes must all make the same number of passes, whatever their clocks say.
        if processes() == 1 and now - started + (now - last) > limit_s:
            break
        last = now
    medians = {place: float(np.median(passes[1:] or passes)) for place, passes in seconds.items()}
    return Prefill(*(tuple((batch * n, medians[name, batch, n]) for batch, n in sizes) for name in TREES))
