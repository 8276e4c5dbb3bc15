"""The settings of a drafter's decoder layers, as config.json has them in the spellings of trainers and engines.

* `layer_config`: the configuration of one layer, from its tensors and the files' fields.
* `rotary_positions`: rotary positions in every spelling; what is not supported is refused.
* `rotary_numbers`: the numbers that each kind of positions needs, and which are possible.
* `attention_windows`: which layers attend to a window.
* `stated_sizes`: sizes in config.json that contradict the tensors.
* `config_fields`: the fields of config.json: read, known to be without effect, or refused.
"""
