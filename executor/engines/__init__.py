"""Engines: other programs' inference engines, driven, timed and recorded; they need their own environments.

* `engine`: the interface of every driver, and the values that pass through it: requests, draft settings, steps.
"""
