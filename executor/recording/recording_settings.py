"""What a trace is to record: the settings of a collection, what they allow and what a trace says of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.drafters.drafter import Drafter, usual_depth
from executor.recording.record_candidates import check_candidates
from executor.recording.sibling_acceptance import manner
from executor.recording.teacher_forced import Wanted
from executor.target.target_model import Target
from executor.verification.acceptance_rules import Greedy, Rule, SampleAndMatch, Typical, make_rule, told
from executor.verification.rejection_rules import BlockVerification
from executor.verification.warp import Warp, seeded
from treeopt.defaults import DRAWS
from treeopt.errors import ExecutorError, UsageError
from treeopt.policies import DynamicTree
from treeopt.traces.trace import MAX_WIDTH
from treeopt.tree import EMPTY, Tree

LOSSY = (
    "text of rule typical, which has not the target's law, is as good as the target's",
    "trees are replayed on text that the tree of the recording wrote, which others would not write",
)


@dataclass(frozen=True)
class Recording:
    """What is recorded, and how the texts are written.

    Temperature 0 writes greedily; above, the text is a sample of the target, whatever the rule. Its ranks are what
    sample-and-match keeps, just as those of greedy text are what greedy keeps; for rules that draw candidates from
    the drafter's law the trace also says how likely each is to be kept, and how likely the text's own tokens were
    (`accept` and `kept`, see odds.py). Typical acceptance writes texts that depend on what is drafted, and may keep
    several siblings: texts are those of the live loop with `tree`, and the trace says at every position which nodes of
    it would be kept.

    Attributes:
        new_tokens: tokens written after each prompt.
        width: candidates looked at, W.
        depth: levels looked at, D; None for all that the drafter has, at most 8.
        rule: of verification; None for greedy, above temperature 0 sample-and-match.
        temperature: of the target.
        top_k: see `Warp`.
        top_p: see `Warp`.
        probabilities: also record the drafter's probabilities of its candidates, the entropies of drafter and target
            and, above temperature 0, how likely each candidate is to be kept.
        draws: simulated where that has no closed form.
        candidates: also record whole candidate trees, as deep and wide as this policy drafts them, for dynamic trees.
        stride: positions of a request from one with candidates to the next.
        tree: of rule typical, and of no other: the trees that a search may choose are parts of it.
        stop: tokens that end a request.
        batch: requests decoded together.
        seed: of the sampling.
    """

    new_tokens: int
    width: int
    depth: int | None = None
    rule: str | None = None
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    probabilities: bool = False
    draws: int = DRAWS
    candidates: DynamicTree | None = None
    stride: int = 1
    tree: Tree | None = None
    stop: Sequence[int] = ()
    batch: int = 8
    seed: int = 0

    def check(self, target: Target, drafter: Drafter) -> None:
        """Refuse what has no meaning or cannot be.

        Raises:
            UsageError: settings without meaning, or that do not go together.
            ExecutorError: the drafter is shallower than `depth`, the width exceeds the vocabulary, the tree exceeds
                either, or there are too many candidates.
        """
        if not 0 <= self.temperature < math.inf:
            raise UsageError(f"temperature must be 0 or more and finite, got {self.temperature}")
        for name, least in (("batch", 1), ("stride", 1), ("draws", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 1 <= self.levels(drafter) <= drafter.max_depth:
            raise ExecutorError(f"depth must be in 1..{drafter.max_depth} (the drafter's), got {self.depth}")
        if not 1 <= self.width <= min(target.vocabulary, MAX_WIDTH):
            limit = f"{target.vocabulary} (the vocabulary)" if target.vocabulary <= MAX_WIDTH else f"{MAX_WIDTH}"
            raise ExecutorError(f"width must be in 1..{limit}, got {self.width}")
        rule, _ = self.rules(target, 0)
        if isinstance(rule, Typical) != (self.drawn.nodes > 0):
            raise UsageError(
                "rule typical is recorded with a tree, which the trees of a search are parts of; no other rule is"
            )
        if self.drawn.depth > self.levels(drafter):
            raise ExecutorError(f"the tree has depth {self.drawn.depth}, depth {self.levels(drafter)} is recorded")
        if max(self.drawn.ranks, default=0) >= self.width:
            raise ExecutorError(f"the tree uses rank {max(self.drawn.ranks)}, width {self.width} is recorded")
        if self.candidates is not None:
            if self.drawn.nodes:
                raise UsageError("candidates tell of one kept sibling, rule typical may keep several: leave them out")
            check_candidates(target, drafter, self.candidates)
            if rule.sampled_candidates:
                raise UsageError(
                    f"rule {self.rule} draws its candidates: a tree that keeps the best of them would bias it"
                )

    @property
    def drawn(self) -> Tree:
        """With what texts are written; an empty tree where they do not depend on it."""
        return self.tree or EMPTY

    @property
    def kept_of(self) -> dict[str, Any]:
        """What a trace with `tree_kept` says of it: the rule and the nodes."""
        if not self.drawn.nodes:
            return {}
        return {"verification": self.rule, "tree": [list(path) for path in self.drawn.paths]}

    def levels(self, drafter: Drafter) -> int:
        """D."""
        return usual_depth(drafter) if self.depth is None else self.depth

    def rules(self, target: Target, first: int) -> tuple[Rule, Rule]:
        """The rule that is recorded, and the one that writes the requests from `first` on."""
        name = self.rule or ("greedy" if self.temperature == 0 else "sample-and-match")
        if self.temperature == 0:
            return make_rule(name), Greedy()
        warp = Warp(self.temperature, self.top_k, self.top_p)
        verifying, writing = (int(n) >> 1 for n in np.random.SeedSequence([self.seed, first]).generate_state(2, "u8"))
        rule = make_rule(name, warp=warp, generator=seeded(target.device, verifying))
        if isinstance(rule, Typical):
            return rule, rule
        return rule, SampleAndMatch(warp, seeded(target.device, writing))

    def wanted(self, drafter: Drafter, rule: Rule) -> Wanted:
        """What is looked at in the teacher-forced pass."""
        drawn = rule.sampled_candidates
        wanted = drawn or (self.probabilities and self.temperature > 0)
        accept = wanted and not isinstance(rule, BlockVerification | Typical)  # of which `accept` says nothing
        return Wanted(self.levels(drafter), self.width, rule, self.probabilities, accept, drawn, self.draws)

    def provenance(self, target: Target, drafter: Drafter) -> dict[str, Any]:
        """What a trace says of it."""
        rule, _ = self.rules(target, 0)
        policy, more = self.candidates, dict[str, Any]()
        if self.wanted(drafter, rule).accept:
            more["accept"] = manner(rule, self.width, self.draws)
        if self.wanted(drafter, rule).kept:
            more["kept"] = manner(rule, self.width, self.draws)
        if self.probabilities:
            more["draft_prob"] = "warped" if rule.sampled_candidates else "temperature 1"
        if policy is not None:
            reach = {"depth": policy.depth, "beam": policy.beam, "width": policy.children}
            more["candidates"] = reach | {"stride": self.stride}
        if self.kept_of:
            more |= {**self.kept_of, "assumed": list(LOSSY)}
        return {**told(rule), "new_tokens": self.new_tokens, "seed": self.seed, **more}
