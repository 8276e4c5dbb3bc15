"""How a tree may grow at run time: the settings of dynamic trees, and nothing of how they are drafted."""

from dataclasses import dataclass

from treeopt.errors import TreeError
from treeopt.tree import MAX_NODES


@dataclass(frozen=True)
class DynamicTree:
    """Expand and re-rank, as EAGLE-2 does (Li et al. 2024, arXiv 2406.16858, §4).

    Each level expands the `beam` nodes that the drafter finds most probable, by the product of its probabilities
    along the path; of all nodes seen, the `nodes` most probable are verified. Ties: by depth, then by rank path.

    Attributes:
        nodes: drafted nodes of a sequence that are verified, at most.
        depth: levels drafted.
        beam: nodes expanded on each level below the root.
        width: children looked at of each expanded node; None as many as `beam`.
        min_probability: nodes that the drafter finds less probable are left out (the confidence stop).
        budget: nodes verified in all sequences together, at most; None: `nodes` each.
    """

    nodes: int
    depth: int
    beam: int = 10
    width: int | None = None
    min_probability: float = 0.0
    budget: int | None = None

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            TreeError: names the setting that cannot be.
        """
        for name in ("nodes", "depth", "beam", "children", "budget"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 1 <= value <= MAX_NODES):
                raise TreeError(f"{name} must be an integer in 1..{MAX_NODES}, got {value!r}")
        if not 0 <= self.min_probability < 1:
            raise TreeError(f"min_probability must be in [0, 1), got {self.min_probability!r}")
        if self.nodes > self.candidates:
            raise TreeError(
                f"{self.nodes} nodes are wanted of {self.candidates} candidates: "
                "ask for fewer, or raise depth, beam or width"
            )

    @property
    def children(self) -> int:
        """Children looked at of each expanded node."""
        return self.beam if self.width is None else self.width

    @property
    def expanded(self) -> tuple[int, ...]:
        """Nodes expanded on each level, the root's first.

        >>> DynamicTree(nodes=8, depth=3, beam=4, width=2).expanded
        (1, 2, 4)
        """
        counts = [1]
        for _ in range(self.depth - 1):
            counts.append(min(self.beam, counts[-1] * self.children))
        return tuple(counts)

    @property
    def candidates(self) -> int:
        """Nodes seen of each sequence.

        >>> DynamicTree(nodes=8, depth=3, beam=4, width=2).candidates
        14
        """
        return self.children * sum(self.expanded)
