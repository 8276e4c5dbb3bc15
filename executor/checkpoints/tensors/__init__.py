"""Tensor files, independent of the drafter that they hold.

* `detect_layout`: which drafter a checkpoint holds, by its tensors' names and shapes.
* `find_tensor_files`: which file of a folder is the checkpoint; safetensors, shards, `.pt` and `.bin`.
* `lazy_tensors`: tensors by name, shape and type, whose values are read later.
* `parameter_names`: from tensors to a module's parameters and back.
* `target_copies`: copies of the target's embeddings and LM head.
* `torch_save`: files of `torch.save`, read without running code.
* `write_tensors`: writing tensors and config.json.
"""
