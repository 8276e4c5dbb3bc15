"""The rule `sample-and-match`: sampling the target and matching."""

from treeopt.acceptance_rule_entries import AcceptanceRule

ENTRY = AcceptanceRule(
    name="sample-and-match",
    accepts="the tokens that the target samples; candidates of any origin, if siblings are distinct",
    rule="executor.verification.sample_and_match:SampleAndMatch",
)
