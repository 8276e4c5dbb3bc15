"""A trace from acceptance as people have it: one rate, rates by position, an accepted length, or a published curve.

Such a trace holds chains. It has as many positions as were given, at least `LENGTH`; a law supplies what the figure
leaves open. Its texts belong to `GROUPS` groups, half of them like the curve that falls faster and half like the
one that falls slower, so that an interval clustered by group is the law's. All requests are invented alike: a search
need not hold any of them out.

The law: the k-th draft token, given that those before it were accepted, is accepted with probability h_k, where
logit h_k = a − b ln k. The slope b is the curves' own: over those of `data/published/acceptance.json` its median is
`SLOPE`, and SLOPE ± `SLOPE_HALF` is as wide as the 95 % prediction interval of a further one (Student's t). b = 0 is
the geometric law. What was fitted and how well curves of models that were left out are predicted:
docs/results/acceptance_law.md (`python -m tests.benchmarks.fit_acceptance_curves`).
"""

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import UsageError, counted
from treeopt.settings import typed
from treeopt.statistics import isotonic, quantile
from treeopt.storage.provenance import this_run
from treeopt.storage.user_files import shipped
from treeopt.traces.importers.synthetic_trace import drawn_by_text, trace_from_ranks
from treeopt.traces.trace import MAX_DEPTH, MISSED, Trace

LENGTH = 8  # positions of most published curves
REFERENCE = 4  # positions over which a rate "given the one before" is taken to be the mean
GROUPS = 6
TEXTS_PER_GROUP = 34
TOKENS = 2048  # of a text: its end shortens the steps of shorter chains by 0.1 % at most
PUBLISHED = "published/acceptance.json"
FORMS = "0.75 (each token given the one before), 0.48@3 (accepted over drafted tokens, 3 drafted), 0.73,0.52,0.35 "
FORMS += "(shares of all steps by position), or a name of `treeopt.published_acceptance()`"
SLOPE, SLOPE_HALF = 0.44, 1.47
NOISE = 0.25  # standard deviation of a published logit h_k around its curve,
TYPICAL = 0.75  # where h_k is about this
FURTHEST = 20.0  # largest |a|: acceptance within 2e-9 of 0 or 1
CERTAIN = 6.0  # largest |logit| of a given rate
HALVINGS = 60

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curves:
    """P(the first k draft tokens are accepted), float64 (length,): expected, and the ends of its 95 % interval.

    The ends are whole curves, one falling faster and one slower: where a sum of several is known, they cross.
    """

    expected: Floats
    faster: Floats
    slower: Floats

    @property
    def drawn(self) -> tuple[Floats, Floats]:
        """The slower and the faster curve that a trace's texts are drawn from; their mean is what replay gives.

        They lie so near the expected one that Student's interval of `GROUPS` means is as wide as the ends are apart.
        """
        near = np.sqrt(GROUPS - 1) / quantile(GROUPS)
        slower, faster = (near * end + (1 - near) * self.expected for end in (self.slower, self.faster))
        return slower, faster


AcceptanceFigure = tuple[str, Curves]  # a figure in one sentence, and the curves that it stands for


@cache
def published_acceptance() -> dict[str, tuple[float, ...]]:
    """Return accepted lengths (tokens per step, bonus counted) with 1, 2, ... draft tokens, by name of the curve.

    >>> published_acceptance().get("kimi-k3-dspark")[:3]
    (1.85, 2.51, 3.0)
    """
    curves = json.loads(shipped(PUBLISHED).read_text("utf-8"))["curves"]
    whole = (curve for curve in curves if curve["length"] == list(range(1, len(curve["length"]) + 1)))
    return {curve["name"]: tuple(curve["accepted_length"]) for curve in whole}


@typed
def acceptance(
    figure: str | float | Collection[float] | None = None, *, accepted_length: str | float | None = None
) -> Trace:
    """Return a trace of chains that a figure of acceptance stands for; give the figure or an accepted length.

    Args:
        figure: `0.75`: each token given the one before; `"0.48@3"`: accepted over drafted tokens of drafts of 3;
            `"0.73,0.52,0.35"` or a sequence: shares of all steps by position; or a name of `published_acceptance()`.
        accepted_length: `"3.2@5"`: tokens per step, the bonus counted, of drafts of 5; or `"1.8,2.4,2.9"`: of 1, 2, 3.

    Raises:
        UsageError: both or neither, no such form or name, or numbers that no drafter can have.

    >>> trace = acceptance("0.8,0.6,0.4")
    >>> trace.depth, trace.requests
    (8, 204)
    """
    if (figure is None) == (accepted_length is None):
        raise UsageError("give either acceptance or accepted_length")
    if isinstance(figure, Collection) and not isinstance(figure, str):
        figure = ",".join(str(float(rate)) for rate in figure) + ("," if len(figure) == 1 else "")
    text = str(figure if accepted_length is None else accepted_length).strip()
    stands_for = _acceptance(text) if accepted_length is None else _accepted_length(text)
    return _trace(text, stands_for, "acceptance" if accepted_length is None else "accepted_length")


