"""Transformers 5.23.0, assisted generation: a chain of `num_assistant_tokens`, batch 1. There is no exporter yet."""

from treeopt.constraints import ChainOnly, Constraint

ENGINE = "transformers 5.23.0"
CONSTRAINTS: tuple[Constraint, ...] = (ChainOnly(source="num_assistant_tokens of GenerationConfig"),)
