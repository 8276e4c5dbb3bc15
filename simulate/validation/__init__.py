"""Predictions fixed before a measurement, and how well they agree with it."""
