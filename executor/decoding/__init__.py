"""The decoding loop: draft, verify, accept, commit.

* `decoder`: `Decoder` and its loop.
* `request_queue`: which request has which row of the batch, and where its text ends.
* `batch_rows`: the sequences on the device; the four parts of a step.
* `cuda_graphs`: steps captured once and replayed on CUDA.
* `tree_growth`: the interface that drafts a step's trees.
* `static_growth`: the same tree in every step.
* `dynamic_growth`: trees that a policy chooses in each step.
* `candidate_pool`: the candidates that dynamic trees are chosen from.
* `step_results`: steps, generated texts, and their counts.
* `greedy_audit`: check that a greedy text is what the target would write.
* `self_test`: the trials of `treeopt doctor`.
"""
