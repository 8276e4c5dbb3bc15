"""Files that inference engines read and that are more than the drafter's tensors under other names.

* `folded_bias`: EAGLE for vLLM, whose bias after `fc` becomes part of the drafter's embeddings.
"""
