"""Drafters behind one interface: one folder a kind, whose own docstring says what it is.

* `base/`: the interface, and what several kinds share.
"""