def _acceptance(text: str) -> AcceptanceFigure:
    if (name := text.lower()) in published_acceptance():
        rates = _falling(np.diff([1.0, *published_acceptance()[name]]))
        meaning = f"acceptance is the published curve {name}, one run of {len(rates)} lengths"
        return meaning, from_positions(rates, max(len(rates), LENGTH))
    if re.search(r"[^\d\W]", re.sub(r"(?<=\d)[eE](?=[-+\d])", "", text)):
        raise UsageError(f"{text!r} is no figure of acceptance: give {FORMS}: {', '.join(published_acceptance())}")
    value, drafted = _at(text.strip("[]()"), "--acceptance", FORMS)
    parts = [part.strip() for part in re.split("[,/]", value.removesuffix(","))]
    if len({part.endswith("%") for part in parts}) > 1:
        raise UsageError(f"--acceptance {text} mixes per cent and shares: give % to each, or to none")
    rates = [_number(part, text) for part in parts]
    for place, rate in enumerate(rates):
        if not 0 <= rate <= 1:
            ways = "75% is per cent, decimals stand behind a point, tokens per step are --accepted-length L@K"
            raise UsageError(f"--acceptance {text}: position {place} must be in 0 to 1, got {rate:g}: {ways}")
    if drafted is not None:
        if len(rates) > 1:
            raise UsageError(f"--acceptance {text}: @ goes with one rate; rates by position name their number already")
        total = rates[0] * drafted
        shown = f"{drafted} drafted a step: {1 + total:.3g} tokens per step, bonus counted"
        meaning = f"{rates[0]:.3g} of the drafted tokens are accepted, {shown}"
        return meaning, _of_sum(total, drafted)
    if len(rates) == 1 and not value.endswith(","):
        meaning = f"a token is accepted with {rates[0]:.3g} given the one before, on average over the first {REFERENCE}"
        return meaning, from_sum(_given_the_one_before, rates[0], LENGTH)
    for place, (before, rate) in enumerate(pairwise(rates), 1):
        if rate > before or 0 < rates[0] == rates[-1] < 1:
            products = ",".join(f"{product:.3g}" for product in np.cumprod(rates))
            raise UsageError(
                f"--acceptance {text}: position {place} is accepted as often as the one before it or more: give shares "
                f"of all steps; if each is given the one before, they are {products}"
            )
    if rates[0] == 1 > rates[-1]:
        raise UsageError(f"--acceptance {text}: position 0 is always accepted: leave out the 1 of the step itself")
    meaning = f"{len(rates)} positions are as given, shares of all steps"
    return meaning, from_positions(rates, max(len(rates), LENGTH))


def _accepted_length(text: str) -> AcceptanceFigure:
    form = "3.2@5 (tokens per step, bonus counted, 5 drafted) or 1.8,2.4,2.9 (with 1, 2 and 3 drafted)"
    value, drafted = _at(text.strip("[]()"), "--accepted-length", form)
    lengths = [_number(part, text, form) for part in (value.split(",") if drafted is None else [value])]
    if drafted is None and len(lengths) == 1:
        raise UsageError(f"--accepted-length {text}: say of how many draft tokens: {text}@K")
    for number, length in enumerate(lengths, drafted or 1):
        if not 1 <= length <= number + 1:
            raise UsageError(
                f"--accepted-length {text}: {counted(number, 'draft token')} and the bonus give 1 to {number + 1} "
                f"tokens per step, got {length:g}; without the bonus, add 1"
            )
    if drafted is None:
        rates = _falling(np.diff([1.0, *lengths]))
        meaning = f"tokens per step with 1 to {len(rates)} draft tokens are as given, bonus counted"
        return meaning, from_positions(rates, max(len(rates), LENGTH))
    meaning = f"{lengths[0]:.4g} tokens per step with {counted(drafted, 'draft token')}, bonus counted"
    return meaning, _of_sum(lengths[0] - 1, drafted)


def _at(text: str, option: str, forms: str) -> tuple[str, int | None]:
    """Return what stands before an @, and the number of draft tokens behind it."""
    value, at, number = text.partition("@")
    if at and not (number.strip().isdecimal() and 1 <= int(number) <= MAX_DEPTH):
        raise UsageError(f"{option} {text}: behind @ stands the number of draft tokens, 1 to {MAX_DEPTH}")
    if not value.strip():
        raise UsageError(f"{option} takes {forms}")
    if (positions := 1 + len(re.findall("[,/]", value))) > MAX_DEPTH:
        raise UsageError(f"{option} names {positions} positions, at most {MAX_DEPTH}")
    return value, int(number) if at else None


def _number(part: str, text: str, forms: str = FORMS) -> float:
    try:
        return float(part.strip().removesuffix("%")) / (100 if part.strip().endswith("%") else 1)
    except ValueError:
        raise UsageError(f"{text!r} is no figure of acceptance: give {forms}") from None


