"""The rule `block`: block verification."""

from treeopt.acceptance_rule_entries import AcceptanceRule

ENTRY = AcceptanceRule(
    name="block",
    accepts="a chain drawn from the drafter, judged from its end",
    rule="executor.verification.block_verification:BlockVerification",
    draws=True,
    chains=True,
)
