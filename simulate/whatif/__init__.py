"""Devices, contexts and batch sizes that were not measured."""
