"""Acceptance rules, known by name without torch: what each accepts, and what its traces record.

`ENTRIES` lists the rules; the class of each is in `executor.verification`.
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


ENTRIES = (
    AcceptanceRule(
        name="greedy",
        accepts="the target's argmax",
        rule="executor.verification.acceptance_rules:Greedy",
        takes=(),
    ),
    AcceptanceRule(
        name="typical",
        accepts="tokens that the target finds likely enough",
        rule="executor.verification.typical_acceptance:Typical",
        takes=("warp",),
        lossless=False,
        several=True,
    ),
    AcceptanceRule(
        name="sample-and-match",
        accepts="the tokens that the target samples; candidates of any origin, if siblings are distinct",
        rule="executor.verification.sampling_rules:SampleAndMatch",
    ),
    AcceptanceRule(
        name="point-mass",
        accepts="the same, tokens tried in rounds as in EAGLE-2 and EAGLE-3; equal siblings do no harm",
        rule="executor.verification.sampling_rules:PointMass",
    ),
    AcceptanceRule(
        name="leviathan",
        accepts="a chain drawn from the drafter",
        rule="executor.verification.multi_round_rejection:Leviathan",
        draws=True,
        chains=True,
    ),
    AcceptanceRule(
        name="block",
        accepts="a chain drawn from the drafter, judged from its end",
        rule="executor.verification.multi_round_rejection:BlockVerification",
        draws=True,
        chains=True,
    ),
    AcceptanceRule(
        name="specinfer",
        accepts="siblings drawn with replacement",
        rule="executor.verification.multi_round_rejection:SpecInfer",
        draws=True,
    ),
    AcceptanceRule(
        name="sequoia",
        accepts="siblings drawn without replacement",
        rule="executor.verification.multi_round_rejection:Sequoia",
        draws=True,
    ),
)
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
