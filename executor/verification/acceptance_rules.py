"""Acceptance rules: their common interface, the greedy rule, and a rule made by name.

A rule draws candidates from the drafter's scores and decides by the target's logits which of them are accepted. What
each rule accepts, and which one is not lossless, stands in `treeopt.acceptance_rule_entries`.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from executor.verification.longest_accepted_path import Accepted, best_of, follow
from executor.verification.temperature_top_k_top_p import Warp
from executor.verification.tree_tensors import Draft
from treeopt.acceptance_rule_entries import RULES
from treeopt.errors import UsageError
from treeopt.registry import load
from treeopt.tree import Tree


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
        """Refuse a tree that the rule cannot verify.

        Raises:
            ExecutorError: says which node and why.
        """

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
