"""The settings of a drafter's decoder layers, as config.json has them in the spellings of trainers and engines.

* `layer_config`: the configuration of one layer, from its tensors and the files' fields.
* `rotary_positions`: rotary positions in every spelling; what is not supported is refused.
* `attention_windows`: which layers attend to a window.
* `config_fields`: the fields of config.json: read, known to be without effect, or refused.
"""
