"""Measuring step times."""
