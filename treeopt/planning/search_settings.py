"""The settings of a search and their limits."""

from dataclasses import dataclass
from typing import Literal

from treeopt.constraints import Constraint
from treeopt.defaults import NEAR
from treeopt.errors import UsageError
from treeopt.searchers.constrained_trees.dinkelbach import WORK
from treeopt.searchers.dynamic_trees.step_prices import Padding
from treeopt.tree import MAX_NODES

Method = Literal["renewal", "best-first", "hydra"]
METHODS = ("renewal", "best-first", "hydra")

DEFAULT_METHOD: Method = "renewal"
DEFAULT_PADDING: Padding = "widest"
DEFAULT_SOLVER_WORK = WORK


@dataclass(frozen=True)
class SearchSettings:
    """The trees that a search considers, and how it chooses among them.

    Attributes:
        batches: batch sizes.
        nodes: largest tree.
        depth: deepest tree.
        method: how candidate trees are made.
        rules: rules that trees must keep.
        shapes: largest number of different trees; None: one per batch size.
        near: share by which a tree may be slower and still count as equally fast, if the intervals overlap; of equally
            fast trees the smallest is chosen.
        max_tpot_s: largest time per output token in seconds; kept where any tree can keep it.
        shrink: strength of shrinkage of path counts; None: fitted on the requests.
        solver_work: work for an integer programme where enumeration proves nothing, see `refine`; 0 for none.
    """

    batches: tuple[int, ...]
    nodes: int
    depth: int
    method: Method = DEFAULT_METHOD
    rules: tuple[Constraint, ...] = ()
    shapes: int | None = None
    near: float = NEAR
    max_tpot_s: float | None = None
    shrink: float | None = None
    solver_work: float = DEFAULT_SOLVER_WORK

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            UsageError: names the setting that has no meaning.
        """
        for name, value in (
            *(("batch", size) for size in self.batches),
            ("max-nodes", self.nodes),
            ("max-depth", self.depth),
        ):
            if type(value) is not int:
                raise UsageError(f"{name} must be an integer, got {value!r}")
        if not self.batches:
            raise UsageError("at least one batch size is needed")
        for size in self.batches:
            if size < 1:
                raise UsageError(f"batch must be at least 1, got {size}")
        if len(set(self.batches)) < len(self.batches):
            raise UsageError(f"batch sizes must differ, got {', '.join(map(str, self.batches))}")
        if self.nodes < 1 or self.depth < 1:
            raise UsageError(f"max-nodes and max-depth must be at least 1, got {self.nodes} and {self.depth}")
        if self.nodes > MAX_NODES:
            raise UsageError(f"max-nodes must be at most {MAX_NODES}, got {self.nodes}")
        if self.method not in METHODS:
            raise UsageError(f"method must be {', '.join(METHODS[:-1])} or {METHODS[-1]}, got {self.method}")
        if self.shapes is not None and self.shapes < 1:
            raise UsageError(f"shapes must be at least 1, got {self.shapes}")
        if not 0 <= self.near < 1:
            raise UsageError(f"near must lie in [0, 1), got {self.near}")
        if self.max_tpot_s is not None and not self.max_tpot_s > 0:
            raise UsageError(f"the limit of seconds per token must be above 0, got {self.max_tpot_s}")
        if not self.solver_work >= 0:
            raise UsageError(f"solver-work must be 0 or more, got {self.solver_work}")
