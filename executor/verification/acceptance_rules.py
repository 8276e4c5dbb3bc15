"""Which drafted tokens are kept. A rule draws candidates from the drafter's scores and judges them by the target's.

Here is what every rule offers, the rules that ask nothing of the drafter but tokens, and the rules by name:

| name | keeps | lossless |
|---|---|---|
| greedy | the target's argmax | yes |
| sample-and-match | what the target samples; any tokens, if siblings are distinct | yes |
| point-mass | the same law: tokens tried in rounds, as in EAGLE-2 and EAGLE-3; equal siblings do no harm | yes |
| leviathan | a chain drawn from the drafter | yes |
| block | a chain drawn from the drafter, judged from its end | yes |
| specinfer | siblings drawn independently | yes |
| sequoia | siblings drawn without replacement | yes |
| typical | whatever the target finds likely enough | NO |
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from executor.verification.longest_path import Accepted as Accepted
from executor.verification.longest_path import CoinRule, Siblings, best_of, cut_off, deepest, or_else, rows
from executor.verification.longest_path import follow as follow
from executor.verification.rejection_rules import BlockVerification, Leviathan, Sequoia, SpecInfer
from executor.verification.tree_tensors import Draft, Topology
from executor.verification.warp import Warp
from treeopt.errors import UsageError
from treeopt.tree import Tree


class Rule(Protocol):
    """How siblings are drawn and how they are verified. Draws and verdicts use one generator and one pipeline."""

    @property
    def lossless(self) -> bool:
        """The emitted text has the target's law."""

    @property
    def needs_scores(self) -> bool:
        """`Draft.scores` must be there."""

    @property
    def sampled_candidates(self) -> bool:
        """Candidates are drawn by chance: a tree that selects nodes by their score would bias the rule."""

    def check(self, tree: Tree) -> None:
        """Refuse a tree that the rule cannot verify.

        Raises:
            ExecutorError: says which node and why.
        """

    def candidates(self, scores: Tensor, width: int) -> Tensor:
        """Children of fed nodes by rank, int64 (..., width), from the drafter's scores (..., vocabulary)."""

    def accept(self, logits: Tensor, draft: Draft) -> Accepted:
        """The verdict, given the target's logits (batch, count, vocabulary) at every node."""


@dataclass(frozen=True)
class Greedy:
    """The target's argmax, the first of equals."""

    lossless = True
    needs_scores = False
    sampled_candidates = False

    def check(self, tree: Tree) -> None:
        """Any tree will do."""

    def candidates(self, scores: Tensor, width: int) -> Tensor:
        """The best `width`, best first."""
        return scores.max(-1, keepdim=True).indices if width == 1 else scores.topk(width, dim=-1).indices

    def accept(self, logits: Tensor, draft: Draft) -> Accepted:
        """The longest path on which every token is the argmax at its parent."""
        return follow(draft, best_of(logits))


@dataclass(frozen=True)
class SampleAndMatch(CoinRule):
    """The path that a sample of the target takes, for distinct siblings of any origin.

    Sampling at every node and following the sample comes to one coin a node that lands in a child's part of the
    target's mass or beyond; a token is sampled only where the walk ends, from what the children leave.
    """

    def shares(self, logits: Tensor, draft: Draft) -> Tensor:
        """p of the children's tokens."""
        inner = draft.topology.expand(len(logits)).inner
        siblings = Siblings.of(draft, inner)
        p = self.warp.log_probabilities(rows(logits, inner)).gather(-1, siblings.tokens).exp()
        return torch.where(siblings.there, p, 0)

    def residual(self, logits: Tensor, draft: Draft, last: Tensor) -> Tensor:
        """p, 0 at the children's tokens."""
        nodes = last[:, None]
        p = self.warp.log_probabilities(rows(logits, nodes).double()).exp()
        return or_else(Siblings.of(draft, nodes).without(p), p)[:, 0]


@dataclass(frozen=True)
class PointMass(SampleAndMatch):
    """Deterministic candidates tried in turn: r <= p(x_i), else p(x_i) <- 0 and renormalise (EAGLE-2, EAGLE-3).

    What is left after i - 1 rejections is p over its mass, so child i is kept with probability p(x_i) over all, as by
    `SampleAndMatch`; a token that an earlier sibling holds has nothing left.
    """

    def shares(self, logits: Tensor, draft: Draft) -> Tensor:
        """p of the children's tokens, each counted once."""
        inner = draft.topology.expand(len(logits)).inner
        return torch.where(Siblings.of(draft, inner).repeated, 0, super().shares(logits, draft))


