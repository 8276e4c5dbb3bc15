"""EAGLE, EAGLE-2, HASS and CORAL.

* `drafter`: the network.
* `router`: CORAL's LM-head router.
* `checkpoint`: files of the reference, vLLM and speculators.
* `folded_bias`: EAGLE for vLLM, whose bias after `fc` becomes part of the drafter's embeddings.
"""
