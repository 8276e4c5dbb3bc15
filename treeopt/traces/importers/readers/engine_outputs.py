"""Outputs of engines and their benchmarks, recognised by what they hold, whatever the file is called."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treeopt.errors import TraceError, UsageError
from treeopt.traces.importers.chain_counts import Chain
from treeopt.traces.importers.readers import benchmark_results, engine_logs, engine_responses, means_alone, step_records
from treeopt.traces.importers.readers.prometheus_counters import holds_counters, read_counters
from treeopt.traces.importers.readers.prometheus_text import holds_samples
from treeopt.traces.importers.source_file import cut_line, objects, parsed

# Kind of output -> the settings that it takes.
KINDS: Mapping[str, frozenset[str]] = {
    "counters": frozenset({"before", "model", "uneven", "steps"}),
    "responses": frozenset({"depth", "uneven"}),
    "log": frozenset(),
    "bench-serve": frozenset({"uneven", "requests", "steps"}),
    "printed": frozenset({"uneven", "requests", "steps"}),
    "llama-trace": frozenset({"depth"}),
    "openvino-steps": frozenset({"depth"}),
    "spec-bench": frozenset({"depth"}),
    "specdec-bench": frozenset({"depth", "requests", "steps"}),
}
# Kind of output in JSON -> keys of an object that holds it; the first kind counts where an object has several.
KEYS: Mapping[str, tuple[str, ...]] = {
    "bench-serve": (benchmark_results.SERVE,),
    "specdec-bench": (*benchmark_results.LENGTHS, benchmark_results.MARGINALS),
    "responses": (*engine_responses.HISTOGRAM, engine_responses.POOLED),
    "spec-bench": (step_records.LENGTHS,),
}
# Kind of output -> its name in words, where a file may hold several.
NAMED = {
    "counters": "an engine's counters",
    "responses": "histograms of responses",
    "log": "log lines of acceptance by position",
    "bench-serve": "results of `vllm bench serve`",
    "printed": "printed results of vLLM's benchmarks",
    "llama-trace": "LLAMA_TRACE lines",
    "spec-bench": "Spec-Bench's accept_lengths",
    "specdec-bench": "a histogram of ModelOpt's specdec_bench",
}
KNOWN = (
    "counters (Prometheus text or JSON of vLLM, LMDeploy, llama.cpp, TensorRT-LLM, TGI, MLC; LLM.get_metrics() of "
    "vLLM; AIPerf's server metrics), responses with histograms (SGLang, vLLM, TensorRT-LLM, AIPerf), log lines (vLLM, "
    "LMDeploy, llama.cpp, SGLang with --log-requests), LLAMA_TRACE lines, results of `vllm bench serve`, prints of "
    "vLLM's examples, OpenVINO's m_batch_sizes, Spec-Bench's accept_lengths, histograms of ModelOpt's specdec_bench"
)


@dataclass(frozen=True)
class Output:
    """The counts in an output of an engine.

    Attributes:
        chain: the chain.
        kind: a key of `KINDS`.
        engine: the engine that counted, where the output names it.
    """

    chain: Chain
    kind: str
    engine: str | None = None


def read_output(text: str, settings: Mapping[str, Any], *, before: str | None = None) -> Output:
    """Return the chain of an engine's output, recognised by its content.

    Args:
        text: the output.
        settings: names and values of the settings that were given; those that a kind does not take are refused.
        before: text of an earlier scrape of counters.

    Raises:
        TraceError: no engine's output, one that holds means alone, or one that contradicts itself.
        UsageError: a setting that does not apply to this kind of output.
    """
    if not text.strip():
        raise TraceError("it is empty")
    kind = kind_of(text)
    if kind is None and (lines := logged_lines(text)):
        return read_output(lines, settings, before=None if before is None else logged_lines(before) or before)
    if kind is None:
        raise TraceError(means_alone.refusal(text) or f"nothing in it is known; known are {KNOWN}")
    for name in settings:
        if name not in KINDS[kind]:
            raise UsageError(f"--{name} does not apply to {kind}, which the file holds")
    if kind == "counters":
        known = {name: settings[name] for name in ("model", "uneven") if name in settings}
        counters = read_counters(text, before=before, **known)
        return Output(counters.chain, kind, counters.engine)
    return Output(_chain(text, kind, settings.get("depth"), bool(settings.get("uneven"))), kind)


def kind_of(text: str) -> str | None:
    """Return the kind of output that a text is, a key of `KINDS`, or None.

    Raises:
        TraceError: it holds several kinds, or a line that was cut off among lines of JSON.

    >>> kind_of("slot update_slots: id  3 | task 0 | accepted  1/ 5 draft tokens")
    'llama-trace'
    """
    try:
        values = parsed(text)
    except TraceError:
        if cut_line(text):
            raise
        return _kind_of_text(text)
    return _kind_of_json(text, values)


def logged_lines(text: str) -> str:
    """Return the strings in a log of JSON lines, a line each, if they are an engine's output; empty otherwise.

    A string that another field of its record repeats is left out.

    >>> logged_lines('{"msg": "slot update_slots: id  3 | task 0 | accepted  1/ 5 draft tokens"}')[-14:]
    '5 draft tokens'
    """
    try:
        records = list(objects(text))
    except TraceError:
        return ""
    lines = "\n".join(value for record in records for value in _unrepeated(record))
    return lines if _kind_of_text(lines) else ""


def _unrepeated(record: Mapping[str, Any]) -> list[str]:
    """Return the strings of a record but those that are part of a string of another field."""
    values = list(dict.fromkeys(value for value in record.values() if isinstance(value, str)))
    longest = max(values, key=len, default="")
    return [value for value in values if value is longest or value.strip() not in longest]


def _kind_of_text(text: str) -> str | None:
    tests = {
        "llama-trace": step_records.holds_llama_trace,
        "printed": benchmark_results.holds_prints,
        "responses": engine_responses.holds_logged,
        "log": engine_logs.holds_lines,
        "counters": holds_counters,
    }
    kinds = [kind for kind, holds in tests.items() if holds(text)]
    if kinds[:1] == ["llama-trace"] and "log" in kinds and not engine_logs.holds_intervals(text):
        kinds.remove("log")  # llama.cpp sums up the same steps
    if len(kinds) > 1 and "counters" in kinds and not holds_samples(text):
        kinds.remove("counters")  # their names alone, as in a prompt
    return _only(kinds)


def _kind_of_json(text: str, values: Sequence[Any]) -> str | None:
    counted = holds_counters(text)
    if counted and len(values) == 1 and isinstance(values[0], dict):
        return "counters"
    kinds = ["counters"] if counted else []
    for record in objects(text, inside=engine_responses.WORD):
        kind = next((kind for kind, names in KEYS.items() if any(record.get(name) for name in names)), None)
        if kind is not None and kind not in kinds:
            kinds.append(kind)
    return _only(kinds) or ("openvino-steps" if step_records.openvino_steps(values) else None)


def _only(kinds: Sequence[str]) -> str | None:
    """Return the only kind, if there is one.

    Raises:
        TraceError: there are several, which may be of different runs.
    """
    if len(kinds) > 1:
        raise TraceError(f"it holds {' and '.join(NAMED[kind] for kind in kinds)}: keep one")
    return next(iter(kinds), None)


def _chain(text: str, kind: str, depth: int | None, uneven: bool) -> Chain:
    if kind == "responses":
        return engine_responses.read_responses(text, depth=depth, uneven=uneven)
    if kind == "bench-serve":
        return benchmark_results.serve_results(objects(text), uneven=uneven)
    if kind == "specdec-bench":
        return benchmark_results.specdec_results(objects(text), depth=depth)
    if kind == "spec-bench":
        return step_records.spec_bench_chain(objects(text), depth=depth)
    if kind == "openvino-steps":
        return step_records.openvino_chain(step_records.openvino_steps(parsed(text)), depth=depth)
    if kind == "llama-trace":
        return step_records.llama_trace(text, depth=depth)
    if kind == "log":
        return engine_logs.read_log(text)
    return benchmark_results.printed_results(text, uneven=uneven)
