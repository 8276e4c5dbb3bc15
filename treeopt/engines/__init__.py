"""Engines: the trees that each runs, its export of a plan, and the driver that runs it.

* `engine`: an engine as one value, and an export under way.
* `llama_cpp`, `openai`, `openvino`, `sglang`, `vllm`: one engine each, `ENTRY`: its rules, its export, its driver.
* `lmdeploy`, `medusa`, `tensorrt_llm`, `transformers`: engines that treeopt does not run.
* `export`: what exports share: their result, the planned entries, the replacement of a tree that breaks a rule.
* `dynamic_trees`: what exporters of dynamic trees share: the three settings, and how each engine counts them.
* `driver`: the interface of every driver, its settings, requests, drafts and steps, and the record of its models.
* `connections`: processes of engines, and clients of their servers.

`treeopt.constraints.broken` returns the rule that a tree breaks.
"""

from typing import Any

from treeopt.constraints import Constraint, contiguous_ranks, depth_at_most
from treeopt.engines.engine import Engine
from treeopt.errors import UsageError
from treeopt.registry import Registry
from treeopt.storage.provenance import look
from treeopt.traces.trace import Trace

# Engines that treeopt no longer knows -> what to use instead.
GONE = {
    "eagle-1": "treeopt, whose own loop runs EAGLE",
    "hydra": "treeopt, whose own loop runs Hydra",
    "mlc": "vllm or llama.cpp",
    "specinfer": "treeopt",
    "tensorrt-llm-eagle": "tensorrt-llm",
    "tensorrt-llm-medusa": "tensorrt-llm",
    "tgi": "vllm",
    "umbrella": "sequoia, which has the same rule",
    "vllm-0.20": "vllm, which runs chains since 0.21",
}


class Engines(Registry[Engine]):
    """The engines by name."""

    def __getitem__(self, name: str) -> Engine:
        """Return an engine.

        Raises:
            UsageError: no engine of this name; says what to use.
        """
        if name in GONE and name not in self:
            raise UsageError(replacement(name))
        return super().__getitem__(name)

    def limiting(self) -> tuple[str, ...]:
        """Return the engines whose rules on trees are known."""
        return tuple(name for name, engine in self.items() if engine.rules is not None)

    def exporting(self) -> tuple[str, ...]:
        """Return the engines with an export."""
        return tuple(name for name, engine in self.items() if engine.write is not None)

    def driven(self) -> tuple[str, ...]:
        """Return the engines that treeopt can run."""
        return tuple(name for name, engine in self.items() if engine.driver)

    def running(self, kind: Any) -> tuple[str, ...]:
        """Return the engines with an export that run a kind of drafter.

        >>> ENGINES.running("medusa"), ENGINES.running("eagle3")
        (('medusa',), ('llama.cpp', 'lmdeploy', 'openvino', 'sglang', 'tensorrt-llm', 'vllm'))
        """
        return tuple(name for name in self.exporting() if self[name].fitting(kind))


# Engines without an export: treeopt's own loop, and a growmap of Sequoia's code, in which the children of a node are
# its first samples.
ENTRIES = (
    Engine(name="treeopt", title="treeopt's own loop", rules=()),
    Engine(name="sequoia", title="Sequoia 0ff3ff7", rules=(contiguous_ranks(source="`branches` of a growmap"),)),
)
ENGINES = Engines("engine", "treeopt.engines", group="treeopt.engines")


def replacement(name: str) -> str:
    """Return what to use in place of an engine that treeopt no longer knows."""
    return f"engine {name} is no longer known: use {GONE[name]}"


def engine_rules(engine: str | None, trace: Trace) -> tuple[Constraint, ...]:
    """Return the rules that trees of a trace must keep for an engine.

    A drafter with heads drafts no deeper than it has heads.

    Args:
        engine: name of the engine; None: no engine.
        trace: the trace that trees are chosen on.

    Raises:
        UsageError: no such engine, or one whose rules nobody knows.
    """
    if engine is None:
        return ()
    entry = ENGINES[engine]
    if entry.rules is None:
        raise UsageError(f"{engine} has no rules on trees: leave the engine out, or name the one that it runs")
    heads = look(trace.meta, "drafter", "heads")
    deep = (depth_at_most(heads, source="one head a depth"),) if type(heads) is int and heads < trace.depth else ()
    return (*entry.rules, *deep, *entry.rules_of_trace(trace))
