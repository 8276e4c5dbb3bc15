"""Sequoia@0ff3ff7 and its successor UMbreLLa@ff1ac17: growmaps, which count the children of each node.

A growmap names no ranks: the b children of a node are its first b samples without replacement. There is no
exporter yet.
"""

from treeopt.constraints import Constraint, ContiguousRanks

SEQUOIA = "Sequoia 0ff3ff7"
UMBRELLA = "UMbreLLa ff1ac17"
CONSTRAINTS: tuple[Constraint, ...] = (ContiguousRanks(source="`branches` of a growmap"),)