def _of_sum(total: float, drafted: int) -> Curves:
    return from_sum(lambda curve: float(curve[:drafted].sum()), total, max(drafted, LENGTH))


def _given_the_one_before(curve: Floats) -> float:
    """Return accepted tokens over tokens that were tried, in the first `REFERENCE` positions."""
    return float(curve[:REFERENCE].sum() / (1 + curve[: REFERENCE - 1].sum()))


def _falling(rates: Floats) -> Sequence[float]:
    """Return the nearest rates that do not rise: published lengths are measured with noise."""
    places = np.arange(len(rates), dtype=np.float64)
    rates = np.clip(-isotonic(places, -rates).at(places), 0.0, 1.0)
    return tuple(float(rate) for rate in rates)


def _trace(text: str, figure: AcceptanceFigure, name: str) -> Trace:
    (meaning, curves), length = figure, len(figure[1].expected)
    shares = -np.diff([[1.0, *curve, 0.0] for curve in curves.drawn])
    group = np.repeat(np.arange(GROUPS), TEXTS_PER_GROUP)
    rng = np.random.default_rng(0)
    accepted = drawn_by_text(shares[group % 2], [TOKENS] * len(group), rng)
    rank = np.where(np.arange(length) < accepted[:, None], np.int16(0), np.int16(MISSED))
    given = f"{meaning}; what it leaves open is as in published curves, 95 % interval included"
    meta = {
        "imported": {"format": "acceptance", name: text, "survival": np.mean(curves.drawn, axis=0).round(4).tolist()},
        "assumed": [given],
        "provenance": this_run(),
    }
    names = tuple(f"{'slower' if i % 2 == 0 else 'faster'} {i // 2 + 1}" for i in range(GROUPS))
    return trace_from_ranks(
        rank, [TOKENS] * len(group), width=1, meta=meta, domain=group.astype(np.int16), domain_names=names
    )


def survival(level: float, slope: float, length: int) -> Floats:
    """Return P(the first k draft tokens are accepted), k = 1 to `length`, float64 (length,), by the law.

    >>> survival(0.0, 0.0, 3).tolist()
    [0.5, 0.25, 0.125]
    """
    return np.asarray(np.cumprod(_rate(level - slope * np.log(np.arange(1, length + 1)))))


def from_sum(known: Callable[[Floats], float], value: float, length: int) -> Curves:
    """Return the curves on which one figure has a value.

    Args:
        known: the figure of a curve of `length` positions; it rises with acceptance.
        value: its value.
        length: positions.

    >>> curves = from_sum(lambda curve: float(curve[:3].sum()), 1.5, 4)
    >>> [round(float(curve[:3].sum()), 3) for curve in (curves.expected, curves.faster, curves.slower)]
    [1.5, 1.5, 1.5]
    """

    def curve(slope: float) -> Floats:
        low, high = -FURTHEST, FURTHEST
        for _ in range(HALVINGS):
            level = (low + high) / 2
            low, high = (level, high) if known(survival(level, slope, length)) < value else (low, level)
        return survival(high, slope, length)

    return Curves(curve(SLOPE), curve(SLOPE + SLOPE_HALF), curve(SLOPE - SLOPE_HALF))


def from_positions(rates: Sequence[float], length: int) -> Curves:
    """Return the curves that hold P(the first k are accepted) at the first positions, completed to `length`.

    The law's two numbers are estimated from the given positions, with the published slopes as the prior.

    >>> from_positions([0.8, 0.6], 4).expected.round(2).tolist()
    [0.8, 0.6, 0.43, 0.3]
    """
    known = np.asarray(rates, dtype=np.float64)
    before = np.append(1.0, known[:-1])
    alive = before > 0
    given = np.clip(known[alive] / before[alive], _rate(-CERTAIN), _rate(CERTAIN))
    logits = np.log(given / (1 - given))
    # What is measured with equal error is h_k: near 0 and 1 its logit says little.
    weights = (given * (1 - given) / (NOISE * TYPICAL * (1 - TYPICAL))) ** 2
    places = np.log(np.arange(1, length + 1))
    design = np.stack([np.ones_like(logits), -places[: len(logits)]], axis=1)
    prior = np.diag([0.0, 1 / (SLOPE_HALF / 2) ** 2])
    precision = design.T * weights @ design + prior
    fit = np.linalg.solve(precision, design.T * weights @ logits + prior @ [0.0, SLOPE])
    beyond = np.stack([np.ones(length - len(known)), -places[len(known) :]], axis=1)
    error = np.sqrt(np.einsum("ki,ij,kj->k", beyond, np.linalg.inv(precision), beyond) + NOISE**2)
    further = (_rate(beyond @ fit + 2 * sign * error) for sign in (0, -1, 1))
    return Curves(*(np.append(known, known[-1] * np.cumprod(rate)) for rate in further))


def _rate(logit: Floats | float) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.asarray(logit))))
