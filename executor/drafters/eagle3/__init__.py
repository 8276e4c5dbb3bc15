"""EAGLE-3: a decoder layer over several of the target's layers, with an LM head of its own.

* `drafter`: the network.
* `checkpoint`: reading the files of all trainers.
* `checkpoint_layouts`: writing them for the reference, vLLM, SpecForge and speculators.
* `norms`: the norms, and what `norm_output` means in each trainer's files.
* `d2t_vocabulary`: the `d2t` and `t2d` vocabulary mapping.
* `target_layers`: which of the target's layers a checkpoint reads.
"""
