"""Hydra and Hydra++ heads.

* `drafter`: the heads.
* `prefix_attention`: the decoder layer that Hydra++ puts before its heads.
* `checkpoint`: their files.
"""
