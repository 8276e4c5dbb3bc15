"""Validation: compare a plan's predictions with what the real loop measures.

* `compare_live`: `compare`, which decodes requests with every configuration of a plan.
* `weight_reads`: weights that a step reads, for closed forms.
"""
