"""A cost model shifted to step times that a user observed (`--observed`).

A plain step and one with drafts tell how fast a device, and how slow a host, this one is. Four numbers of the model
move: the device's time, and the host's per plain step, per speculative step and per level. Each stays as near to its
published value as the observations let it (least squares with the spread of published values as weights); a host that
is slower in plain steps is taken to be in speculative ones.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np

from simulate.roofline.roofline_model import Roofline
from treeopt.errors import CostError, UsageError

HOST_SPREAD = np.array([0.15, 0.5e-3, 1.5e-3, 0.25e-3])  # of device time (a share), and s per plain step, step, level
PRIOR = np.eye(4) - np.eye(4, k=-1) * [0, 1, 0, 0]  # a host that is slow in plain steps is as slow in others
MEASURED = 0.01  # relative error of an observation
UNITS = {"ms": 1e-3, "us": 1e-6, "s": 1.0}
ERROR = 0.08  # 95 % of published steps of other lengths and batch sizes, given two: docs/results/engines_published.md
NUMBERS = {"batch": 5, "K": 3, "context": 9}  # and their digits
# Least share of the data sheet's time: of 573 published steps (tests/benchmarks/published_steps.py) 0.65 is the least.
QUICKEST = 0.6


@dataclass(frozen=True)
class Observed:
    """The time of a step in an engine.

    Attributes:
        batch: sequences.
        length: tokens drafted per sequence in a chain; 0: a plain step.
        seconds: of the whole step.
        context: tokens per sequence in the cache; None: the question's first.
    """

    batch: int
    length: int
    seconds: float
    context: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Observed":
        """Return an observation from text.

        Raises:
            UsageError: says how it is written.

        >>> Observed.parse("batch=1,K=3:10ms")
        Observed(batch=1, length=3, seconds=0.01, context=None)
        """
        numbers, _, time = text.replace(" ", "").rpartition(":")
        pairs = [pair.partition("=") for pair in numbers.split(",")]
        found = {
            name: int(number)
            for name, _, number in pairs
            if name in NUMBERS and re.fullmatch(rf"\d{{1,{NUMBERS[name]}}}", number)
        }
        number, unit = re.fullmatch(r"([\d.]{1,20})([a-z]*)", time) or ("", "", ""), UNITS
        try:
            seconds = float(number[1]) * unit[number[2]]
        except (ValueError, KeyError):
            seconds = 0.0
        if len(found) != len(pairs) or not {"batch", "K"} <= found.keys() or not found["batch"] or not seconds > 0:
            raise UsageError(
                f"--observed takes a batch size, a draft length and a step's time, such as batch=1,K=3:10.4ms (K=0: a "
                f"plain step; context=4096 may be added), not {text!r:.80}"
            )
        return cls(found["batch"], found["K"], seconds, found.get("context"))


def shifted(model: Roofline, observed: Sequence[Observed]) -> Roofline:
    """Return the model that agrees with the observations, and is otherwise as near to `model` as it can be.

    Raises:
        CostError: no speed of device and host agrees with them within a tenth, only one that no device has, or a larger
            step takes a tenth less.
    """
    from scipy.optimize import lsq_linear

    for one, other in permutations(observed, 2):
        larger = other.batch >= one.batch and other.length >= one.length and other.context == one.context
        if larger and other.seconds < 0.9 * one.seconds:
            raise CostError(
                f"--observed: batch {other.batch}, K {other.length} takes {1e3 * other.seconds:.4g} ms, less than the "
                f"{1e3 * one.seconds:.4g} ms of batch {one.batch}, K {one.length}; are all of one machine, and of "
                "whole steps?"
            )
    rows, seconds = zip(*(_terms(model, each) for each in observed), strict=True)
    design, fixed = np.array(rows), np.array(seconds)
    measured = np.array([each.seconds for each in observed])
    host = model.overheads
    start = np.array([1.0, host.plain_s, host.step_s, host.level_s])
    weights = np.concatenate([1 / (MEASURED * measured), 1 / HOST_SPREAD])
    matrix = np.concatenate([design, PRIOR]) * weights[:, None]
    target = np.concatenate([measured - fixed, PRIOR @ start]) * weights
    scale, plain_s, step_s, level_s = (
        float(x) for x in lsq_linear(matrix, target, ([0.1, 0, 0, 0], np.inf), method="bvls").x
    )
    if scale < QUICKEST:
        raise CostError(
            f"--observed: {model.label} would be {1 / scale:.2g} times as fast as assumed, more than in any published "
            "step: is it the time per token (TPOT; a step takes TPOT x tokens per step), or is --weight-bytes too high?"
        )
    left = (design @ [scale, plain_s, step_s, level_s] + fixed) / measured - 1
    if np.abs(left).max() > 0.1:
        worst = observed[int(np.abs(left).argmax())]
        raise CostError(
            f"--observed: batch {worst.batch}, K {worst.length} takes {1e3 * worst.seconds:.4g} ms, which no speed of "
            f"{model.label} and its host agrees with beside the others; are all of one machine, and of whole steps?"
        )
    device = replace(model.device, bandwidth=model.device.bandwidth / scale, flops=model.device.flops / scale)
    count = f"{len(observed)} observed step{'s' * (len(observed) > 1)}"
    source = f"shifted to {count}, which make the device's time {scale:.2f} times as long; before: {host.source}"
    shift = replace(host, plain_s=plain_s, step_s=step_s, level_s=level_s, source=source)
    model = replace(model, device=device, overheads=shift)
    if len({each.length > 0 for each in observed}) == 1:  # how much longer a step with drafts takes is open
        return model
    largest = max(each.batch * (each.length + 1) for each in observed)
    return replace(model, overheads=replace(shift, error=ERROR), observed_rows=largest)


def _terms(model: Roofline, each: Observed) -> tuple[list[float], float]:
    """Return what the four numbers are multiplied with in a step, and its other seconds."""
    host = model.overheads
    place: dict[str, Any] = {"batch": each.batch, "context": each.context}
    if each.length == 0:
        plain = model.plain(**place)
        return [float(plain.work_s), 1.0, 0.0, 0.0], float(plain.fixed_s) - host.plain_s
    verify, chain = model.verify(each.length + 1, **place), model.chain(each.length, **place)
    waits = 1 if model.separable else each.length
    fixed_s = float(verify.fixed_s) + float(chain.fixed_s[-1]) - host.step_s - waits * host.level_s
    return [float(verify.work_s) + float(chain.work_s[-1]), 0.0, 1.0, float(waits)], fixed_s
