"""Predicted against measured, live."""
