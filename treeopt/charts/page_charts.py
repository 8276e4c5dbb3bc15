"""Charts of traces and plans as pages and notebooks show them: beside one another, with the chosen trees."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from treeopt.charts.latency_charts import throughput_and_latency
from treeopt.charts.speedup_charts import speedups
from treeopt.charts.trace_charts import acceptance_by_depth, acceptance_by_domain, learning, tau_by_nodes
from treeopt.charts.tree_chart import tree_picture
from treeopt.errors import TraceError, TreeoptError
from treeopt.planning.learning_curve import learning_curves
from treeopt.plans.plan import Plan
from treeopt.replay.dynamic_tree import first_tree
from treeopt.replay.sampled_rules import with_drawn_ranks
from treeopt.replay.static_tree import covers, deepest, visit
from treeopt.results.predictions import plan_of
from treeopt.results.trace import NODES, replayable
from treeopt.searchers.static_trees.best_first import count_prefixes
from treeopt.traces.trace import Trace
from treeopt.tree import Tree
from treeopt.tree_files.paper_trees import EAGLE, MEDUSA, published_trees

if TYPE_CHECKING:
    import altair as alt

CURVES = (4, 16)  # nodes of learning curves
PICTURES = 3  # trees of a plan that are drawn


def tau(trace: Trace) -> "alt.LayerChart | None":
    """Return tau by tree size; None where the trace's rule does not determine it for all trees."""
    return tau_by_nodes(with_drawn_ranks(trace, 0)) if replayable(trace) else None


def domains(trace: Trace) -> "alt.LayerChart | None":
    """Return the acceptance of a chain by domain; None where the trace does not say."""
    if trace.domain is None or not replayable(trace):
        return None
    chain = Tree.chain(trace.depth)
    return acceptance_by_domain(with_drawn_ranks(trace, 0), chain, name=f"chain of {trace.depth}")


def trace_charts(trace: Trace, *, chosen: Mapping[str, Tree] | None = None, **_: Any) -> "Iterator[alt.LayerChart]":
    """Yield the charts of a trace beside the trees that plans chose.

    Args:
        trace: the trace.
        chosen: trees of plans, by name.
    """
    yield acceptance_by_depth(trace)
    if not replayable(trace):
        return
    trace = with_drawn_ranks(trace, 0)
    published = published_trees()
    named = {"Medusa's tree": published[MEDUSA], "EAGLE-1's tree": published[EAGLE]}
    yield tau_by_nodes(trace, named=named, chosen=chosen)
    if trace.domain is not None and len(trace.domain_names) > 1:
        tree = count_prefixes(trace, nodes=NODES, depth=trace.depth).tree(NODES, trace.depth)
        yield acceptance_by_domain(trace, tree, name=f"Best tree of {tree.nodes} nodes")
    if trace.requests >= 4 * len(CURVES):
        yield learning(learning_curves(trace, nodes=CURVES, depth=trace.depth, seed=0))


def plan_charts(plan: Plan, *, trace: Trace | None = None, **_: Any) -> "list[alt.LayerChart]":
    """Return the charts of a plan, with its chosen trees.

    Args:
        plan: the plan.
        trace: the trace that it was made from, which sizes the nodes of its trees.
    """
    pictures = [
        tree_picture(tree, accepted=accepted_shares(tree, trace), title=f"Chosen tree, batch {batches}")
        for tree, batches in _chosen(plan).items()
    ]
    return [speedups(plan), throughput_and_latency(plan), *pictures, *_samples(plan, trace)]


def predicted_speedups(record: Mapping[str, Any]) -> "alt.LayerChart":
    """Return the speedups of the plan of predictions."""
    return speedups(plan_of(record))


def predicted_latencies(record: Mapping[str, Any]) -> "alt.LayerChart":
    """Return the latencies of the plan of predictions."""
    return throughput_and_latency(plan_of(record))


def _chosen(plan: Plan) -> dict[Tree, str]:
    """Return the chosen static trees with their batch sizes, the first few."""
    found: dict[Tree, str] = {}
    for entry in plan.entries:
        tree = entry.choice.tree
        if tree is not None and tree.nodes:
            found[tree] = f"{found[tree]}, {entry.batch}" if tree in found else str(entry.batch)
    return dict(list(found.items())[:PICTURES])


def _samples(plan: Plan, trace: Trace | None) -> "list[alt.LayerChart]":
    """Return samples of the dynamic trees that a plan chose, as far as the trace has candidates."""
    samples = []
    for entry in plan.entries:
        policy = None if entry.choice.grown is None else entry.choice.grown.policy
        if policy is None or trace is None or trace.candidates is None:
            continue
        try:
            tree, anchor = first_tree(policy, trace)
        except TraceError:  # the trace lacks candidates there
            continue
        made = f"A dynamic tree ({entry.choice.name}) differs from step to step. This one is of position {anchor}."
        samples.append(tree_picture(tree, sample=made, title=f"Dynamic tree, batch {entry.batch}"))
    return samples


def accepted_shares(tree: Tree, trace: Trace | None) -> list[float] | None:
    """Return the share of a walk's steps that accept each node, float (nodes,); None if the trace does not say."""
    if trace is None or not covers(trace, tree):
        return None
    try:
        walk = visit(tree, trace)
    except TreeoptError:
        return None
    reached = deepest(tree, trace)[walk.anchors]
    shares = np.bincount(reached[reached >= 0], minlength=tree.nodes).astype(float)
    for node in reversed(range(tree.nodes)):
        if tree.parents[node] >= 0:
            shares[tree.parents[node]] += shares[node]
    return [float(share) for share in shares / len(walk.anchors)]
