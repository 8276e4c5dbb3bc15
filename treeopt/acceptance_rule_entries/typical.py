"""The rule `typical`: Medusa's typical acceptance."""

from treeopt.acceptance_rule_entries import AcceptanceRule

ENTRY = AcceptanceRule(
    name="typical",
    accepts="tokens that the target finds likely enough",
    rule="executor.verification.typical_acceptance:Typical",
    takes=("warp",),
    lossless=False,
    several=True,
)
