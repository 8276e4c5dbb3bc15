"""The rule `leviathan`: Leviathan's rule, speculative sampling of a chain."""

from treeopt.acceptance_rule_entries import AcceptanceRule

ENTRY = AcceptanceRule(
    name="leviathan",
    accepts="a chain drawn from the drafter",
    rule="executor.verification.leviathan:Leviathan",
    draws=True,
    chains=True,
)
