"""Medusa heads: residual networks on the target's last feature.

* `drafter`: the heads.
* `checkpoint`: their files.
"""
