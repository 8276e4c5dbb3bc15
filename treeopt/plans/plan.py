"""A plan: per batch size the topology to use, or none, with its prediction, its proof and what it was compared with."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from treeopt.errors import PlanError, UsageError
from treeopt.policies import Policy
from treeopt.statistics.clustered_estimate import Estimate
from treeopt.tree import Tree

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Grown:
    """A tree that is drawn anew at each step, by a policy.

    Attributes:
        kind: of policy, as `treeopt.searchers.dynamic_trees.choose_policy` names it.
        settings: of that kind.
        nodes: drafted nodes that a step verifies, mean.
        depth: levels that a step drafts, mean.
        policy: with all that was fitted, as the loop takes it; None of a bound, which is no policy.
    """

    kind: str
    settings: Mapping[str, Any]
    nodes: float
    depth: float
    policy: Policy | None = None


@dataclass(frozen=True)
class Choice:
    """One way to decode and its prediction, replayed on requests that no choice was made on.

    Attributes:
        name: what it is called in tables.
        tree: the topology; None decodes plainly or with a grown tree.
        tau: tokens a step and sequence, bonus counted.
        step_s: seconds of a step, the mean where steps differ.
        speedup: plain decoding's time a token over this one's, both as the plan's objective counts them.
        grown: the policy of a tree that is drawn anew at each step.
        behind: share of the plan's choice's tokens a second that this way loses, paired by request, step times taken
            as they are; None for the choice itself.
    """

    name: str
    tree: Tree | None
    tau: Estimate
    step_s: float
    speedup: Estimate
    grown: Grown | None = None
    behind: Estimate | None = None

    @property
    def plain(self) -> bool:
        """Whether nothing is drafted."""
        return self.tree is None and self.grown is None

    @property
    def nodes(self) -> float:
        """Drafted nodes of a step, the mean where steps differ."""
        return self.grown.nodes if self.grown else self.tree.nodes if self.tree else 0

    @property
    def depth(self) -> float:
        """Drafted levels of a step, the mean where steps differ."""
        return self.grown.depth if self.grown else self.tree.depth if self.tree else 0

    def tokens_s(self, batch: int) -> float:
        """Tokens a second of the whole batch."""
        return batch * self.tau.value / self.step_s


@dataclass(frozen=True)
class Proof:
    """What is known about a choice: `objective` names what was maximised, `optimal` whether that is proved."""

    objective: str
    optimal: bool
    statement: str


@dataclass(frozen=True)
class Price:
    """What one rule of an engine costs by itself: the share of tokens a second lost to the best tree without it."""

    rule: str
    source: str
    share: Estimate


@dataclass(frozen=True)
class PlanEntry:
    """The choice for one batch size.

    Attributes:
        batch: sequences decoded together.
        choice: what to use.
        gain: difference of tau over the best chain, paired by request; None when the chain itself was chosen.
        compared: the other ways, in the order of the table.
        skipped: name -> reason, for ways that the trace cannot judge.
        proof: what is proved.
        prices: of the rules that keep the engine from the best tree of all.
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
        """Seconds a token and sequence of the choice, tokens counted as the objective does: time per output token."""
        plain = next((choice for choice in self.compared if choice.plain), None)
        return self.choice.step_s / self.choice.tau.value if plain is None else plain.step_s / self.choice.speedup.value


@dataclass(frozen=True)
class Switch:
    """Where a running engine changes from the way planned for one batch size to that planned for the next.

    Between `down` and `up` it keeps what it runs: neither way is known to be better there by more than the margin.

    Attributes:
        small: the planned batch size below the change.
        large: the planned batch size above it.
        up: change when the batch reaches this size.
        down: change back when it falls to this size.
    """

    small: int
    large: int
    up: int
    down: int


@dataclass(frozen=True)
class Plan:
    """Entries by batch size, what holds for all of them, and provenance.

    Attributes:
        entries: one a batch size.
        meta: provenance; JSON values only.
        switches: where to change between entries of different shapes, by rising batch size.
        best: batch size of the entry that the objective prefers among all; None where it has no preference.
        warnings: what a reader must know before believing it, one sentence each.
    """

    entries: tuple[PlanEntry, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)
    switches: tuple[Switch, ...] = ()
    best: int | None = None
    warnings: tuple[str, ...] = ()

    @property
    def captures(self) -> tuple[tuple[int, int], ...]:
        """(batch, tokens a sequence) of the verify forwards, of grown trees the largest: what graphs are made for."""
        return tuple((entry.batch, 1 + _largest(entry.choice)) for entry in self.entries)

    def entry(self, batch: int | None) -> PlanEntry:
        """The entry for a batch size, or the only one.

        Raises:
            UsageError: there are several, and none is asked for.
            PlanError: there is none for this batch size.
        """
        sizes = ", ".join(str(entry.batch) for entry in self.entries)
        if batch is None and len(self.entries) > 1:
            raise UsageError(f"the plan is for batch {sizes}: say which with --batch")
        for entry in self.entries:
            if batch in (None, entry.batch):
                return entry
        raise PlanError(f"the plan is for batch {sizes}, not {batch}")

    def frame(self) -> "pd.DataFrame":
        """One row a batch size and way of decoding."""
        import pandas as pd

        rows = []
        for entry in self.entries:
            for choice in (entry.choice, *entry.compared):
                rows.append(
                    {
                        "batch": entry.batch,
                        "name": choice.name,
                        "chosen": choice is entry.choice,
                        "nodes": choice.nodes,
                        "depth": choice.depth,
                        "tau": choice.tau.value,
                        "tau_low": choice.tau.low,
                        "tau_high": choice.tau.high,
                        "step_s": choice.step_s,
                        "tokens_s": choice.tokens_s(entry.batch),
                        "speedup": choice.speedup.value,
                        "speedup_low": choice.speedup.low,
                        "speedup_high": choice.speedup.high,
                        "behind": choice.behind.value if choice.behind else 0.0,
                    }
                )
        return pd.DataFrame(rows)


def _largest(choice: Choice) -> int:
    """Nodes that a step may verify."""
    if choice.grown is not None:
        return choice.grown.policy.nodes if choice.grown.policy else math.ceil(choice.grown.nodes)
    return choice.tree.nodes if choice.tree else 0
