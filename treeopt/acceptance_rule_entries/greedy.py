"""The rule `greedy`: the greedy rule."""

from treeopt.acceptance_rule_entries import AcceptanceRule

ENTRY = AcceptanceRule(
    name="greedy",
    accepts="the target's argmax",
    rule="executor.verification.acceptance_rules:Greedy",
    takes=(),
)
