"""The trees of a server by the number of requests that decode, and when it changes between them."""

import logging
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from treeopt.errors import PlanError, UsageError
from treeopt.planning.baselines import STATIC
from treeopt.plans import Plan, PlanEntry
from treeopt.tree import Tree

LOG = logging.getLogger("treeopt")


@dataclass(frozen=True)
class Switching:
    """The trees that are drafted, by the number of requests that decode.

    Attributes:
        trees: trees from few requests to many; None: plain decoding.
        up: up[i]: change from trees[i] to the next when this number of requests decode, or more; one between every two.
        down: down[i]: change back to trees[i] when this number of requests decode, or fewer.
        switch_s: seconds that a change takes.
    """

    trees: tuple[Tree | None, ...]
    up: tuple[int, ...] = ()
    down: tuple[int, ...] = ()
    switch_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the changes.

        Raises:
            UsageError: a change would be undone at once.
        """
        for i, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            if down >= up:
                raise UsageError(f"down[{i}] must be below up[{i}], got {down} and {up}")

    @classmethod
    def of(cls, plan: Plan, *, switch_s: float = 0.0) -> "Switching":
        """Return the changes of a plan; if it lists none, each entry holds up to its batch size.

        Args:
            plan: a plan of static trees; leave out entries of dynamic ones before.
            switch_s: seconds that a change takes.

        Raises:
            UsageError: an entry has a dynamic tree.
        """
        entries = {entry.batch: entry.choice for entry in sorted(plan.entries, key=lambda entry: entry.batch)}
        for batch, choice in entries.items():
            if choice.grown is not None:
                raise UsageError(
                    f"the plan has a dynamic tree at batch {batch}; a server drafts only static trees: search "
                    "without --policy"
                )
        sizes = list(entries)
        changes = [(s.large, s.up, s.down) for s in plan.switches] or [
            (large, small + 1, small) for small, large in pairwise(sizes) if entries[small].tree != entries[large].tree
        ]
        # No change waits for one that lies beyond it: otherwise the trees after both would start later than planned.
        ups = list(accumulate((up for _, up, _ in reversed(changes)), min))[::-1]
        downs = accumulate((down for _, _, down in changes), max)
        return cls(
            (entries[sizes[0]].tree, *(entries[large].tree for large, _, _ in changes)),
            tuple(ups),
            tuple(downs),
            switch_s,
        )

    def next_tree(self, index: int, running: int) -> int:
        """Return the index of the tree for `running` requests, coming from the tree with `index`.

        >>> Switching((None, Tree.chain(1)), up=(3,), down=(1,)).next_tree(0, 2)
        0
        """
        while index < len(self.up) and running >= self.up[index]:
            index += 1
        while index > 0 and running <= self.down[index - 1]:
            index -= 1
        return index


def static_entry(entry: PlanEntry) -> PlanEntry:
    """Return the entry; a dynamic choice gives way to the best static tree beside it, and a note says so.

    Raises:
        PlanError: the entry holds no static tree.
    """
    if entry.choice.grown is None:
        return entry
    dynamic = f"the plan's choice {entry.choice.name!r} for batch {entry.batch} grows a tree at each step"
    for choice in entry.compared:
        if choice.name == STATIC:
            LOG.info("Note: %s; runs are simulated with static trees, so its %s is used.", dynamic, STATIC)
            return replace(entry, choice=choice)
    raise PlanError(
        f"{dynamic}; runs are simulated with static trees, and the plan holds no {STATIC}: search without --policy"
    )
