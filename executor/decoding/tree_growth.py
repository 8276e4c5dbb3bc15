"""Draft-tree growth: the interface that `static_growth` and `dynamic_growth` implement to draft a step's trees."""

from typing import Any, Protocol

from torch import Tensor

from executor.drafters.base.drafter import Drafter
from executor.verification.acceptance_rules import Rule
from executor.verification.tree_tensors import Draft


class Growth(Protocol):
    """Drafts one step's trees with a drafter whose state has been extended.

    Attributes:
        depth: levels drafted.
        count: entries of a tree, the root included.
        room: entries that a step may write into a cache after the committed tokens.
        in_place: accepted nodes always lie where they belong: the cache needs no compaction.
        fed_in_place: so do the nodes that the drafter is fed, in its cache.
    """

    depth: int
    count: int
    room: int
    in_place: bool
    fed_in_place: bool

    def draft(
        self, drafter: Drafter | None, state: Any, root: Tensor, rule: Rule, *, idle: Tensor | None = None
    ) -> Draft:
        """Return the trees below `root`, int64 (batch,).

        The drafter may be None if there are no levels. Rows that are `idle`, bool (batch,), get what is left.
        """
