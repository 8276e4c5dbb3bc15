"""Closed forms: speedup formulas of papers.

* `paper_formulas`: expected tokens per step, Leviathan's Theorem 3.8, CORAL's Eq. 6.
"""
