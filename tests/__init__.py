"""Tests of treeopt; a package, so that tests share `tests.helpers.strategies`."""
