"""MLC-LLM, July 2026: `spec_draft_length` levels in which every node has `spec_tree_width` children.

There is no exporter yet.
"""

from treeopt.constraints import Constraint, FullTree

ENGINE = "MLC-LLM 2026-07"
CONSTRAINTS: tuple[Constraint, ...] = (FullTree(source="spec_tree_width of EngineConfig"),)
