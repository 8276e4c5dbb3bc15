"""How well the law of `acceptance_curves` completes published curves of models that it was not fitted to.

Every curve of `data/published/acceptance.json` is predicted at all its lengths from its accepted length at one, and
those of eight lengths at the last from the first four, with the slope that the curves of other models have. Prints the
tables of docs/results/acceptance_law.md.

    python -m tests.benchmarks.fit_acceptance_curves
"""

import json
from contextlib import contextmanager

import numpy as np
from scipy.optimize import least_squares
from scipy.stats import t as student

from treeopt.storage.user_files import shipped
from treeopt.traces.importers import acceptance_curves
from treeopt.traces.importers.acceptance_curves import PUBLISHED, _falling, from_positions, from_sum, survival

ROUNDED = 0.02  # relative error of a published length: two digits of one run


def curves():
    """The published curves: name of the model, of the curve, lengths, accepted lengths."""
    for curve in json.loads(shipped(PUBLISHED).read_text("utf-8"))["curves"]:
        name = curve["name"]
        yield "-".join(name.split("-")[:2]), name, np.array(curve["length"]), np.array(curve["accepted_length"])


def slope(lengths, accepted):
    """The slope of the law that fits a curve best."""

    def error(numbers):
        return 1 + np.cumsum(survival(*numbers, lengths.max()))[lengths - 1] - accepted

    return float(least_squares(error, [1.5, 0.5]).x[1])


@contextmanager
def slopes_of(others, *, geometric=False):
    """Inside it the law has the slopes of these curves."""
    before = acceptance_curves.SLOPE, acceptance_curves.SLOPE_HALF
    half = student.ppf(0.975, len(others) - 1) * np.std(others, ddof=1) * np.sqrt(1 + 1 / len(others))
    acceptance_curves.SLOPE, acceptance_curves.SLOPE_HALF = 0.0 if geometric else float(np.median(others)), half
    yield
    acceptance_curves.SLOPE, acceptance_curves.SLOPE_HALF = before


def predicted(published, given, others, *, geometric=False):
    """Each other length of a curve, with prediction and ends, from its length at `given` and the others' slopes."""
    lengths, accepted = published
    value = accepted[lengths == given][0] - 1
    with slopes_of(others, geometric=geometric):
        found = from_sum(lambda curve: float(curve[:given].sum()), value, int(lengths.max()))
    for length, true in zip(lengths, accepted, strict=True):
        if length != given:
            ends = [1 + curve[:length].sum() for curve in (found.faster, found.slower)]
            yield true, 1 + np.mean(found.drawn, axis=0)[:length].sum(), min(ends), max(ends)


def longest(known, slopes, *, given=4, length=8):
    """Print the accepted length at `length`, predicted from those up to `given`, and its error over models."""
    print(f"| curve | {given} drafted | {length} drafted | predicted | 95 % interval | error |")
    print("|---|---|---|---|---|---|")
    errors: dict[str, list[float]] = {}
    inside = []
    for model, name, lengths, accepted in known:
        if list(lengths) != list(range(1, length + 1)):
            continue
        with slopes_of([slopes[other] for of, other, *_ in known if of != model]):
            found = from_positions(_falling(np.diff([1.0, *accepted[:given]])), length)
        middle, *ends = (1 + curve.sum() for curve in (np.mean(found.drawn, axis=0), found.faster, found.slower))
        true, low, high = accepted[-1], min(ends), max(ends)
        errors.setdefault(model, []).append(middle / true - 1)
        inside.append(low * (1 - ROUNDED) <= true <= high * (1 + ROUNDED))
        shown = f"{accepted[given - 1]:.2f} | {true:.2f} | {middle:.2f} | {low:.2f} to {high:.2f}"
        print(f"| {name} | {shown} | {middle / true - 1:+.1%} |")
    every = np.concatenate(list(errors.values()))
    means = np.array([np.abs(some).mean() for some in errors.values()])
    half = student.ppf(0.975, len(means) - 1) * means.std(ddof=1) / np.sqrt(len(means))
    print(f"mean error {np.abs(every).mean():.1%}, signed {every.mean():+.1%}, largest {np.abs(every).max():.1%}")
    print(f"of {len(means)} models {means.mean():.1%} +- {half:.1%} (95 %); inside {sum(inside)} of {len(inside)}")


def main():
    """Print the slopes and the tables."""
    known = list(curves())
    slopes = {name: slope(lengths, accepted) for _, name, lengths, accepted in known}
    print("slopes:", ", ".join(f"{name} {value:.2f}" for name, value in slopes.items()))
    every = np.array(list(slopes.values()))
    half = student.ppf(0.975, len(every) - 1) * every.std(ddof=1) * np.sqrt(1 + 1 / len(every))
    print(f"median {np.median(every):.2f}, 95 % of a further curve within {half:.2f} of it")
    print("| given | lengths predicted | mean error | mean signed | within the interval | half-width | geometric |")
    print("|---|---|---|---|---|---|---|")
    for given in (1, 2, 3, 5):
        rows, plain = [], []
        for model, _, lengths, accepted in known:
            if given in lengths:
                others = [slopes[name] for other, name, *_ in known if other != model]
                rows += predicted((lengths, accepted), given, others)
                plain += predicted((lengths, accepted), given, others, geometric=True)
        true, middle, low, high = np.array(rows).T
        inside = (low * (1 - ROUNDED) <= true) & (true <= high * (1 + ROUNDED))
        straight = np.abs(np.array(plain)[:, 1] / true - 1).mean()
        print(
            f"| {given} | {len(true)} | {np.abs(middle / true - 1).mean():.1%} | {(middle / true - 1).mean():+.1%} "
            f"| {inside.mean():.0%} | {((high - low) / 2 / middle).mean():.1%} | {straight:.1%} |"
        )
    longest(known, slopes)


if __name__ == "__main__":
    main()
