"""Tensor files, independent of the drafter that they hold."""
