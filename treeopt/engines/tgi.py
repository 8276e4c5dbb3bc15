"""Text Generation Inference 3.3.7: a chain of `--speculate`, Medusa's heads included. There is no exporter yet."""

from treeopt.constraints import ChainOnly, Constraint

ENGINE = "TGI 3.3.7"
CONSTRAINTS: tuple[Constraint, ...] = (ChainOnly(source="--speculate is a length"),)
