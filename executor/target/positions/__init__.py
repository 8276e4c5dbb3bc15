"""Positions of a model: what its config.json states and what its code uses.

* `config_positions`: positions and windows that config.json states and the model does not use.
"""
