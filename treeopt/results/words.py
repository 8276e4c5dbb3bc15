"""Words that results share: values with intervals, trees, provenance, the command that writes a plan for an engine."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from treeopt.engines import ENGINES
from treeopt.results.tables_and_numbers import ranged
from treeopt.statistics import Estimate
from treeopt.storage.provenance import drafter_name, from_figure, look, target_name

CLUSTERED = "clustered by request, or by domain where that is wider"


def replayed_on(trace: Any, search: Any) -> str:
    """Return which requests a prediction rests on, from the provenance of the trace and of the search, without a stop.

    >>> replayed_on({}, {"requests_judged_on": 40, "requests_chosen_on": 60, "seed": 0})
    'Predictions: by replay on 40 requests held out, trees chosen on 60 others (seed 0)'
    """
    if from_figure(trace):
        return "Predictions: by replay of texts made up from the figure of acceptance"
    judged, chosen, seed = (shown(look(search, key)) for key in ("requests_judged_on", "requests_chosen_on", "seed"))
    return f"Predictions: by replay on {judged} requests held out, trees chosen on {chosen} others (seed {seed})"


def other_model(trace: Any) -> list[str]:
    """Return that acceptance was recorded with another target than the one asked for, if both have names.

    >>> other_model({"target": {"name": "stdlib-llama"}, "asked_for": "70b"})
    ['Acceptance was recorded with stdlib-llama; asked for 70b: that of another target differs.']
    """
    recorded, asked = target_name(trace), look(trace, "asked_for")
    if not recorded or not asked or recorded.rpartition("/")[2] == str(asked).rpartition("/")[2]:
        return []
    return [f"Acceptance was recorded with {recorded}; asked for {asked}: that of another target differs."]


def never_ran(engine: Any) -> list[str]:
    """Return that an engine never ran here, for the answers about it; empty for other engines, and without one.

    >>> never_ran("vllm"), never_ran("lmdeploy")[0][:36]
    ([], 'LMDeploy 0.18.0 never ran in treeopt')
    """
    if engine not in ENGINES or not ENGINES[engine].never_ran:
        return []
    title = ENGINES[engine].title
    return [f"{title} never ran in treeopt's tests: its rules were read in its code, and no time was measured."]


def interval(estimate: Estimate, digits: int = 2) -> str:
    """Return a value and its interval.

    >>> interval(Estimate(1.5, 1.25, 1.75))
    '1.50 [1.25, 1.75]'
    """
    return ranged(estimate, digits).text


def unsure(ratio: Estimate | Mapping[str, float]) -> str:
    """Return what is said of a ratio whose interval contains 1; records hold mappings.

    >>> unsure(Estimate(1.0, 0.9, 1.1)), unsure({"value": 1.15, "low": 1.1, "high": 1.2})
    (', within the error', '')
    """
    low, high = (ratio.low, ratio.high) if isinstance(ratio, Estimate) else (ratio["low"], ratio["high"])
    return ", within the error" if low <= 1 <= high else ""


def near_limit(tpot_s: float, speedup: Mapping[str, float], limit_s: float | None) -> str:
    """Return what is said of a time per token whose error, which is that of its speedup, reaches beyond a limit.

    >>> near_limit(0.9, {"value": 1.5, "low": 1.2}, 1.0), near_limit(0.9, {"value": 1.5, "low": 1.4}, 1.0)
    (', within the error of the limit', '')
    """
    beyond = limit_s is not None and tpot_s * speedup["value"] > limit_s * speedup["low"]
    return ", within the error of the limit" if beyond else ""


def shown(value: Any) -> str:
    """Return the text of a value; `?` if it is not recorded."""
    return "?" if value is None else str(value)


def shape_words(nodes: int, depth: int) -> str:
    """Return a static tree in words.

    >>> shape_words(3, 3), shape_words(5, 2)
    ('chain of 3', 'tree of 5 nodes')
    """
    return f"chain of {nodes}" if nodes == depth else f"tree of {nodes} nodes"


def paths_words(paths: Sequence[Sequence[int]]) -> str:
    """Return the static tree of a record's rank paths in words.

    >>> paths_words([[0], [0, 0]]), paths_words([[0], [1]])
    ('chain of 2', 'tree of 2 nodes')
    """
    return shape_words(len(paths), max(map(len, paths), default=0))


def with_shape(name: str, paths: Sequence[Sequence[int]]) -> str:
    """Return the name of a static tree with its shape, unless the name says it.

    >>> with_shape("chosen tree", [[0], [0, 0]]), with_shape("best tree of 2", [[0], [1]])
    ('chosen tree (chain of 2)', 'best tree of 2')
    """
    shape = paths_words(paths)
    return name if shape.removesuffix(" nodes") in name else f"{name} ({shape})"


def describe_models(meta: Any) -> str:
    """Describe target and drafter of a trace or profile, or the file that a trace was imported from."""
    kind, heads = look(meta, "drafter", "kind"), look(meta, "drafter", "heads")
    if kind == "language-model":
        drafter = "a language model as drafter"  # its `heads` are the levels that it drafts
    else:
        drafter = f"{shown(kind)} as drafter" if heads is None else f"{heads} {shown(kind)} heads"
    if (name := drafter_name(meta)) is not None:
        drafter = f"{name} ({drafter.removesuffix(' as drafter')}) as drafter"
    source, engine = look(meta, "imported"), look(meta, "imported", "engine")
    if source is not None and look(meta, "target") is None:
        file_format = f"{shown(look(source, 'format'))}{'' if engine is None else f' of {engine}'}"
        if figure := from_figure(meta):
            return f"made up from {figure}"
        return f"imported: {file_format}, {shown(look(source, 'file'))}{'' if kind is None else f', {drafter}'}"
    if look(meta, "engine") is not None:
        return _describe_engine(meta)
    target = [shown(target_name(meta)), shown(look(meta, "target", "dtype"))]
    target += [str(bits) for bits in (look(meta, "target", "quantization"),) if bits is not None]
    return f"target {' '.join(target)}, {drafter}"


def _describe_engine(meta: Any) -> str:
    """Describe the models that an inference engine ran, as far as they are recorded.

    >>> _describe_engine({"target": {"name": "llama"}, "engine": {"name": "vllm", "version": "0.32.0"}})
    'target llama, drafter not recorded, vllm 0.32.0'
    """
    drafter = look(meta, "engine_drafter", "name") or look(meta, "engine", "method")
    words = [shown(look(meta, "engine", "name")), look(meta, "engine", "version")]
    version = " ".join(str(word) for word in words if word is not None)
    return f"target {shown(target_name(meta))}, drafter {drafter or 'not recorded'}, {version}"


def describe_rule(meta: Any) -> str:
    """Describe how the tokens of a trace were chosen.

    >>> describe_rule({"verification": "greedy", "temperature": 0.0}), describe_rule({})
    ('greedy, temperature 0.0', 'rule and temperature not recorded')
    """
    rule, temperature = look(meta, "verification"), look(meta, "temperature")
    if rule is None and temperature is None:
        return "rule and temperature not recorded"
    return f"{shown(rule)}, temperature {shown(temperature)}"


def device_words(meta: Any) -> str:
    """Return the device of a measurement; files record `cpu, 1 threads`.

    >>> device_words({"device": "cpu, 1 threads"}), device_words({"device": "2 x cpu, 2 threads"})
    ('cpu, 1 thread', '2 x cpu, 2 threads')
    """
    return re.sub(r"\b1 threads\b", "1 thread", shown(look(meta, "device")))


def describe_measurement(meta: Any) -> str:
    """Describe models, device and day of a profile or validation, or state that nothing was measured."""
    if look(meta, "predicted") is not None:
        device, kind, name = (shown(look(meta, *k)) for k in (("device",), ("drafter", "kind"), ("target", "name")))
        return f"predicted for {device} from its data sheet and sizes of {name}, drafter {kind}; nothing was measured"
    if str(look(meta, "kind")).startswith("roofline"):
        return f"predicted for {shown(look(meta, 'device'))} from its data sheet; nothing was measured"
    processor, date = (look(meta, "provenance", key) for key in ("processor", "date"))
    graphs = ", CUDA graphs" if look(meta, "graphs") else ""
    carried = look(meta, "transfer", "to")
    transfer = "" if carried is None else f", carried over to {carried}"
    run = "" if look(meta, "imported") is not None else f"{graphs} ({shown(processor)}), {shown(date)}"
    return f"{describe_models(meta)} on {device_words(meta)}{run}{transfer}"


def export_command(file: str | None, engine: str | None = None, *, kind: Any = None) -> str:
    """Return the command that writes a plan for an engine; words in capitals are for the user to replace.

    Args:
        file: the file of the plan.
        engine: a key of `treeopt.engines.ENGINES`; None where it is not known.
        kind: the kind of drafter, for which the engine may have a method.

    >>> export_command("my plan.json", "vllm", kind="eagle")
    "treeopt export 'my plan.json' --format vllm --method eagle --model DRAFTER"
    >>> export_command("plan.json", "openvino", kind="eagle3")
    'treeopt export plan.json --format openvino'
    """
    command = f"treeopt export {shlex.quote(file or 'plan.json')} --format {engine or 'ENGINE'}"
    entry = None if engine is None else ENGINES[engine]
    if entry is None or not entry.choices:
        return command
    fitting = entry.fitting(kind)
    if fitting and entry.default_method == "drafter":
        return command
    method = fitting[0] if fitting else None if entry.default_method == "optional" else "METHOD"
    model = " --model DRAFTER" if entry.needs_model(method) else ""
    return f"{command}{'' if method is None else f' --method {method}'}{model}"


def method_advice(engine: str | None, *, kind: Any = None) -> str:
    """Return what to choose an engine's method of drafting from, as a clause; empty where the command names it.

    >>> method_advice("openvino", kind="medusa")
    ', which runs no medusa drafter (medusa does); METHOD is one of draft-model, eagle3, dflash, prompt-lookup'
    >>> method_advice("openvino", kind="eagle3")
    ''
    """
    entry = None if engine is None else ENGINES[engine]
    if entry is None or not entry.choices or entry.fitting(kind):
        return ""
    others = ENGINES.running(kind)
    able = f" ({', '.join(others)} {'does' if len(others) == 1 else 'do'})" if others else ""
    named, able = ("n-gram-count", " (engines' n-grams are prompt-lookup)") if kind == "ngram" else (kind, able)
    unfit = "" if kind is None else f", which runs no {named} drafter{able}"
    choice = "" if entry.default_method == "optional" else f"; METHOD is one of {', '.join(entry.choices)}"
    return f"{unfit}{choice}"
