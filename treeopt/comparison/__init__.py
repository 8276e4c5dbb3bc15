"""Comparison: drafters on the same prompts, and files that do not belong together.

* `compare_drafters`: tau with trees of one size, speedup each with its own best tree, paired by request; the record.
* `trees_of_size`: chains and best trees of given sizes, such as `chain:4` or `best:31`.
* `mismatch_warnings`: warnings where the models, rules, settings, prompts or devices of files differ.
"""
