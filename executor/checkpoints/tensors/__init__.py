"""Tensor files and the config.json beside them, independent of the drafter that they hold.

* `detect_layout`: which drafter a checkpoint holds, by its tensors' names and shapes; kinds that are refused.
* `find_tensor_files`: which file of a folder is the checkpoint; safetensors, shards, `.pt` and `.bin`.
* `lazy_tensors`: tensors by name, shape and type, whose values are read later; from tensors to a module's parameters.
* `write_tensors`: writing tensors and config.json; copies of the target's embeddings and LM head.
* `layer_config`: the configuration of a decoder layer: widths from its tensors, the rest from config.json.
* `layer_positions`: its rotary positions and windows.
"""
