"""Settings of a drafter's decoder layer that config.json states.

* `layer_config`: the configuration of a decoder layer: widths from its tensors, the rest from config.json.
* `positions`: rotary positions and windows.
* `config_fields`: fields that no reader takes; those of positions, windows and target layers are refused.
* `stated_sizes`: sizes that config.json states beside those of the tensors.
"""
