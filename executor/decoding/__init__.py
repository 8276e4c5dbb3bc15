"""The decoding loop: draft, verify, accept, commit.

* `decoder`: `Decoder` and its loop.
* `request_queue`: which requests wait, which rows they have, where texts end; the results of steps.
* `batch_rows`: the sequences on the device; the four parts of a step.
* `cuda_graphs`: steps captured once and replayed on CUDA.
* `tree_growth`: draft trees along a fixed topology, and those that a policy chooses in each step.
* `self_test`: the trials of `treeopt doctor`.
"""
