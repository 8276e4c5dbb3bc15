"""Settings of a trace collection: what they allow, which rules they mean, and what the trace records about them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from executor.decoding.decoder import check_abstaining
from executor.drafters.base.drafter import Drafter, history_of, usual_depth
from executor.recording.record_candidates import check_candidates, confidence_source
from executor.recording.teacher_forced import source_of
from executor.target.target_model import Target
from executor.verification.acceptance_rules import Greedy, Rule, make_rule, rule_meta
from executor.verification.multi_round_rejection import BlockVerification
from executor.verification.sampling_rules import SampleAndMatch
from executor.verification.temperature_top_k_top_p import Warp, seeded_generator
from executor.verification.typical_acceptance import Typical
from treeopt.defaults import DRAWS
from treeopt.errors import ExecutorError, UsageError
from treeopt.policies import DynamicTree
from treeopt.traces.trace import MAX_WIDTH
from treeopt.tree import EMPTY, Tree

LOSSY = (
    "text written with rule typical, which does not follow the target's law, is as good as the target's",
    "trees are replayed on text that was written with the recorded tree; other trees would write other text",
)


class Rules(NamedTuple):
    """The rule that is recorded, and the one that writes the texts."""

    verifying: Rule
    writing: Rule


@dataclass(frozen=True)
class Recording:
    """The settings of a collection: what is recorded, and how the texts are written.

    Temperature 0 writes greedily; above, the text is a sample of the target, whatever the rule. Its ranks are what
    sample-and-match accepts, just as those of greedy text are what greedy accepts. For rules that draw candidates from
    the drafter's law the trace also holds the probability that each is accepted, and that the text's own tokens were
    (`accept` and `kept`, see `teacher_forced`). Typical acceptance writes texts that depend on what is drafted, and
    may accept several siblings: texts are written by the live loop with `tree`, and the trace records at every position
    which of its nodes would be accepted.

    Attributes:
        new_tokens: tokens written after each prompt.
        width: candidates recorded, W.
        depth: levels recorded, D; None for all that the drafter has, at most 8.
        rule: of verification; None for greedy, above temperature 0 sample-and-match.
        temperature: of the target.
        top_k: see `Warp`.
        top_p: see `Warp`.
        probabilities: also record the drafter's probabilities of its candidates, the entropies of drafter and target
            and, above temperature 0, the probability that each candidate is accepted.
        confidences: also record the drafter's probability of each token of the chain that it drafts at every anchor.
        draws: simulated draws where acceptance has no closed form.
        candidates: also record whole candidate trees, as deep and wide as this policy drafts them, for dynamic trees.
        stride: positions from one recorded candidate tree of a request to the next.
        tree: for rule typical only: a search can only choose parts of it.
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
    confidences: bool = False
    draws: int = DRAWS
    candidates: DynamicTree | None = None
    stride: int = 1
    tree: Tree | None = None
    stop: Sequence[int] = ()
    batch: int = 8
    seed: int = 0

    def check(self, target: Target, drafter: Drafter) -> None:
        """Check that this can be recorded with these models.

        Raises:
            UsageError: settings without meaning, or that do not go together.
            ExecutorError: the drafter is shallower than `depth`, the width exceeds the vocabulary, the tree exceeds
                either, or there are too many candidates.
        """
        if not 0 <= self.temperature < math.inf:
            raise UsageError(f"temperature must be 0 or more and finite, got {self.temperature}")
        for name, smallest in (("batch", 1), ("stride", 1), ("draws", 1), ("seed", 0)):
            if getattr(self, name) < smallest:
                raise UsageError(f"{name} must be at least {smallest}, got {getattr(self, name)}")
        if not 1 <= self.recorded_depth(drafter) <= drafter.max_depth:
            raise ExecutorError(f"depth must be in 1..{drafter.max_depth} (the drafter's), got {self.depth}")
        if not 1 <= self.width <= min(target.vocabulary, MAX_WIDTH):
            limit = f"{target.vocabulary} (the vocabulary)" if target.vocabulary <= MAX_WIDTH else f"{MAX_WIDTH}"
            raise ExecutorError(f"width must be in 1..{limit}, got {self.width}")
        rule = self.rules(target, 0).verifying
        history_of(drafter, self.batch)
        if drafter.abstains:
            check_abstaining(drafter.kind, rule, dynamic=self.candidates is not None)
            for name in ("probabilities", "confidences"):
                if getattr(self, name):
                    raise UsageError(f"{drafter.kind} proposes tokens without probabilities: omit {name}")
        if self.confidences and rule.sampled_candidates:
            raise UsageError(
                f"rule {self.rule} draws its candidates, and confidences are of the best: omit confidences"
            )
        tree, depth = self.writing_tree, self.recorded_depth(drafter)
        if isinstance(rule, Typical) != (tree.nodes > 0):
            raise UsageError(
                "rule typical needs a tree (a search can only choose parts of it); other rules do not take one"
            )
        if tree.depth > depth:
            raise ExecutorError(f"the tree has depth {tree.depth}, depth {depth} is recorded")
        if max(tree.ranks, default=0) >= self.width:
            raise ExecutorError(f"the tree uses rank {max(tree.ranks)}, width {self.width} is recorded")
        if self.candidates is None:
            return
        if tree.nodes:
            raise UsageError(
                "candidates record one accepted sibling per node, but rule typical may accept several: omit candidates"
            )
        check_candidates(target, drafter, self.candidates)
        if rule.sampled_candidates:
            raise UsageError(f"rule {self.rule} draws its candidates: a tree that keeps the best of them would bias it")

    @property
    def writing_tree(self) -> Tree:
        """The tree with which texts are written; empty unless they depend on it."""
        return self.tree or EMPTY

    @property
    def tree_meta(self) -> dict[str, Any]:
        """The rule and the tree, as recorded in the `meta` of a trace with `tree_kept`; empty for other traces."""
        if not self.writing_tree.nodes:
            return {}
        return {"verification": self.rule, "tree": [list(path) for path in self.writing_tree.paths]}

    def recorded_depth(self, drafter: Drafter) -> int:
        """Return D, the levels recorded."""
        return usual_depth(drafter) if self.depth is None else self.depth

    def rules(self, target: Target, first: int) -> Rules:
        """Return the rules for the requests from `first` on, each with random numbers of its own."""
        name = self.rule or ("greedy" if self.temperature == 0 else "sample-and-match")
        if self.temperature == 0:
            return Rules(make_rule(name), Greedy())
        warp = Warp(self.temperature, self.top_k, self.top_p)
        verifying, writing = (int(n) >> 1 for n in np.random.SeedSequence([self.seed, first]).generate_state(2, "u8"))
        rule = make_rule(name, warp=warp, generator=seeded_generator(target.device, verifying))
        if isinstance(rule, Typical):
            return Rules(rule, rule)
        return Rules(rule, SampleAndMatch(warp, seeded_generator(target.device, writing)))

    def arrays(self, rule: Rule) -> tuple[str, ...]:
        """Return the arrays that the teacher-forced pass records beside ranks."""
        kept = rule.sampled_candidates
        odds = kept or (self.probabilities and self.temperature > 0)
        accept = odds and not isinstance(rule, BlockVerification | Typical)  # which have no `accept` of single nodes
        names = ("draft_prob", "draft_entropy", "target_entropy") * self.probabilities
        return (*names, *("accept",) * accept, *("kept",) * kept)

    def provenance(self, target: Target, drafter: Drafter) -> dict[str, Any]:
        """Return what the `meta` of the trace records about these settings."""
        rule, policy, optional = self.rules(target, 0).verifying, self.candidates, dict[str, Any]()
        odds = [name for name in self.arrays(rule) if name in ("accept", "kept")]
        optional |= dict.fromkeys(odds, source_of(rule, self.width, self.draws))
        if self.probabilities:
            optional["draft_prob"] = "warped" if rule.sampled_candidates else "temperature 1"
        if self.confidences:
            optional["confidence"] = confidence_source(drafter)
        if policy is not None:
            reach = {"depth": policy.depth, "beam": policy.beam, "width": policy.children}
            optional["candidates"] = reach | {"stride": self.stride}
        if self.tree_meta:
            optional |= {**self.tree_meta, "assumed": list(LOSSY)}
        return {**rule_meta(rule), "new_tokens": self.new_tokens, "seed": self.seed, **optional}
