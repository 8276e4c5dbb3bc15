"""The decoding loop: draft, verify, accept, commit.

* `decoder`: `Decoder` and its loop.
* `request_queue`: which request has which row of the batch, and where its text ends.
* `batch_rows`: the sequences on the device; the four parts of a step.
* `cuda_graphs`: steps captured once and replayed on CUDA.
* `static_growth`: the same tree in every step.
* `dynamic_growth`: trees that a policy chooses in each step.
* `step_results`: steps, generated texts, and their counts.
* `self_test`: the trials of `treeopt doctor`.
"""
