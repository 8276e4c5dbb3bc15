"""The n-gram drafter: counts of short token sequences.

* `drafter`: the distribution.
* `token_counts`: its sorted counts of token sequences.
* `checkpoint`: its files.
"""
