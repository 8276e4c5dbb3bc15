"""Verification: rules that decide which drafted tokens are accepted, and which token follows them.

* `acceptance_rules`: the interface of rules, the greedy one, and the outcome of a step: accepted tokens and the bonus.
* `multi_round_rejection`: Leviathan, SpecInfer, Sequoia; block verification, which judges a chain as a whole.
* `sampling_rules`: sample and match, point masses, and the base of all sampling rules.
* `typical_acceptance`: Medusa's rule, which is lossy.
* `temperature_top_k_top_p`: temperature, top-k and top-p in one pipeline, and draws from its probabilities.
* `tree_tensors`: draft trees as tensors on the device: parents, depths, ancestors, children.
* `replayed_acceptance`: acceptance imposed by a trace, to time steps with any models.
"""
