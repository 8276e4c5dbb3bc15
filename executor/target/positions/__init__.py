"""Positions of a model: what its config.json states and what its code uses.

* `field_names`: names of fields of positions, in every spelling.
* `rotary_kinds`: kinds of rotary positions, and those that are not supported.
* `sliding_windows`: masks of windows, and windows that the code does not have.
* `config_positions`: positions that config.json states and the model does not use.
"""
