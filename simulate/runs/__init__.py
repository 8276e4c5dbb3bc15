"""Runs: what steps add up to in a batch or a server."""
