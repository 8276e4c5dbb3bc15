"""The rule `point-mass`: EAGLE-2's and EAGLE-3's rule."""

from treeopt.acceptance_rule_entries import AcceptanceRule

ENTRY = AcceptanceRule(
    name="point-mass",
    accepts="the same, tokens tried in rounds as in EAGLE-2 and EAGLE-3; equal siblings do no harm",
    rule="executor.verification.sample_and_match:PointMass",
)
