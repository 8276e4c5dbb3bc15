"""The rule `sequoia`: Sequoia's rule."""

from treeopt.acceptance_rule_entries import AcceptanceRule

ENTRY = AcceptanceRule(
    name="sequoia",
    accepts="siblings drawn without replacement",
    rule="executor.verification.multi_round_rejection:Sequoia",
    draws=True,
)
