"""Read engines' counters: Prometheus text of vLLM, LMDeploy, llama.cpp, TensorRT-LLM, TGI and MLC; JSON of some.

Most count the steps that accepted position 0, 1, ... TGI has a histogram of the drafts that a forward accepted,
prefills included. AIPerf scrapes all of them. vLLM's `LLM.get_metrics()` gives its counters as objects, dumped as
JSON or printed. MLC's index 0 is the token that every step commits, so its drafts begin at 1. Sources: vLLM 0.33.0,
LMDeploy 0.18.0, llama.cpp (llama-cpp-python 0.3.36), TensorRT-LLM (#12636), MLC-LLM (cpp/serve/metrics.cc, July 2026)
and TGI 3 (router/src/server.rs and backends/v2/src/backend.rs).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from treeopt.errors import TraceError
from treeopt.traces.importers.chain_counts import Chain, chain_from_counts
from treeopt.traces.importers.readers import means_alone
from treeopt.traces.importers.readers.aiperf_server_metrics import export_samples, holds_export
from treeopt.traces.importers.readers.prometheus_text import (
    TGI,
    Key,
    api_samples,
    by_position,
    difference,
    is_api_answer,
    is_metric_list,
    metric_samples,
    read_samples,
    total,
    whole,
)
from treeopt.traces.importers.source_file import is_json, objects

TRTLLM = "trtllm_spec_decode_"
# Engine -> prefix of its counters' names, which end in `_total`.
NAMES = {
    "vllm": "vllm:spec_decode_",
    "lmdeploy": "lmdeploy:spec_decode_",
    "llama.cpp": "llamacpp:spec_decode_",
    "tensorrt-llm": TRTLLM,
    "tgi": TGI,
}
SKIPPED, FINISHED = f"{TGI}skipped_tokens", f"{TGI}success"
PREFILLS = (
    "TGI counts each prefill as a step that accepted nothing: as many steps are left out as requests finished "
    "(`tgi_request_success`); scrape when no request runs"
)
CUTS = "llama.cpp cuts drafts at max_tokens, and where the drafter is not sure: most shorter drafts are of this kind"
_MLC_JSON = re.compile(r'"draft_count"\s*:\s*\[')
MLC = "spec_decode_accept_prob_accept_prob"


@dataclass(frozen=True)
class Counters:
    """The chain that counters describe, and the engine that counted it."""

    chain: Chain
    engine: str


def read_counters(text: str, *, before: str | None = None, model: str | None = None, uneven: bool = False) -> Counters:
    """Read the counts since the engine started, or between two scrapes.

    Args:
        text: the scrape, or the later one of two.
        before: the earlier one of two.
        model: the `model_name` to read, if the text has several.
        uneven: see `chain_counts.chain_from_counts`.

    Raises:
        TraceError: no counters of an engine known here, several engines or models, or counters that fell or
            contradict each other.
    """
    if is_json(text) and not (is_metric_list(text) or holds_export(text) or is_api_answer(text)):
        return _json_counters(text, before, uneven)
    samples = _samples(text, model)
    counts = _totals(samples)
    rates = {key: value for key, value in samples.items() if key[0] == MLC}
    if rates and not counts:
        if before is not None:
            raise TraceError("MLC's text holds rates, which have no difference: take /debug/dump_engine_metrics")
        return Counters(_mlc_rates(rates), "mlc")
    if before is not None:
        counts = difference(counts, _totals(_samples(before, model)))
    engine = _engine(counts)
    if engine == "tensorrt-llm":
        return Counters(_trtllm(counts, uneven), engine)
    if engine == "tgi":
        return Counters(_tgi(counts), engine)
    return Counters(_vllm_like(counts, engine, uneven), engine)


def holds_counters(text: str) -> bool:
    """Return True if counters of an engine that is known here are in the text, or objects that hold them."""
    engines = [prefix for prefix in NAMES.values() if prefix != TGI]
    names = (
        (*engines, *(prefix.replace(":", "_") for prefix in engines), f"{SKIPPED}_bucket", MLC, "specDecodingStats")
        if not is_json(text)
        else ("specDecodingStats",)
    )
    return (
        is_metric_list(text)
        or holds_export(text)
        or is_api_answer(text)
        or any(name in text for name in names)
        or _MLC_JSON.search(text) is not None
    )


def _samples(text: str, model: str | None) -> dict[Key, float]:
    if is_api_answer(text):
        return api_samples(text, model)
    if holds_export(text):
        return export_samples(text, model)
    return metric_samples(text, model) if is_metric_list(text) else read_samples(text, model)


def _engine(counts: Mapping[Key, float]) -> str:
    """Return the engine whose counters these are; engines that counted nothing stand back behind one that did."""
    engines = {}
    for engine, prefix in NAMES.items():
        values = [value for (name, _), value in counts.items() if name.startswith(prefix)]
        if values:
            engines[engine] = sum(values)
    busy = [engine for engine, counted in engines.items() if counted > 0] or list(engines)
    if len(busy) != 1:
        raise TraceError(
            f"must hold one engine's counters of speculative decoding, found {' and '.join(busy) or 'none'}"
            + (": keep the lines of one" if busy else "")
        )
    return busy[0]


def _totals(samples: Mapping[Key, float]) -> dict[Key, float]:
    prefixes = tuple(NAMES.values())
    tgi = (f"{SKIPPED}_bucket", FINISHED)
    return {
        (name, labels): value
        for (name, labels), value in samples.items()
        if name in tgi or (name.startswith(prefixes) and name.endswith("_total"))
    }


def _vllm_like(samples: Mapping[Key, float], engine: str, uneven: bool) -> Chain:
    """Read counters by position, summed over engines (data parallel), workers and instances.

    llama.cpp cuts drafts at max_tokens and where the drafter is not sure: its uneven drafts are read, and rejected.
    """
    prefix = NAMES[engine]
    names = [f"{prefix}num_{counter}_total" for counter in ("drafts", "draft_tokens", "accepted_tokens")]
    for name in names:
        if all(key != name for key, _ in samples):
            raise TraceError(f"`{name}` is missing: its other totals have no positions; {means_alone.ASK[engine]}")
    drafts, tokens, accepted_total = (total(samples, name) for name in names)
    accepted = by_position(samples, f"{prefix}num_accepted_tokens_per_pos_total", "position")
    if accepted_total and not accepted:
        raise TraceError(f"it has totals, but no positions; {means_alone.ASK[engine]}")
    if sum(accepted) != accepted_total:
        raise TraceError(
            f"positions have {sum(accepted)} accepted tokens, `{names[-1]}` has {accepted_total}: was the text scraped "
            "at one moment?"
        )
    cuts = engine == "llama.cpp" and tokens < drafts * len(accepted)
    chain = chain_from_counts(accepted, steps=drafts, draft_tokens=tokens, uneven=uneven or cuts)
    return replace(chain, assumed=(*chain.assumed, CUTS)) if cuts else chain


def _trtllm(samples: Mapping[Key, float], uneven: bool) -> Chain:
    """Read the only engine that counts drafted tokens by position; every step drafts position 0."""
    drafted, accepted = (
        by_position(samples, f"{TRTLLM}{counter}_tokens_total", "token_position") for counter in ("drafted", "accepted")
    )
    if not drafted:
        raise TraceError(f"`{TRTLLM}drafted_tokens_total` is missing: the other totals have no positions")
    chain = chain_from_counts(accepted, steps=drafted[0], drafted=drafted, uneven=uneven)
    if len(drafted) > 1:
        return chain
    assumption = "only position 0 is counted, where its C++ runtime puts drafts of any position: true if it drafts one"
    return Chain(chain.survival, chain.steps, assumed=(*chain.assumed, assumption))


def _tgi(samples: Mapping[Key, float]) -> Chain:
    """Read the histogram of tokens that a forward yielded beyond one; a prefill yields one.

    Raises:
        TraceError: buckets that are missing or fall, no number of finished requests, or more of these than steps.
    """
    bounds: dict[float, float] = {}
    for (name, labels), value in samples.items():
        if name == f"{SKIPPED}_bucket":
            word = dict(labels).get("le", "")
            if not re.fullmatch(r"\d{1,3}(?:\.0+)?|\+Inf", word):
                raise TraceError(f"`{name}` must have whole numbers of tokens as `le`, found {word[:20]!r}")
            bounds[float(word)] = bounds.get(float(word), 0.0) + value
    most = len(bounds) - 2
    if most < 0 or sorted(bounds) != [*map(float, range(most + 1)), float("inf")]:
        raise TraceError(f"`{SKIPPED}_bucket` must have buckets 0, 1, ..., +Inf, found {sorted(bounds)}")
    below = [whole(bounds[at], f"{SKIPPED}_bucket") for at in sorted(bounds)]
    if below != sorted(below) or below[most] != below[-1]:
        raise TraceError(f"`{SKIPPED}_bucket` must rise up to the bucket of {most}, found {below}")
    if most == 0:
        raise TraceError("no forward may accept a draft: TGI was started without --speculate or a drafter")
    prefills = total(samples, FINISHED)
    if prefills > below[0]:
        raise TraceError(f"`{FINISHED}` counts {prefills} requests, but only {below[0]} forwards yielded one token")
    accepted = [below[-1] - count for count in below[:most]]
    return chain_from_counts(accepted, steps=below[-1] - prefills, assumed=(PREFILLS,))


def _mlc_rates(samples: Mapping[Key, float]) -> Chain:
    steps = {dict(labels).get("step", ""): value for (_, labels), value in samples.items()}
    rates = [steps.get(str(position)) for position in range(len(steps))]
    if rates[0] != 1.0 or any(rate is None for rate in rates):
        raise TraceError(f"`{MLC}` must have steps 0 (always 1), 1, 2, ..., found {sorted(steps)}")
    return Chain(tuple(rate for rate in rates[1:] if rate is not None))


def _json_counters(text: str, before: str | None, uneven: bool) -> Counters:
    counts = _mlc_counts(text)
    if counts is not None:
        if before is not None:
            earlier = _mlc_counts(before)
            if earlier is None:
                raise TraceError("--before must also hold `draft_count` and `accept_count`")
            counts = _minus(counts[0], earlier[0]), _minus(counts[1], earlier[1])
        drafted, accepted = counts
        if not drafted or drafted[:1] != accepted[:1]:
            raise TraceError("`accept_count` and `draft_count` must begin alike: every step commits a token")
        chain = chain_from_counts(accepted[1:], steps=drafted[0], drafted=drafted[1:], uneven=uneven)
        return Counters(chain, "mlc")
    if before is not None:
        raise TraceError("iteration statistics count each iteration separately: omit --before")
    return Counters(_trtllm_iterations(text), "tensorrt-llm")


def _mlc_counts(text: str) -> tuple[list[int], list[int]] | None:
    """Return `draft_count` and `accept_count` of a JSON text, or None if it has none."""
    for record in objects(text):
        if "draft_count" in record and "accept_count" in record:
            return _counts(record["draft_count"], "draft_count"), _counts(record["accept_count"], "accept_count")
    return None


def _trtllm_iterations(text: str) -> Chain:
    """Read totals, which determine positions only if every draft has one token."""
    records = objects(text)
    stats = [record["specDecodingStats"] for record in records if isinstance(record.get("specDecodingStats"), dict)]
    if not stats:
        raise TraceError("its JSON holds neither `draft_count` (MLC) nor `specDecodingStats` (TensorRT-LLM)")
    tokens, accepted, steps = (
        sum(_counts([part.get(key) for part in stats], key))
        for key in ("numDraftTokens", "numAcceptedTokens", "numRequestsWithDraftTokens")
    )
    if tokens != steps:
        raise TraceError(
            f"iteration statistics have {tokens} drafted and {accepted} accepted tokens of {steps} drafts, but no "
            "positions: take /prometheus/metrics, or responses with per_request_spec_decode_stats"
        )
    return chain_from_counts([accepted], steps=steps)


def _minus(after: list[int], before: list[int]) -> list[int]:
    counts = [now - then for now, then in zip(after, [*before, *[0] * len(after)], strict=False)]
    if len(before) > len(after) or min(counts, default=0) < 0:
        raise TraceError("counts fell: the engine was restarted in between, or the two come from different engines")
    return counts


def _counts(value: Any, key: str) -> list[int]:
    if not isinstance(value, list) or not all(type(n) is int and n >= 0 for n in value):
        raise TraceError(f"`{key}` must be counts, found {value!r:.60}")
    return value
