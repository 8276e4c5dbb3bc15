"""The rule `specinfer`: SpecInfer's rule."""

from treeopt.acceptance_rule_entries import AcceptanceRule

ENTRY = AcceptanceRule(
    name="specinfer",
    accepts="siblings drawn with replacement",
    rule="executor.verification.multi_round_rejection:SpecInfer",
    draws=True,
)
