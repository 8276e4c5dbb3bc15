"""Trees published by papers and their code, by name; stored in `data/published/trees.json`."""

import json
from functools import cache

from treeopt.errors import TreeError
from treeopt.storage.atomic_files import shipped
from treeopt.tree import Tree

MEDUSA = "medusa/mc_sim_7b_63"
EAGLE = "eagle1/mc_sim_7b_63"


@cache
def published_trees() -> dict[str, Tree]:
    """Return all published trees by name; the file also holds their sources.

    >>> published_trees()[MEDUSA].level_widths
    (10, 28, 23, 2)
    """
    path = shipped("published/trees.json")
    try:
        return {record["name"]: Tree.from_paths(record["paths"]) for record in json.loads(path.read_text("utf-8"))}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TreeError(f"{path}: published trees cannot be read: {error!r}") from error
