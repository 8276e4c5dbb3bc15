"""A plan: the tree, policy or plain decoding to use at each batch size, with predictions, proofs and comparisons."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from treeopt.errors import PlanError, UsageError
from treeopt.policies import Policy
from treeopt.statistics.clustered_estimate import Estimate
from treeopt.storage.typed_records import Count, Integer
from treeopt.tree import Tree
from treeopt.value_methods import ValueMethods


@dataclass(frozen=True)
class Grown:
    """A dynamic tree: a policy draws it at each step.

    Attributes:
        kind: kind of policy, as `treeopt.searchers.dynamic_trees.choose_policy` names it.
        settings: settings of that kind, in words.
        nodes: mean number of drafted nodes that a step verifies.
        depth: mean number of levels that a step drafts.
        policy: the policy that the decoding loop runs, fitted curves included; None for a bound, which cannot run.
    """

    kind: str
    settings: Mapping[str, Any]
    nodes: float
    depth: float
    policy: Policy | None = None


@dataclass(frozen=True)
class Choice:
    """A configuration and its prediction, replayed on requests that no choice was made on.

    Attributes:
        name: name in tables.
        tree: the static tree; None for plain decoding and for dynamic trees.
        tau: tokens per step and sequence, bonus counted.
        step_s: seconds per step, the mean where steps differ.
        speedup: time per token of plain decoding over that of this configuration, both as the plan's objective
            counts them.
        grown: the dynamic tree; None for plain decoding and for static trees.
        behind: share of the chosen configuration's tokens per second that this one loses, paired by request, without
            the error of step times; None for the chosen configuration itself.
        accepted: shares of the steps that accept at least 1, 2, ... drafted tokens; empty where they are not known.
    """

    name: str
    tree: Tree | None
    tau: Estimate
    step_s: float
    speedup: Estimate
    grown: Grown | None = None
    behind: Estimate | None = None
    accepted: tuple[float, ...] = ()

    @property
    def plain(self) -> bool:
        """True if nothing is drafted."""
        return self.tree is None and self.grown is None

    @property
    def nodes(self) -> float:
        """Drafted nodes per step, the mean where steps differ."""
        return self.grown.nodes if self.grown else self.tree.nodes if self.tree else 0

    @property
    def depth(self) -> float:
        """Drafted levels per step, the mean where steps differ."""
        return self.grown.depth if self.grown else self.tree.depth if self.tree else 0

    def tokens_s(self, batch: int) -> float:
        """Return the tokens per second of the whole batch."""
        return batch * self.tau.value / self.step_s


@dataclass(frozen=True)
class Proof:
    """The proof of a choice: what is known about it."""

    objective: Annotated[str, Meta(description="what was maximised")]
    optimal: Annotated[bool, Meta(description="whether the choice is proved to be the best")]
    statement: str


@dataclass(frozen=True)
class Price:
    """The cost of one engine rule by itself.

    Attributes:
        rule: the rule in words.
        source: file and line of the engine.
        share: share of tokens per second that is lost to the best tree without this rule.
    """

    rule: str
    source: str
    share: Estimate


@dataclass(frozen=True)
class PlanEntry:
    """The choice for one batch size.

    Attributes:
        batch: sequences decoded together.
        choice: the configuration to use.
        gain: tau minus that of the best chain, paired by request; None if the chain itself was chosen.
        compared: the other configurations, in the order of the table.
        skipped: name -> reason, for configurations that the trace cannot judge.
        proof: the proof of the choice.
        prices: costs of the rules that keep the engine from the best tree of all.
    """

    batch: int
    choice: Choice
    gain: Estimate | None
    compared: tuple[Choice, ...]
    skipped: Mapping[str, str]
    proof: Proof
    prices: tuple[Price, ...] = ()

    @property
    def tpot_s(self) -> float:
        """Time per output token of the choice: seconds per token and sequence, tokens counted as the objective does."""
        plain = next((choice for choice in self.compared if choice.plain), None)
        return self.choice.step_s / self.choice.tau.value if plain is None else plain.step_s / self.choice.speedup.value


@dataclass(frozen=True)
class Switch:
    """Where a running engine changes between the configurations of two neighbouring batch sizes."""

    # Between `down` and `up` it stays with the one it runs: neither is known to be better by more than the margin.
    small: Count
    large: Count
    up: Annotated[Integer, Meta(description="change to the larger one's when the batch reaches this size")]
    down: Annotated[Integer, Meta(description="change back when it falls to this size")]


@dataclass(frozen=True)
class Plan(ValueMethods):
    """The result of a search: an entry per batch size, and its provenance.

    Attributes:
        entries: one entry per batch size.
        meta: provenance; JSON values only.
        switches: changes between entries of different shapes, by rising batch size.
        best: batch size of the entry that the objective prefers; None if it prefers none.
        warnings: sentences that a reader must know before believing the plan.
    """

    entries: tuple[PlanEntry, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)
    switches: tuple[Switch, ...] = ()
    best: int | None = None
    warnings: tuple[str, ...] = ()

    @property
    def captures(self) -> tuple[tuple[int, int], ...]:
        """Shapes to capture CUDA graphs for: (batch, tokens per sequence) of each entry's largest verify forward."""
        return tuple((entry.batch, 1 + _largest(entry.choice)) for entry in self.entries)

    def entry(self, batch: int | None) -> PlanEntry:
        """Return the entry for a batch size, or the only entry.

        Raises:
            UsageError: there are several entries, and no batch size was given.
            PlanError: there is no entry for this batch size.
        """
        sizes = ", ".join(str(entry.batch) for entry in self.entries)
        if batch is None and len(self.entries) > 1:
            raise UsageError(f"the plan is for batch {sizes}: choose one of these batch sizes")
        for entry in self.entries:
            if batch in (None, entry.batch):
                return entry
        raise PlanError(
            f"the plan is for batch {sizes}, not {batch}: choose one of these batch sizes, or search again for {batch}"
        )


def _largest(choice: Choice) -> int:
    """Return the largest number of nodes that a step may verify."""
    if choice.grown is not None:
        return choice.grown.policy.nodes if choice.grown.policy else math.ceil(choice.grown.nodes)
    return choice.tree.nodes if choice.tree else 0
