"""The rules of Sequoia's code: a growmap has no ranks, the children of a node are its first samples."""

from treeopt.constraints import ContiguousRanks
from treeopt.engines.engine import Engine

ENTRY = Engine(
    name="sequoia",
    title="Sequoia 0ff3ff7",
    rules=(ContiguousRanks(source="`branches` of a growmap"),),
)
