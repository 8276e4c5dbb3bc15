"""The choice of a draft length by measuring: an object that is asked for the next setting and told its result.

Settings are measured in rounds. A round measures, at each batch size that is not decided, plain decoding, the fastest
draft so far, and every draft that is not decided, in random order, all on the same prompts. What is compared is the
ratio of tokens per second: tokens per step paired by request over all batch sizes, and step times paired by round, so
that a machine whose speed changes changes both alike.

A batch size is decided when each other draft is not faster by more than `NEAR` with 95 % confidence, or by no more than
`LOSS` on average (the expectation of its lead, if it has one): equally fast drafts are not told apart. If every
launch runs one length, plain decoding and the longest draft come first. The lengths between are predicted, and each
further launch goes to the one that is predicted to be the fastest of those that may be.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import UsageError
from treeopt.statistics import (
    TRIMMED_ERROR,
    Estimate,
    in_logs,
    paired_ratio,
    quantile,
    trimmed_mean,
)

NEAR = 0.03  # a draft that may be faster by no more than this is no reason to go on
LOSS = 0.01  # expected lead of a draft over the choice that is no reason to go on
FIRST, LEAST, MOST = 2, 3, 12  # rounds: those that leave nothing out, those of the choice, all
STEADY = 0.005  # least standard deviation of a step time, as a share: clocks and caches
VISITED = 0.13  # error of shorter chains as seen by a longer one's steps: the largest on public records, n-grams
BETWEEN = 0.1  # error of a step time between two measured lengths
APART = 6  # standard deviations between two rounds of a draft at which it is measured again
CONTRADICTS = 2  # half-widths of its interval that one batch size is apart from all
MAD = 1.4826  # standard deviation over the median absolute deviation, for normal values


@dataclass(frozen=True)
class Setting:
    """What is to be measured next.

    Attributes:
        batch: requests in flight.
        draft: tokens drafted per step, 0 for plain decoding.
        round: number of the round; settings of a round decode the same prompts.
    """

    batch: int
    draft: int
    round: int


@dataclass(frozen=True)
class Result:
    """What a setting did.

    Attributes:
        step_s: seconds per step.
        steps: steps of each request, by its number; the same prompt has the same number in every setting.
        tokens: tokens of each request.
        reached: in how many steps at least 1, 2, ... drafted tokens were accepted; empty: not known.
    """

    step_s: float
    steps: Mapping[int, int]
    tokens: Mapping[int, int]
    reached: tuple[int, ...] = ()

    @property
    def tau(self) -> float:
        """Tokens per step."""
        return sum(self.tokens.values()) / sum(self.steps.values())


@dataclass(frozen=True)
class Verdict:
    """What is known of a draft at a batch size.

    Attributes:
        batch: requests in flight.
        draft: tokens drafted per step.
        tau: tokens per step.
        step_s: seconds per step.
        speedup: tokens per second over those of plain decoding.
        behind: tokens per second over those of the choice.
        rounds: rounds in which it was measured; 0: it is predicted.
        chosen: True for the choice.
        decided: True for the choice, and for drafts that are not faster by more than `NEAR` with 95 % confidence, or
            by no more than `LOSS` on average.
    """

    batch: int
    draft: int
    tau: Estimate
    step_s: float
    speedup: Estimate
    behind: Estimate
    rounds: int
    chosen: bool
    decided: bool


@dataclass
class Tuner:
    """Asks for settings until the best draft of every batch size is known.

    Attributes:
        batches: batch sizes.
        drafts: draft lengths, 0 among them.
        one_launch: True if one launch runs all lengths.
        launches: most launches where each runs one length.
        takes_turns: True if plain decoding and a draft can be launched at a time, and alternate; else two rounds are
            made, plain decoding first in one and last in the other.
        seed: of the order.

    >>> tuner = Tuner(batches=(1,), drafts=(0, 1, 2))
    >>> while (setting := tuner.ask()) is not None:
    ...     step_s, tau = 1 + 0.1 * setting.draft, 1 + 0.5 * (setting.draft > 0)
    ...     tuner.tell(setting, Result(step_s, {i: 100 for i in range(9)}, {i: int(100 * tau) for i in range(9)}))
    >>> next((verdict.draft, round(verdict.speedup.value, 2)) for verdict in tuner.verdicts() if verdict.chosen)
    (1, 1.36)
    """

    batches: Sequence[int]
    drafts: Sequence[int]
    one_launch: bool = True
    launches: int = 3
    takes_turns: bool = True
    seed: int = 0
    results: dict[int, dict[int, dict[int, Result]]] = field(default_factory=dict)  # by batch size, draft, round
    _waiting: list[Setting] = field(default_factory=list)
    _round: int = -1

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            UsageError: no batch size, no draft beside plain decoding, or fewer than two launches.
        """
        self.drafts = sorted(set(self.drafts))
        if not self.batches or self.drafts[:1] != [0] or len(self.drafts) < 2:
            raise UsageError("tuning needs a batch size, plain decoding (draft 0) and a draft length")
        if not self.one_launch and self.launches < 2:
            raise UsageError("tuning needs at least 2 launches: plain decoding, and one with drafts")
        self.results = {batch: {} for batch in self.batches}
        self._launched = list(self.drafts) if self.one_launch else [0, self.drafts[-1]]

    def ask(self) -> Setting | None:
        """Return the next setting; None when every batch size is decided, or nothing more may be measured."""
        if not self._waiting:
            self._begin()
        return self._waiting[0] if self._waiting else None

    def tell(self, setting: Setting, result: Result) -> None:
        """Take the result of the setting that was asked for.

        Raises:
            UsageError: another setting, or a result without sense.
        """
        if not self._waiting or setting != self._waiting[0]:
            raise UsageError(f"{setting} was not asked for")
        if not (0 < result.step_s < math.inf) or not result.steps or result.steps.keys() != result.tokens.keys():
            raise UsageError(f"{setting}: the result needs a step time above 0, and steps and tokens of each request")
        self.results[setting.batch].setdefault(setting.draft, {})[setting.round] = result
        self._waiting.pop(0)

    @property
    def rounds(self) -> int:
        """Rounds that are complete."""
        return self._round + 1 - bool(self._waiting)

    @property
    def decided(self) -> bool:
        """True if the choice of every batch size is known."""
        return not any(not known.get(0) or self._rivals(batch) for batch, known in self.results.items())

    def verdicts(self) -> list[Verdict]:
        """Return what is known, by batch size and draft."""
        return [verdict for batch in self.batches for verdict in self._verdicts(batch)]

    def _begin(self) -> None:
        """Begin a round of what is wanted, if anything is; else with another launch, if one may help."""
        if self._round + 1 >= (MOST if self.takes_turns else FIRST):
            return
        wanted = {batch: self._wanted(batch) for batch in self.batches}
        plain_first = not self.takes_turns
        if not any(wanted.values()):
            plain_first = True  # so that it is the longest draft that makes room for the new one
            if (draft := self._next_launch()) is None:
                return
            self._launched.append(draft)
            wanted = {batch: [0, draft] for batch in self.batches if draft in self._rivals(batch)}
        self._round += 1
        rng = np.random.default_rng([self.seed, self._round])
        settings = [Setting(batch, draft, self._round) for batch, some in wanted.items() for draft in some]
        settings = [settings[place] for place in rng.permutation(len(settings)).tolist()]
        order = rng.permutation(len(self.batches)).tolist()  # batch sizes take turns as well
        places = dict(zip(self.batches, order, strict=True))
        self._waiting = sorted(settings, key=lambda setting: places[setting.batch])
        if plain_first:  # where launches do not take turns: plain, drafts; drafts, plain
            last = not self.takes_turns and self._round % 2 == 1
            self._waiting.sort(key=lambda setting: setting.draft > 0, reverse=last)

    def _next_launch(self) -> int | None:
        """Return the length that is predicted to be the fastest of those that may be and were not launched."""
        if len(self._launched) >= self.launches:
            return None
        rivals = {draft for batch in self.batches for draft in self._rivals(batch)} - set(self._launched)
        value = {v.draft: v.behind.value for v in sorted(self.verdicts(), key=lambda v: v.behind.value)}
        return max(rivals, key=lambda draft: value[draft], default=None)

    def _rivals(self, batch: int) -> list[int]:
        """Return the drafts that are not decided."""
        return [verdict.draft for verdict in self._verdicts(batch) if not verdict.decided]

    def _expected(self, behind: Estimate) -> float:
        """Return E[max(x, 0)] of the logarithm x of a ratio, normal with its estimate and error."""
        error = _half(behind) / quantile(self._noise()[1] + 1, comparisons=len(self.drafts))
        normal, z = NormalDist(), math.log(behind.value) / error
        return error * (normal.pdf(z) + z * normal.cdf(z))

    def _wanted(self, batch: int) -> list[int]:
        """Return the launched drafts that must be measured further at a batch size; none if that decides nothing."""
        known = self.results[batch]
        done = len(known.get(0, ()))
        if done < FIRST:
            return list(self._launched)
        sigma = self._noise()[0]
        again = {
            draft
            for draft, runs in known.items()
            if len(runs) < FIRST or (len(runs) == FIRST and np.ptp(self._logs(batch, draft)) > APART * sigma)
        }
        choice = next(verdict for verdict in self._verdicts(batch) if verdict.chosen)
        rivals = (again | {*self._rivals(batch)}) & set(self._launched)
        return sorted({0, choice.draft, *rivals}) if rivals or (choice.draft > 0 and choice.rounds < LEAST) else []

    def _verdicts(self, batch: int) -> list[Verdict]:
        known = self.results[batch]
        if not known.get(0):
            return []
        plain_s = float(np.median([run.step_s for run in known[0].values()]))
        rates = {draft: self._over(batch, draft, 0) for draft in known}
        best = max(known, key=lambda draft: rates[draft].value)
        if not self.one_launch:
            rates |= {draft: self._between(batch, draft) for draft in self.drafts if draft not in known}
        verdicts = []
        for draft in sorted(rates):
            rounds = len(known.get(draft, ()))
            if rounds:
                behind, tau = self._over(batch, draft, best), self._accepted(batch, draft, 0)
                step_s = plain_s * tau.value / rates[draft].value
            else:
                relative = math.hypot(_half(rates[draft]), _half(rates[best]))
                behind = in_logs(rates[draft].value / rates[best].value, relative)
                tau, step_s = self._visited(batch, draft), self._line(batch, draft)
            chosen, decided = draft == best, behind.high <= 1 + NEAR or self._expected(behind) <= LOSS
            verdicts.append(Verdict(batch, draft, tau, step_s, rates[draft], behind, rounds, chosen, chosen or decided))
        return verdicts

    def _over(self, batch: int, draft: int, other: int) -> Estimate:
        """Return tokens per second of a draft over those of another, from the rounds that measured both."""
        if draft == other:
            return Estimate(1.0, 1.0, 1.0)
        first, second = self.results[batch][draft], self.results[batch][other]
        both = sorted(first.keys() & second.keys())
        if not both:
            return in_logs(1.0, math.inf)
        taus = self._accepted(batch, draft, other)
        logs = [math.log(second[number].step_s / first[number].step_s) for number in both]
        sigma, freedom = self._noise()
        error = TRIMMED_ERROR * quantile(freedom + 1, comparisons=len(self.drafts)) * sigma / len(both) ** 0.5
        return in_logs(taus.value * math.exp(trimmed_mean(logs)), math.hypot(_half(taus), error))

    def _accepted(self, batch: int, draft: int, other: int) -> Estimate:
        """Return tokens per step of a draft over those of another, from the rounds that measured both.

        Acceptance does not depend on the requests in flight, so that all batch sizes count, unless what this one
        measured contradicts it.
        """

        def over(some: Iterable[Mapping[int, Mapping[int, Result]]]) -> Estimate:
            both = [
                (runs[draft][number], runs[other][number])
                for runs in some
                for number in runs.get(draft, {}).keys() & runs.get(other, {}).keys()
            ]
            (steps, tokens), (other_steps, other_tokens) = (_counts(side) for side in zip(*both, strict=True))
            return paired_ratio((tokens, steps), (other_tokens, other_steps))

        own, every = over([self.results[batch]]), over(self.results.values())
        return own if abs(math.log(every.value / own.value)) > CONTRADICTS * _half(own) else every

    def _logs(self, batch: int, draft: int) -> list[float]:
        """Return the logarithms of a draft's step times over those of plain decoding, by round."""
        plain = self.results[batch].get(0, {})
        return [math.log(run.step_s / plain[n].step_s) for n, run in self.results[batch][draft].items() if n in plain]

    def _noise(self) -> tuple[float, int]:
        """Return the standard deviation of the logarithm of a ratio of step times of one round, and its freedom.

        It is pooled over batch sizes and drafts, since few rounds say little of one of them, and robust: bursts of
        other load are rare and large.
        """
        apart, freedom = list[float](), 0
        for batch, of_batch in self.results.items():
            for logs in (self._logs(batch, draft) for draft in of_batch if draft):
                if len(logs) > 1:
                    middle, share = float(np.median(logs)), (len(logs) / (len(logs) - 1)) ** 0.5
                    apart += [share * abs(value - middle) for value in logs]
                    freedom += len(logs) - 1
        return (max(STEADY, MAD * float(np.median(apart))), freedom) if freedom else (math.inf, 1)

    def _between(self, batch: int, draft: int) -> Estimate:
        """Return the predicted speedup of a length that was not launched."""
        plain_s = float(np.median([run.step_s for run in self.results[batch][0].values()]))
        tau = self._visited(batch, draft)
        return in_logs(tau.value * plain_s / self._line(batch, draft), math.hypot(_half(tau), BETWEEN))

    def _visited(self, batch: int, draft: int) -> Estimate:
        """Return tokens per step of a shorter chain, from how far the steps of the next longer one went."""
        longer = min(other for other in self.results[batch] if other > draft)
        runs = list(self.results[batch][longer].values())
        if not all(run.reached for run in runs):
            raise UsageError("lengths that were not launched are predicted from `reached` of a longer one: give it")
        steps = sum(sum(run.steps.values()) for run in runs)
        tau = 1 + sum(sum(run.reached[:draft]) for run in runs) / steps
        return in_logs(tau, math.hypot(_half(self._accepted(batch, longer, 0)), VISITED * (longer - draft) / longer))

    def _line(self, batch: int, draft: int) -> float:
        """Return seconds per step on the line between the two nearest lengths that were measured."""
        known = {d: float(np.median([run.step_s for run in runs.values()])) for d, runs in self.results[batch].items()}
        lengths = sorted(known)
        return float(np.interp(draft, lengths, [known[length] for length in lengths]))


def _counts(runs: Iterable[Result]) -> NDArray[np.int64]:
    """Return steps and tokens of each request over some runs, (2, R), by rising number of the request."""
    sums: dict[int, tuple[int, int]] = {}
    for run in runs:
        for request, steps in run.steps.items():
            before = sums.get(request, (0, 0))
            sums[request] = before[0] + steps, before[1] + run.tokens[request]
    return np.array([sums[request] for request in sorted(sums)]).T


def _half(estimate: Estimate) -> float:
    """Return the half-width of the logarithm of an estimate."""
    return math.inf if estimate.low <= 0 else math.log(estimate.high / estimate.low) / 2
