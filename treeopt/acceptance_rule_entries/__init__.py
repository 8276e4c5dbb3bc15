"""Acceptance rules, known by name without torch: what each accepts, and what its traces record.

A module of this folder that defines `ENTRY` is a rule; its class is in `executor.verification`.

* `greedy`, `typical`: the target's argmax; Medusa's typical acceptance, the only rule that is not lossless.
* `sample_and_match`, `point_mass`: candidates of any origin.
* `leviathan`, `block`, `specinfer`, `sequoia`: candidates drawn from the drafter's law.
"""

from dataclasses import dataclass

from treeopt.registry import Registry


@dataclass(frozen=True, kw_only=True)
class AcceptanceRule:
    """A rule that decides which drafted tokens are accepted.

    Attributes:
        name: the name that users write.
        accepts: what it accepts, in words.
        rule: its class, as `module:name`.
        takes: arguments of the class: `warp` (temperature, top-k, top-p) and `generator`; without them it is for
            temperature 0.
        lossless: the emitted text has the target's distribution.
        draws: candidates are drawn from the drafter's law, so traces record `kept`, and ranks are drawn from it.
        chains: it verifies chains only.
        several: it may accept several siblings, so traces record `tree_kept` of one tree.
    """

    name: str
    accepts: str
    rule: str
    takes: tuple[str, ...] = ("warp", "generator")
    lossless: bool = True
    draws: bool = False
    chains: bool = False
    several: bool = False


RULES: Registry[AcceptanceRule] = Registry("rule", "treeopt.acceptance_rule_entries", group="treeopt.acceptance_rules")


def recorded_rule(name: object) -> AcceptanceRule | None:
    """Return the rule that a trace names; None if it names none, or one that is not known.

    >>> recorded_rule("block").chains, recorded_rule(None)
    (True, None)
    """
    return RULES[name] if isinstance(name, str) and name in RULES else None


def draws_candidates(name: object) -> bool:
    """Return whether a recorded rule draws candidates from the drafter's law, so that traces need `kept`."""
    rule = recorded_rule(name)
    return rule is not None and rule.draws


def takes_chains_only(name: object) -> bool:
    """Return whether a recorded rule verifies chains only."""
    rule = recorded_rule(name)
    return rule is not None and rule.chains


def may_accept_several(name: object) -> bool:
    """Return whether a recorded rule may accept several siblings; only its traces have `tree_kept`."""
    rule = recorded_rule(name)
    return rule is not None and rule.several
