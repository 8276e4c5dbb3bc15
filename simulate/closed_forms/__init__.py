"""Speedup formulas of papers, and their error on published speedups."""
