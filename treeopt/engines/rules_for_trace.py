"""The rules that trees of a trace must keep for an engine: the engine's own, and those of the drafter's depth."""

from treeopt.constraints import Constraint, ContiguousRanks, DepthAtLeast, DepthAtMost
from treeopt.engines import ENGINE_RULES
from treeopt.errors import UsageError
from treeopt.storage.provenance import look
from treeopt.traces.trace import Trace


def engine_constraints(engine: str | None, trace: Trace) -> tuple[Constraint, ...]:
    """Return the rules of an engine for trees of this trace.

    A drafter with heads drafts no deeper than it has heads. llama.cpp drops drafts of `ngram-simple` that are shorter
    than the tokens that must match.

    A rank of Sequoia's acceptance vector is valid only where the ranks before it are drafted, too: such traces ask for
    contiguous ranks even without an engine.

    Args:
        engine: a key of `treeopt.engines.ENGINE_RULES`; None: no engine.
        trace: the trace that trees are chosen on.

    Raises:
        UsageError: no such engine.
    """
    if engine is not None and engine not in ENGINE_RULES:
        raise UsageError(f"engine must be one of {', '.join(ENGINE_RULES)}, got {engine!r}")
    if look(trace.meta, "imported", "format") == "sequoia-vector":
        return (ContiguousRanks(source="the vector's own"), *(() if engine is None else ENGINE_RULES[engine].rules))
    if engine is None:
        return ()
    heads = look(trace.meta, "drafter", "heads")
    deep = (DepthAtMost(heads, source="one head a depth"),) if type(heads) is int and heads < trace.depth else ()
    least = look(trace.meta, "drafter", "least") if engine == "llama.cpp" else None
    flat = (DepthAtLeast(least, source="common/ngram-map.cpp drops shorter drafts"),) if type(least) is int else ()
    return (*ENGINE_RULES[engine].rules, *deep, *flat)
