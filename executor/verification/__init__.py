"""Verification: rules that decide which drafted tokens are accepted, and which token follows them.

* `acceptance_rules`: the interface of rules, the greedy one, and the outcome of a step: accepted tokens and the bonus.
* `sample_and_match`: rules for candidates of any origin: sample the target and match; EAGLE-2's point masses.
* `multi_round_rejection`: Leviathan, SpecInfer, Sequoia; block verification, which judges a chain as a whole.
* `typical_acceptance`: the formula of typical acceptance (Medusa), the only rule that is not lossless.
* `acceptance_probabilities`: base class of the sampling rules: from acceptance probabilities to a random verdict.
* `temperature_top_k_top_p`: temperature, top-k and top-p in one pipeline, and draws from its probabilities.
* `tree_tensors`: draft trees as tensors on the device: parents, depths, ancestors, children.
* `replayed_acceptance`: acceptance imposed by a trace, to time steps with any models.
"""
