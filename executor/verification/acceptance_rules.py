"""Acceptance rules: their interface, the outcome of a step, the greedy rule, and a rule made by name.

A rule draws candidates from the drafter's scores and decides by the target's logits which of them are accepted. What
each rule accepts, and which one is not lossless, stands in `treeopt.acceptance_rule_entries`.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from executor.verification.temperature_top_k_top_p import Warp
from executor.verification.tree_tensors import Draft, Topology
from treeopt.acceptance_rule_entries import RULES
from treeopt.errors import UsageError
from treeopt.registry import load
from treeopt.tree import Tree


@dataclass(frozen=True)
class Accepted:
    """The outcome of a step, in tensors of the batch.

    Attributes:
        count: int64 (batch,), accepted drafted tokens.
        path: int64 (batch, depth + 1), nodes of the accepted path, the root first; entries beyond `count` repeat.
        emitted: int64 (batch, depth + 1), committed tokens: the accepted ones, then the bonus at `count` and all
            entries beyond it.
    """

    count: Tensor
    path: Tensor
    emitted: Tensor

    @classmethod
    def of(cls, draft: Draft, count: Tensor, path: Tensor, bonus: Tensor) -> "Accepted":
        """Return the outcome with the drafted tokens of `path`, then the bonus, int64 (batch, 1)."""
        step = torch.arange(path.shape[1], device=path.device)
        tokens = draft.tokens.gather(1, path).roll(-1, 1)
        return cls(count, path, torch.where(step < count[:, None], tokens, bonus))

    @property
    def last(self) -> Tensor:
        """The node at which the path ends: int64 (batch,)."""
        return self.path[:, -1]


def follow(draft: Draft, emitted: Tensor) -> Accepted:
    """Accept the longest path on which every drafted token equals what its parent emitted.

    Args:
        draft: the trees. Siblings hold distinct tokens, so the path is unique.
        emitted: int64 (batch, count), the token that the rule emits at each node.
    """
    above = emitted.gather(1, draft.topology.parent.expand_as(emitted))
    count, path = deepest(draft.topology, draft.tokens != above)
    return Accepted(count, path, emitted.gather(1, path))


def deepest(topology: Topology, missed: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the longest path of nodes that match: length, int64 (batch,), and nodes, int64 (batch, depth + 1).

    Args:
        topology: the trees.
        missed: bool (batch, count), nodes that do not match; the root always matches, an absent entry never.
        weight: (batch, count); among paths of equal length the largest sum over the nodes wins. Default: the first
            path wins.
    """
    if topology.present is not None:
        missed = missed | ~topology.present
    length = topology.depth.masked_fill(cut_off(topology, missed), -1)
    count, best = length.max(1)
    if weight is not None:
        sums = (topology.below * torch.where(missed, 0, weight)[:, None]).sum(-1)
        best = torch.where(length == count[:, None], sums, -torch.inf).argmax(1)
    return count, topology.path[topology.which, best]


def cut_off(topology: Topology, missed: Tensor) -> Tensor:
    """Return the nodes that do not match or have an ancestor that does not: bool (batch, count), as `missed`."""
    return (topology.below & missed[:, None]).any(-1)


def best_of(logits: Tensor) -> Tensor:
    """Return the argmax of each row, the first of equals: (..., vocabulary) -> int64 (...).

    On CPU `argmax` of bf16 numbers takes four times as long (torch 2.13).
    """
    return logits.max(-1).indices


def rows(values: Tensor, nodes: Tensor) -> Tensor:
    """Select the rows of `nodes`, int64 (batch, k), from (batch, count, n): (batch, k, n)."""
    return values[torch.arange(len(nodes), device=nodes.device)[:, None], nodes]


class Rule(Protocol):
    """Draws siblings and verifies them; draws and verdicts use one generator and one `Warp`."""

    @property
    def lossless(self) -> bool:
        """True if the emitted text has the target's distribution."""

    @property
    def needs_scores(self) -> bool:
        """True if `Draft.scores` must be present."""

    @property
    def sampled_candidates(self) -> bool:
        """True if candidates are drawn at random: a tree that selects nodes by their score would bias the rule."""

    def check(self, tree: Tree) -> None:
        """Raise ExecutorError, saying which node and why, for a tree that the rule cannot verify."""

    def candidates(self, scores: Tensor, width: int) -> Tensor:
        """Return children of fed nodes by rank, int64 (..., width), from the drafter's scores (..., vocabulary)."""

    def accept(self, logits: Tensor, draft: Draft) -> Accepted:
        """Return the verdict, given the target's logits (batch, count, vocabulary) at every node."""


@dataclass(frozen=True)
class Greedy:
    """Accept the target's argmax, the first of equals."""

    lossless = True
    needs_scores = False
    sampled_candidates = False

    def check(self, tree: Tree) -> None:
        """Accept any tree."""

    def candidates(self, scores: Tensor, width: int) -> Tensor:
        """Return the best `width` tokens, best first."""
        return scores.max(-1, keepdim=True).indices if width == 1 else scores.topk(width, dim=-1).indices

    def accept(self, logits: Tensor, draft: Draft) -> Accepted:
        """Accept the longest path on which every token is the argmax at its parent."""
        return follow(draft, best_of(logits))


def make_rule(name: str, *, warp: Warp | None = None, generator: torch.Generator | None = None) -> Rule:
    """Return the rule of that name.

    Args:
        name: one of `RULES`.
        warp: None for temperature 0, which only greedy takes.
        generator: on the device of the logits; greedy and typical draw nothing and need none.

    Raises:
        UsageError: unknown name, or a rule that does not support this temperature.

    >>> make_rule("greedy")
    Greedy()
    """
    entry = RULES[name]
    if warp is not None and not entry.takes:
        raise UsageError(f"rule {name} is for temperature 0, got {warp}; to sample use rule sample-and-match")
    if warp is None and entry.takes:
        raise UsageError(f"rule {name} needs a temperature above 0; at temperature 0 use rule greedy")
    if generator is None and "generator" in entry.takes:
        raise UsageError(f"rule {name} draws at random and needs a generator, got none")
    arguments = {"warp": warp, "generator": generator}
    rule: Rule = load(entry.rule)(*(arguments[argument] for argument in entry.takes))
    return rule


def rule_meta(rule: Rule) -> dict[str, Any]:
    """Return the settings of a rule from `make_rule`, as traces, profiles and validations record them.

    >>> rule_meta(make_rule("greedy"))
    {'verification': 'greedy', 'temperature': 0.0}
    """
    name = next(name for name, entry in RULES.items() if load(entry.rule) is type(rule))
    warp: Warp | None = getattr(rule, "warp", None)
    settings = {"verification": name, "temperature": 0.0 if warp is None else warp.temperature}
    if warp is not None and warp.top_k is not None:
        settings["top_k"] = warp.top_k
    if warp is not None and warp.top_p < 1:
        settings["top_p"] = warp.top_p
    return settings
