"""Validation: compare a plan's predictions with what a runner measures.

* `compare_live`: `compare`, which decodes requests with every configuration of a plan.
"""
