"""A small language model as the drafter.

* `drafter`: its step, with a cache of its own.
"""
