"""Measured step times: the profile, its tables, its fit, its error."""
