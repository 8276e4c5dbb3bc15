"""How well the law of `acceptance_law` completes published curves of models that it was not fitted to.

Every curve of `data/published/acceptance.json` is predicted at all its lengths from its accepted length at one, with
the slope that the curves of other models have. Prints the table of docs/results/acceptance_law.md.

    python -m tests.benchmarks.acceptance_law
"""

import json

import numpy as np
from scipy.optimize import least_squares
from scipy.stats import t as student

from treeopt.storage.atomic_files import shipped
from treeopt.traces.importers import acceptance_law
from treeopt.traces.importers.acceptance_figures import PUBLISHED
from treeopt.traces.importers.acceptance_law import from_sum, survival

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


def predicted(published, given, others, *, geometric=False):
    """Each other length of a curve, with prediction and ends, from its length at `given` and the others' slopes."""
    lengths, accepted = published
    middle = 0.0 if geometric else float(np.median(others))
    half = student.ppf(0.975, len(others) - 1) * np.std(others, ddof=1) * np.sqrt(1 + 1 / len(others))
    before = acceptance_law.SLOPE, acceptance_law.SLOPE_HALF
    acceptance_law.SLOPE, acceptance_law.SLOPE_HALF = middle, half
    value = accepted[lengths == given][0] - 1
    found = from_sum(lambda curve: float(curve[:given].sum()), value, int(lengths.max()))
    acceptance_law.SLOPE, acceptance_law.SLOPE_HALF = before
    for length, true in zip(lengths, accepted, strict=True):
        if length != given:
            ends = [1 + curve[:length].sum() for curve in (found.faster, found.slower)]
            yield true, 1 + found.expected[:length].sum(), min(ends), max(ends)


def main():
    """Print the slopes and the table."""
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


if __name__ == "__main__":
    main()