@dataclass(frozen=True)
class Typical:
    """LOSSY: the longest path of tokens that the target finds likely enough (Cai et al. 2024, Medusa, §2.3.1).

    A token is kept if p(x) > min(epsilon, delta exp(-H(p))), H the entropy of p in nats with Medusa's 1e-5 inside
    the logarithm. Of paths of one length the likeliest is kept, and the bonus is the target's argmax: the text does
    not have the target's law.
    """

    warp: Warp
    epsilon: float = 0.09
    delta: float = 0.3
    lossless = False
    needs_scores = False
    sampled_candidates = False

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            UsageError: names the field.
        """
        for field in ("epsilon", "delta"):
            if not 0 < getattr(self, field) <= 1:
                raise UsageError(f"{field} must be in (0, 1], got {getattr(self, field)}")

    def check(self, tree: Tree) -> None:
        """Any tree will do."""

    def candidates(self, scores: Tensor, width: int) -> Tensor:
        """The best `width`, best first."""
        return scores.topk(width, dim=-1).indices

    def accept(self, logits: Tensor, draft: Draft) -> Accepted:
        """The longest path of typical tokens."""
        topology = draft.topology.expand(len(logits))
        missed, weight = self._judged(logits, draft, topology)
        count, path = deepest(topology, missed, weight)
        return Accepted.of(draft, count, path, best_of(rows(logits, path[:, -1:])))

    def kept(self, logits: Tensor, draft: Draft) -> Tensor:
        """Nodes of a static tree that a path might keep, all their ancestors typical: bool (batch, count), the root."""
        topology = draft.topology.expand(len(logits))
        missed, _ = self._judged(logits, draft, topology)
        return ~cut_off(topology, missed)

    def _judged(self, logits: Tensor, draft: Draft, topology: Topology) -> tuple[Tensor, Tensor]:
        """Which entries are not typical, bool (batch, count), and log p of those that are drafted; the root is."""
        siblings = Siblings.of(draft, topology.inner)
        log_p = self.warp.log_probabilities(rows(logits, topology.inner))
        p = log_p.exp()
        entropy = -(p * (p + 1e-5).log()).sum(-1, keepdim=True)
        border = (self.delta * torch.exp(-entropy)).clamp(max=self.epsilon)
        kept = siblings.there & (p.gather(-1, siblings.tokens) > border)
        # From children by rank to entries; where there is no child the root is written, which nobody reads.
        entries, blank = siblings.entries.flatten(1), torch.zeros_like(log_p[:, :1, 0]).expand(-1, topology.count)
        weight = blank.scatter(1, entries, log_p.gather(-1, siblings.tokens).flatten(1))
        match = blank.bool().scatter(1, entries, kept.flatten(1))
        return ~match, weight


SAMPLING: dict[str, type[CoinRule]] = {
    "sample-and-match": SampleAndMatch,
    "point-mass": PointMass,
    "leviathan": Leviathan,
    "block": BlockVerification,
    "specinfer": SpecInfer,
    "sequoia": Sequoia,
}
RULES = ("greedy", *SAMPLING, "typical")
NAMES: dict[type, str] = {Greedy: "greedy", Typical: "typical", **{kind: name for name, kind in SAMPLING.items()}}


def make_rule(name: str, *, warp: Warp | None = None, generator: torch.Generator | None = None) -> Rule:
    """The rule of that name.

    Args:
        name: one of `RULES`.
        warp: None for temperature 0, which is what greedy is for.
        generator: on the device of the logits; rules that draw nothing need none.

    Raises:
        UsageError: there is no such rule, or it does not go with this temperature.

    >>> make_rule("greedy")
    Greedy()
    """
    if name not in RULES:
        raise UsageError(f"rule must be one of {', '.join(RULES)}, got {name!r}")
    if name == "greedy":
        if warp is not None:
            raise UsageError(f"rule greedy is for temperature 0, got {warp}; to sample use rule sample-and-match")
        return Greedy()
    if warp is None:
        raise UsageError(f"rule {name} needs a temperature above 0; at temperature 0 use rule greedy")
    if name == "typical":
        return Typical(warp)
    if generator is None:
        raise UsageError(f"rule {name} draws by chance and needs a generator, got none")
    return SAMPLING[name](warp, generator)


def told(rule: Rule) -> dict[str, Any]:
    """How a rule of `make_rule` chooses tokens, as traces, profiles and validations tell it.

    >>> told(make_rule("greedy"))
    {'verification': 'greedy', 'temperature': 0.0}
    """
    warp: Warp | None = getattr(rule, "warp", None)
    found = {"verification": NAMES[type(rule)], "temperature": 0.0 if warp is None else warp.temperature}
    if warp is not None and warp.top_k is not None:
        found["top_k"] = warp.top_k
    if warp is not None and warp.top_p < 1:
        found["top_p"] = warp.top_p
    return found
