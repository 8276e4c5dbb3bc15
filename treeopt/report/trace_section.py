"""Traces as findings of the page: what the drafter gets right, and what that is worth in tokens per step."""

from collections.abc import Iterator, Mapping

from treeopt.charts.acceptance_charts import acceptance_by_depth, acceptance_by_domain
from treeopt.charts.chart import Chart
from treeopt.charts.learning_chart import learning
from treeopt.charts.tau_chart import tau_by_nodes, tau_of
from treeopt.planning.learning_curve import learning_curves
from treeopt.report.page_parts import Finding
from treeopt.results.trace import describe, trace_blocks
from treeopt.results.words import describe_models, interval
from treeopt.searchers.static_trees.best_first import count_prefixes
from treeopt.traces.trace import CHAINS, Trace
from treeopt.tree import Tree
from treeopt.tree_files.paper_trees import EAGLE, MEDUSA, published_trees

NODES = 8  # of the tree that domains are compared with
CURVES = (4, 16)  # nodes of learning curves


def trace_finding(
    trace: Trace, source: str, *, replayed: Trace | None = None, chosen: Mapping[str, Tree] | None = None
) -> Finding:
    """Return a trace: acceptance by depth, and where its ranks determine acceptance tau, domains and learning curves.

    Args:
        trace: the trace.
        source: its file, with the checksum.
        replayed: the trace with drawn ranks that determine acceptance, if its own ranks do not.
        chosen: trees of plans, for the chart of tau.
    """
    charts = list(_trace_charts(trace, replayed or trace, chosen or {}))
    answers = tuple(_trace_answers(trace, replayed or trace))
    return Finding("trace", f"Trace: {describe_models(trace.meta)}", source, trace_blocks(trace), charts, answers)


def _trace_answers(trace: Trace, replayed: Trace) -> Iterator[str]:
    """Yield how often the best candidate is right, and what trees of one size commit, where ranks determine it."""
    shares = [row[0] for row in describe(trace)["top_1_2_4_8_by_depth"] if row[0] is not None]
    if shares:
        last = f", {shares[-1]:.0%} at depth {len(shares)}" if shares[1:] else ""
        yield f"The drafter's best candidate is right at {shares[0]:.0%} of positions at depth 1{last}."
    if not _replayable(trace):
        return
    chain = Tree.chain(min(trace.depth, NODES))
    tree = count_prefixes(replayed, nodes=NODES, depth=replayed.depth).tree(NODES, replayed.depth)
    shapes = [f"{interval(tau_of(chain, replayed))} with a chain of {chain.nodes}"]
    if not tree.is_chain:
        shapes.append(f"{interval(tau_of(tree, replayed))} with the best tree of {tree.nodes} nodes")
    yield f"Tokens per step, replayed: {', '.join(shapes)}."


def _replayable(trace: Trace) -> bool:
    """Return True if ranks, recorded or drawn, say what any tree gets accepted."""
    return trace.tree_kept is None and trace.meta.get("verification") not in CHAINS


def _trace_charts(trace: Trace, replayed: Trace, chosen: Mapping[str, Tree]) -> Iterator[Chart]:
    yield acceptance_by_depth(trace)
    if not _replayable(trace):
        return
    published = published_trees()
    named = {"Medusa's tree": published[MEDUSA], "EAGLE-1's tree": published[EAGLE]}
    yield tau_by_nodes(replayed, named=named, chosen=chosen)
    if trace.domain is not None and len(trace.domain_names) > 1:
        tree = count_prefixes(replayed, nodes=NODES, depth=replayed.depth).tree(NODES, replayed.depth)
        yield acceptance_by_domain(replayed, tree, name=f"Best tree of {tree.nodes} nodes")
    if trace.requests >= 4 * len(CURVES):
        yield learning(learning_curves(replayed, nodes=CURVES, depth=replayed.depth, seed=0))
