"""Verification: which drafted tokens a rule accepts."""
