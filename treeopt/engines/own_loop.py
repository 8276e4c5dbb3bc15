"""treeopt's own loop among the engines: it runs every tree."""

from treeopt.engines.engine import Engine

ENTRY = Engine(name="treeopt", title="treeopt's own loop", rules=())
