"""A sequential test that the ratio of what is observed to what is expected stays in a band.

Method: the Shiryaev-Roberts e-detector of Shin, Ramdas and Rinaldo, "E-detectors: a nonparametric framework for
sequential change detection" (New England Journal of Statistics in Data Science, 2023, arXiv:2203.03532), with the
e-value exp(bx/s - (bx/s)²/2). Its mean is at most 1 if x is symmetric around a centre of at most 0, given the past (de
la Peña, "A general class of exponential inequalities for martingales and ratios", Annals of Probability 27, 1999). b
is a bet, s the root mean square of earlier x. Evidence grows by 1 an hour of its own, so its mean after T hours is at
most T: without a change the mean time to an alarm at level A is at least A hours, and an alarm within T hours has at
most probability T / A.
"""

import math
from dataclasses import dataclass, field

BETS = (1.0, 0.5, 0.25, 0.125)
FADING = 0.9  # weight of all earlier blocks in recent figures, after one more block
SCALE_FADING = 0.95
FEWEST = 100  # tokens in a block that are accepted and rejected as planned: fewer are skewed
REFERENCE_BLOCKS = 30


@dataclass
class Detector:
    """The evidence that values, symmetric around their mean, have a mean above 0."""

    evidence: list[float] = field(default_factory=lambda: [0.0] * len(BETS))  # of each bet, in hours
    square: float = 0.0  # mean of recent values; 0 before the first
    alarm: bool = False  # from the evidence for a change on, until `clear` is called

    def add(self, value: float, *, hours: float, level: float) -> None:
        """Add the value of a block, `hours` after the one before; mean evidence of `level` hours raises the alarm."""
        if self.square:
            moves = [bet * value / math.sqrt(self.square) for bet in BETS]
            limit = level * len(BETS)
            self.evidence = [
                min((evidence + hours) * math.exp(move - move**2 / 2), limit)
                for evidence, move in zip(self.evidence, moves, strict=True)
            ]
        fading = SCALE_FADING if self.square else 0.0
        self.square = fading * self.square + (1 - fading) * value**2
        self.alarm = self.alarm or sum(self.evidence) >= level * len(BETS)

    def clear(self) -> None:
        """Start again without evidence."""
        self.evidence, self.alarm = [0.0] * len(BETS), False


@dataclass
class Sums:
    """Steps, and sums of what is observed and expected of them; all fade alike."""

    steps: float = 0.0
    observed: float = 0.0
    expected: float = 0.0

    def add(self, more: "Sums", *, fading: float = 1.0) -> None:
        """Add sums, after these faded."""
        self.steps = fading * self.steps + more.steps
        self.observed = fading * self.observed + more.observed
        self.expected = fading * self.expected + more.expected

    @property
    def ratio(self) -> float:
        """Observed over expected."""
        return self.observed / self.expected


@dataclass
class RatioTest:
    """The test of one ratio, in both directions.

    Attributes:
        share: True if at most one is observed in a step, as in an acceptance rate.
        pending: sums of the block that is not full yet.
        hours: of that block.
        recent: sums of recent blocks, older ones with less weight.
        reference: sums of the first blocks, where these say what is expected.
        blocks: full blocks so far.
        fall: evidence that the ratio is below its band.
        rise: evidence that it is above.

    >>> test = RatioTest(share=True)
    >>> for accepted in (700, 690, 710, *[600, 610, 590] * 20):
    ...     test.add(Sums(1000, accepted, 700))
    ...     test.close(hours=0.01, level=1000, tolerance=0.02)
    >>> test.verdict, round(test.recent.ratio, 2)
    ('fell', 0.86)
    """

    share: bool = False
    pending: Sums = field(default_factory=Sums)
    hours: float = 0.0
    recent: Sums = field(default_factory=Sums)
    reference: Sums = field(default_factory=Sums)
    blocks: int = 0
    fall: Detector = field(default_factory=Detector)
    rise: Detector = field(default_factory=Detector)

    @property
    def verdict(self) -> str:
        """`fell` or `rose` while there is an alarm, else ``."""
        return "fell" if self.fall.alarm else "rose" if self.rise.alarm else ""

    def add(self, sums: Sums) -> None:
        """Add sums to the block that is not full yet."""
        self.pending.add(sums)

    def close(self, *, hours: float, level: float, tolerance: float, own_reference: bool = False) -> None:
        """End a block, unless it holds too little to be nearly symmetric.

        Args:
            hours: since the call before.
            level: evidence for an alarm, hours.
            tolerance: half-width of the band around a ratio of 1.
            own_reference: take the mean of the first blocks for a ratio of 1.
        """
        block, self.hours = self.pending, self.hours + hours
        likely = (block.expected, block.steps - block.expected) if self.share else (block.steps,)
        if min(likely) < FEWEST:
            return
        if own_reference and self.blocks < REFERENCE_BLOCKS:
            self.reference.add(block)
        else:
            block.expected *= self.reference.ratio if own_reference else 1.0
            low, high = (side * block.expected for side in (1 - tolerance, 1 + tolerance))
            root = math.sqrt(block.steps)
            self.fall.add((low - block.observed) / root, hours=self.hours, level=level)
            self.rise.add((block.observed - high) / root, hours=self.hours, level=level)
            self.recent.add(block, fading=FADING)
            if abs(self.recent.ratio - 1) < tolerance:
                for side in (self.fall, self.rise):
                    if side.alarm:
                        side.clear()
        self.blocks += 1
        self.pending, self.hours = Sums(), 0.0
