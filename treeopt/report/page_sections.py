"""Results as findings of the page: tables and charts of each kind of record. Reads no files."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from treeopt.charts.agreement_charts import agreement
from treeopt.charts.chart import Chart
from treeopt.charts.latency_charts import scenario_latency, throughput_and_latency
from treeopt.charts.server_charts import carried_rates, latencies, load_over_time
from treeopt.charts.speedup_charts import contests, scenario_speedups, speedups
from treeopt.charts.tree_chart import tree_picture
from treeopt.errors import TraceError, TreeoptError, UsageError
from treeopt.plans.plan import Plan
from treeopt.plans.plan_json import from_json
from treeopt.replay.sample_tree import first_tree
from treeopt.replay.static_tree import covers, deepest, visit
from treeopt.report.damaged_field import last_field
from treeopt.report.measured_blocks import engine_blocks, profile_blocks
from treeopt.report.page_parts import Finding
from treeopt.results.blocks import Blocks, Line
from treeopt.results.comparison import SCHEMA as COMPARISON
from treeopt.results.comparison import comparison_blocks
from treeopt.results.plan import plan_blocks
from treeopt.results.plan_answers import describe_choice
from treeopt.results.run import capacity_blocks, run_blocks, serving_blocks
from treeopt.results.validation import validation_blocks
from treeopt.results.whatif import scenario_blocks
from treeopt.results.words import describe_models, interval
from treeopt.statistics.clustered_estimate import Estimate
from treeopt.storage.provenance import look
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

PROFILE, PREDICTIONS = "treeopt.profile/2", "treeopt.predictions/1"
PICTURES = 3  # trees of a plan that are drawn
MODELS = ("profile", "validation")  # questions whose titles name the models

# Kind of result -> the command that writes it, where that has another name.
WRITERS = {
    "plan": "search", "validation": "validate", "predictions": "validate", "comparison": "compare",
    "run": "simulate", "serving": "simulate", "capacity": "simulate",
}  # fmt: skip
Draw = Callable[[Mapping[str, Any]], Chart | None]
# Schema of a record -> question, title, blocks and charts.
RECORDS: dict[str, tuple[str, str, Callable[[Mapping[str, Any]], Blocks], tuple[Draw, ...]]] = {
    COMPARISON: ("comparison", "Drafters side by side", comparison_blocks, (contests,)),
    "treeopt.run/1": ("run", "Run of all requests", run_blocks, (latencies,)),
    "treeopt.serving/1": ("serving", "Server", serving_blocks, (load_over_time, latencies)),
    "treeopt.capacity/1": ("capacity", "Capacity of a server", capacity_blocks, (carried_rates,)),
    "treeopt.validation/2": ("validation", "Predicted and measured", validation_blocks, (agreement,)),
    "treeopt.whatif/1": (
        "whatif",
        "Devices that were not measured",
        scenario_blocks,
        (scenario_speedups, scenario_latency),
    ),
    PROFILE: ("profile", "Step times", profile_blocks, ()),
}


def plan_finding(
    plan: Plan,
    source: str,
    *,
    title: str = "",
    file: str = "plan.json",
    checks: Mapping[int, str] | None = None,
    measured: Mapping[int, Estimate] | None = None,
    traces: Sequence[Trace] = (),
) -> Finding:
    """Return a plan, with its chosen trees drawn.

    Args:
        plan: the plan.
        source: its file, with the checksum.
        title: its title; default the batch sizes and the models.
        file: the name of its file in the command to run next.
        checks: live checks of its choices in words, by batch size.
        measured: the speedups that they measured.
        traces: traces among the results; the one that the plan was made from sizes the nodes of its trees.
    """
    sizes = ", ".join(str(entry.batch) for entry in plan.entries)
    own = next((trace for trace in traces if same_texts(trace.meta, plan.meta.get("trace"))), None)
    pictures = [
        tree_picture(tree, accepted=accepted_shares(tree, own), title=f"Chosen tree, batch {batches}")
        for tree, batches in _chosen(plan).items()
    ]
    pictures += _samples(plan, own)
    return Finding(
        "plan",
        title or _named(f"Plan for batch {sizes}", plan.meta.get("trace")),
        source,
        plan_blocks(plan, checks=checks, file=file),
        [speedups(plan), throughput_and_latency(plan), *pictures],
        plan_answers(plan, measured or {}),
    )


def _named(title: str, meta: Any) -> str:
    """Return a title with the models, if they are recorded: several results of a kind stand side by side."""
    known = any(look(meta, key) is not None for key in ("target", "drafter", "imported", "engine"))
    return f"{title}: {describe_models(meta)}" if known else title


def plan_answers(plan: Plan, measured: Mapping[int, Estimate]) -> tuple[str, ...]:
    """Return the answer for each batch size, with the speedup that a live run measured."""
    answers = []
    for entry in plan.entries:
        choice = entry.choice
        if choice.plain:
            answers.append(f"Batch {entry.batch}: do not speculate.")
            continue
        checked = f", checked: {measured[entry.batch].value:.2f}" if entry.batch in measured else ""
        answers.append(f"Batch {entry.batch}: {describe_choice(choice)}, {interval(choice.speedup)} times{checked}.")
    return tuple(answers)


def _chosen(plan: Plan) -> dict[Tree, str]:
    """Return the chosen static trees with their batch sizes, the first few."""
    found: dict[Tree, str] = {}
    for entry in plan.entries:
        tree = entry.choice.tree
        if tree is not None and tree.nodes:
            found[tree] = f"{found[tree]}, {entry.batch}" if tree in found else str(entry.batch)
    return dict(list(found.items())[:PICTURES])


def _samples(plan: Plan, trace: Trace | None) -> list[Chart]:
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


def same_texts(meta: Mapping[str, Any], other: Any) -> bool:
    """Return True if two descriptions of traces name the same texts and drafter."""
    keys = ("text_sha256", "drafter")
    return isinstance(other, Mapping) and "text_sha256" in meta and all(meta.get(k) == other.get(k) for k in keys)


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


def predictions_finding(record: Mapping[str, Any], source: str) -> Finding:
    """Return the plan that predictions were written for before measuring, with their hash.

    Raises:
        UsageError: the record lacks a field.
    """

    def made(record: Mapping[str, Any]) -> Finding:
        plan = from_json(json.dumps(record["plan"]))
        found = plan_finding(plan, source, title=_named("Predictions", plan.meta.get("trace")))
        blocks = (block for block in found.blocks if not (isinstance(block, Line) and block.kind == "next"))
        digest = Line("condition", f"Written before measuring: sha256 {str(record['sha256'])[:16]}.")
        return Finding("predictions", found.title, source, (*blocks, digest), found.charts[:2], found.answers)

    return _checked(made, record, "treeopt validate")


def record_finding(record: Mapping[str, Any], source: str, *, charts: Sequence[Chart] = ()) -> Finding:
    """Return the finding of a record of one of the schemas in `RECORDS`.

    Args:
        record: the record.
        source: its file, with the checksum.
        charts: further charts, which need more than the record.

    Raises:
        UsageError: the record lacks a field.
    """
    question, title, blocks, draws = RECORDS[record["schema"]]

    def made(record: Mapping[str, Any]) -> Finding:
        drawn = (draw(record) for draw in draws)
        named = _named(title, record["meta"]) if question in MODELS else title
        return Finding(
            question, named, source, blocks(record), [*(chart for chart in drawn if chart is not None), *charts]
        )

    return _checked(made, record, f"treeopt {WRITERS.get(question, question)}")


def engines_finding(checks: Sequence[Mapping[str, Any]], source: str) -> Finding:
    """Return acceptance checks of engines.

    Raises:
        UsageError: a check lacks a field.
    """

    def made(checks: Sequence[Mapping[str, Any]]) -> Finding:
        return Finding("acceptance", "Engines against replay", source, engine_blocks(checks))

    return _checked(made, checks, "make engines")


def _checked(make: Callable[[Any], Finding], record: Any, command: str) -> Finding:
    """Return a finding, or raise `UsageError` in place of Python's errors for a record that its command did not write.

    Args:
        make: makes the finding of the record.
        record: the record.
        command: what writes such records.
    """
    try:
        return make(record)
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError, ArithmeticError) as error:
        place = last_field(make, record) or "a field"
        missing = isinstance(error, KeyError) and place.rpartition(".")[2] == error.args[0]
        reason = f"{place} {'is missing' if missing else 'does not hold what belongs there'}"
        raise UsageError(f"no whole result of `{command}`: {reason}; run it again") from error
