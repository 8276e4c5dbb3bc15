"""Comparison: drafters on the same prompts, and files that do not belong together.

* `compare_drafters`: tau with trees of one size, speedup each with its own best tree, paired by request.
* `trees_of_size`: chains and best trees of given sizes, such as `chain:4` or `best:31`.
* `same_prompts`: the check that traces cover the same prompts, and what else differs between them.
* `comparison_record`: the JSON record of a comparison.
* `mismatch_warnings`: warnings where the models, rules, settings or devices of two files differ.
"""
