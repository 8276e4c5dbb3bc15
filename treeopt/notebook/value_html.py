"""HTML and plain text of each kind of value: finds its summary."""

from typing import Any

from simulate.profiles.profile import Profile
from treeopt.api.result_record import Record, Validation
from treeopt.comparison.compare_drafters import Comparison
from treeopt.notebook.html_summary import Summary, summary_html, summary_text
from treeopt.notebook.record_summaries import record_summary, validation_summary
from treeopt.notebook.value_summaries import plan_summary, profile_summary, trace_summary, tree_summary
from treeopt.plans.plan import Plan
from treeopt.results.comparison import comparison_record
from treeopt.traces.trace import Trace
from treeopt.tree import Tree


def html_of(value: Any) -> str:
    """Return the summary of a value as HTML."""
    return summary_html(_summary(value))


def text_of(value: Any) -> str:
    """Return the summary of a value as lines of text."""
    return summary_text(_summary(value))


def _summary(value: Any) -> Summary:
    if isinstance(value, Tree):
        return tree_summary(value)
    if isinstance(value, Trace):
        return trace_summary(value)
    if isinstance(value, Plan):
        return plan_summary(value)
    if isinstance(value, Profile):
        return profile_summary(value)
    if isinstance(value, Validation):
        return validation_summary(value)
    return record_summary(Record(comparison_record(value)) if isinstance(value, Comparison) else value)
