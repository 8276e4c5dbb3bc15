"""LMDeploy 0.18.0: a chain of `--speculative-num-draft-tokens`. There is no exporter yet."""

from treeopt.constraints import ChainOnly, Constraint

ENGINE = "LMDeploy 0.18.0"
CONSTRAINTS: tuple[Constraint, ...] = (ChainOnly(source="num_speculative_tokens of SpeculativeConfig"),)
