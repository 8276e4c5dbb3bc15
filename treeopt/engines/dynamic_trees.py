"""Dynamic trees of EAGLE-2 in engines: three settings (levels, width, size), which each engine counts its own way.

An engine drafts `depth` levels, continues the `width` most probable nodes of each level by `width` candidates, and
verifies the `nodes` most probable of all drafted nodes: treeopt's `DynamicTree` with as many children as its beam.
Here nodes never count the root; `DynamicTrees.settings` alone converts to the engine's way of counting.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from treeopt.constraints import branching, pool
from treeopt.engines.export import Fit, Nearest, batch_sizes, coverage_note, origin_note
from treeopt.errors import EngineError, counted
from treeopt.plans import PlanEntry
from treeopt.policies import DynamicTree, Policy


@dataclass(frozen=True)
class Triple:
    """The three settings of a dynamic tree.

    Attributes:
        depth: levels drafted.
        width: nodes continued per level, and candidates of each.
        nodes: nodes verified, without the root.
    """

    depth: int
    width: int
    nodes: int


@dataclass(frozen=True)
class DynamicTrees:
    """The convention by which one engine takes a dynamic tree.

    Attributes:
        engine: name and version, for messages.
        names: names of its settings for levels, width and size.
        counts_root: True if its size counts the root.
        bound: most nodes: all drafted candidates ("pool"), or `width` per level ("levels").
        fills_levels: True if it refuses fewer nodes than levels; any engine does so at width 1, a chain.
        one_size: why a launch has one dynamic tree for all batch sizes.
        source: where its bound stands.
        requests: most requests in flight; None: any number.
    """

    engine: str
    names: tuple[str, str, str]
    counts_root: bool
    bound: Literal["pool", "levels"]
    fills_levels: bool
    one_size: str
    source: str
    requests: int | None = None

    def settings(self, triple: Triple) -> dict[str, int]:
        """Return the engine's settings by name.

        >>> from treeopt.engines import ENGINES
        >>> list(ENGINES["sglang"].trees.settings(Triple(depth=5, width=4, nodes=15)).values())
        [5, 4, 16]
        >>> list(ENGINES["openvino"].trees.settings(Triple(depth=5, width=4, nodes=15)).values())
        [5, 4, 15]
        """
        values = (triple.depth, triple.width, triple.nodes + self.counts_root)
        return dict(zip(self.names, values, strict=True))

    def most(self, depth: int, width: int) -> int:
        """Return the most nodes that the engine verifies at this depth and width."""
        return pool(depth=depth, width=width) if self.bound == "pool" else depth * width

    def refusal(self, triple: Triple) -> str | None:
        """Return why the engine cannot run these settings, None if it can.

        >>> from treeopt.engines import ENGINES
        >>> ENGINES["sglang"].trees.refusal(Triple(depth=2, width=2, nodes=7))[:50]
        '7 nodes, but depth 2 and width 2 offer at most 6 ('
        """
        most = self.most(triple.depth, triple.width)
        if triple.nodes > most:
            return (
                f"{triple.nodes} nodes, but depth {triple.depth} and width {triple.width} offer at most {most} "
                f"({self.source})"
            )
        if triple.nodes < triple.depth and (self.fills_levels or triple.width == 1):
            return f"{triple.nodes} nodes are fewer than {triple.depth} levels ({self.source})"
        return None

    def cannot_run(self, policy: Policy, batch: int) -> str | None:
        """Return why the engine cannot run a policy at a batch size, None if it can."""
        if not isinstance(policy, DynamicTree):
            return f"{self.engine} has settings for {', '.join(self.names[:2])} and {self.names[2]} alone"
        reason = _beyond_three_settings(policy) or self.refusal(Triple(policy.depth, policy.beam, policy.nodes))
        return reason or self.too_many(batch)

    def too_many(self, batch: int) -> str | None:
        """Return why the engine cannot run dynamic trees at a batch size, None if it can.

        >>> from treeopt.engines import ENGINES
        >>> ENGINES["openvino"].trees.too_many(4)
        'OpenVINO GenAI 2026.4.1 runs dynamic trees with 1 request in flight'
        """
        if self.requests is None or batch <= self.requests:
            return None
        return f"{self.engine} runs dynamic trees with {counted(self.requests, 'request')} in flight"

    def nearest(self, triple: Triple) -> Triple:
        """Return the settings that the engine can run and that differ least: fewer levels or fewer nodes.

        >>> from treeopt.engines import ENGINES
        >>> ENGINES["sglang"].trees.nearest(Triple(depth=2, width=2, nodes=7))
        Triple(depth=2, width=2, nodes=6)
        """
        shallow = self.fills_levels or triple.width == 1
        depth = min(triple.depth, triple.nodes) if shallow else triple.depth
        return Triple(depth, triple.width, min(triple.nodes, self.most(depth, triple.width)))

    def text(self, triple: Triple) -> str:
        """Return the settings for a message.

        >>> from treeopt.engines import ENGINES
        >>> ENGINES["openvino"].trees.text(Triple(depth=2, width=2, nodes=6))
        'tree_depth 2, branching_factor 2, num_assistant_tokens 6'
        """
        return ", ".join(f"{name} {value}" for name, value in self.settings(triple).items())


def asked_for(entries: Sequence[PlanEntry], nearest: Nearest | None) -> bool:
    """Return True if a dynamic tree is to be exported: a policy that was chosen, or the replacement of a tree."""
    if nearest == "chain":
        return False
    trees = [entry.choice.tree for entry in entries if nearest == "triple"]
    branching = (tree is not None and (tree.depth < tree.nodes or any(tree.ranks)) for tree in trees)
    return any(branching) or any(entry.choice.grown for entry in entries)


def dynamic_tree(
    entries: Sequence[PlanEntry], trees: DynamicTrees, *, nearest: Nearest | None
) -> tuple[Triple, list[str]]:
    """Return the settings that run the planned policy, or replace the planned tree, and notes.

    Args:
        entries: planned entries; only one can be exported.
        trees: the engine's convention.
        nearest: "triple" allows a replacement, which the plan does not predict.

    Raises:
        EngineError: several batch sizes, a policy that three settings do not express, or more nodes than the engine
            verifies; names the nearest that it can run.
    """
    if len(entries) > 1:
        raise EngineError(
            f"{trees.engine} cannot change a dynamic tree by batch size, because {trees.one_size}; "
            f"nearest: one batch size of {batch_sizes(entries)}, or `chain`"
        )
    entry = entries[0]
    return _policy(entry, trees, nearest) if entry.choice.grown else _replacement(entry, trees)


def describe(entry: PlanEntry, trees: DynamicTrees) -> list[str]:
    """Return the dynamic tree as large as the planned one, for an error message; empty if the engine has none."""
    tree = entry.choice.tree
    if tree is None or tree.nodes == 0:
        return []
    triple = Triple(tree.depth, branching(tree), tree.nodes)
    return [] if trees.refusal(triple) else [f"a dynamic tree (`triple`), not predicted: {trees.text(triple)}"]


def _policy(entry: PlanEntry, trees: DynamicTrees, nearest: Nearest | None) -> tuple[Triple, list[str]]:
    grown = entry.choice.grown
    assert grown is not None
    policy, named = grown.policy, f"policy {grown.kind} (batch {entry.batch})"
    if not isinstance(policy, DynamicTree):
        offered = f"{', '.join(trees.names[:2])} and {trees.names[2]}"
        raise EngineError(
            f"{trees.engine} cannot run {named}: it offers only {offered}; nearest: policy eagle2, or `chain`"
        )
    triple = Triple(policy.depth, policy.beam, policy.nodes)
    if (reason := trees.too_many(entry.batch)) is not None:
        raise EngineError(f"{named}: {reason}; nearest: a plan of batch {trees.requests}, or `chain`")
    reason = _beyond_three_settings(policy) or trees.refusal(triple)
    planned = [f"planned for batch {entry.batch} only"]
    if reason is None:
        return triple, planned
    closest = trees.nearest(triple)
    if nearest != "triple":
        raise EngineError(
            f"{trees.engine} cannot run {named}: {reason}; nearest: {trees.text(closest)} (`triple`), not predicted, "
            "or `chain`"
        )
    replaced = f"batch {entry.batch}: {named} was replaced by {trees.text(closest)}, because of {reason}"
    return closest, [f"{replaced}, so the plan's prediction no longer holds", *planned]


def _beyond_three_settings(policy: DynamicTree) -> str | None:
    """Return the setting that no engine offers, None if depth, width and nodes are all."""
    extra = {
        "min_probability": policy.min_probability,
        "calibration": policy.calibration,
        f"width {policy.children} unlike beam {policy.beam}": policy.children != policy.beam,
    }
    names = [name for name, value in extra.items() if value]
    return f"its {' and '.join(names)}, beyond depth, beam and nodes" if names else None


def _replacement(entry: PlanEntry, trees: DynamicTrees) -> tuple[Triple, list[str]]:
    tree = entry.choice.tree
    assert tree is not None
    triple = Triple(tree.depth, branching(tree), tree.nodes)
    reason = trees.refusal(triple)
    if reason is not None:
        closest = trees.text(trees.nearest(triple))
        raise EngineError(
            f"{trees.engine} has no dynamic tree like tree {tree.id} (batch {entry.batch}): {reason}; nearest: a plan "
            f"of policy eagle2 with {closest}, or `chain`"
        )
    replaced = (
        f"batch {entry.batch}: tree {tree.id} was replaced by a dynamic tree of the same size, so "
        "the plan's prediction no longer holds"
    )
    whole = Fit(entry.batch, tree)
    return triple, [replaced, coverage_note([whole]), origin_note([whole])]
