"""CUDA kernels of the verifying forward, in Triton, and the forward that is made of them.

A decoding step reads every weight once. What stands between the weights' products (norms, positions, the cache,
attention, gates) takes as long again when each operation is a kernel of its own.

* `fused_forward`: the whole forward of a Llama-like model over trees; which models have one.
* `few_rows_linear`: linear layers for 1 to 128 tokens, with norm, bias, gate and residual.
* `tree_attention`: attention over the cache and the tree, split over columns.
* `rotary_store`: rotary positions; keys and values to their places in the cache.
* `accepted_path`: the end of a step: the longest accepted path of a greedy one, and the move of accepted entries.
* `dependent_launch`: kernels that start before the one before has ended.
"""
