"""Counters that engines export: Prometheus text of vLLM, LMDeploy, llama.cpp, TensorRT-LLM, MLC; JSON of the last two.

All count the steps that kept position 0, 1, ... MLC's index 0 is the token that every step commits, so its drafts begin
at 1. Read in the sources of vLLM 0.33.0, LMDeploy 0.18.0, llama.cpp (llama-cpp-python 0.3.36), TensorRT-LLM (#12636)
and MLC-LLM (cpp/serve/metrics.cc, July 2026).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treeopt.errors import TraceError
from treeopt.traces.importers.chain_counts import Chain, counted
from treeopt.traces.importers.prometheus_text import Key, by_position, difference, samples_of, total
from treeopt.traces.importers.source_file import objects

TRTLLM = "trtllm_spec_decode_"
# Engine -> how its counters' names begin; they end in `_total`.
NAMES = {
    "vllm": "vllm:spec_decode_",
    "lmdeploy": "lmdeploy:spec_decode_",
    "llama.cpp": "llamacpp:spec_decode_",
    "tensorrt-llm": TRTLLM,
}
MLC = "spec_decode_accept_prob_accept_prob"


@dataclass(frozen=True)
class Counters:
    """A chain as counters tell it, and the engine whose they are."""

    chain: Chain
    engine: str


def read_counters(text: str, *, before: str | None = None, model: str | None = None, uneven: bool = False) -> Counters:
    """What one scrape counts since the engine started, or two have between them.

    Args:
        text: the scrape, or the later one.
        before: the earlier one.
        model: the `model_name` meant, where there are several.
        uneven: see `chains.counted`.

    Raises:
        TraceError: no counters of an engine known here, several engines or models, counters that fell, or that
            contradict each other.
    """
    if text.lstrip()[:1] in ("{", "["):
        return _json_counters(text, before, uneven)
    found = samples_of(text, model)
    counts = _totals(found)
    rates = {key: value for key, value in found.items() if key[0] == MLC}
    if rates and not counts:
        if before is not None:
            raise TraceError("MLC's text holds rates, which have no difference: take /debug/dump_engine_metrics")
        return Counters(_mlc_rates(rates), "mlc")
    if before is not None:
        counts = difference(counts, _totals(samples_of(before, model)))
    engines = [engine for engine, prefix in NAMES.items() if any(name.startswith(prefix) for name, _ in counts)]
    if len(engines) != 1:
        raise TraceError(
            f"must hold one engine's counters of speculative decoding, found {' and '.join(engines) or 'none'}"
        )
    (engine,) = engines
    if engine == "tensorrt-llm":
        return Counters(_trtllm(counts, uneven), engine)
    return Counters(_vllm_like(counts, NAMES[engine], uneven), engine)


def _totals(samples: Mapping[Key, float]) -> dict[Key, float]:
    begun = tuple(NAMES.values())
    return {key: value for key, value in samples.items() if key[0].startswith(begun) and key[0].endswith("_total")}


def _vllm_like(samples: Mapping[Key, float], prefix: str, uneven: bool) -> Chain:
    names = {what: f"{prefix}num_{what}_total" for what in ("drafts", "draft_tokens", "accepted_tokens")}
    drafts, tokens, kept = (total(samples, name) for name in names.values())
    accepted = by_position(samples, f"{prefix}num_accepted_tokens_per_pos_total", "position")
    if sum(accepted) != kept:
        raise TraceError(
            f"positions have {sum(accepted)} accepted tokens, `{names['accepted_tokens']}` has {kept}: is the text of "
            "one moment?"
        )
    return counted(accepted, steps=drafts, draft_tokens=tokens, uneven=uneven)


def _trtllm(samples: Mapping[Key, float], uneven: bool) -> Chain:
    """The one engine that counts drafted tokens by position; every step drafts position 0."""
    drafted, accepted = (
        by_position(samples, f"{TRTLLM}{what}_tokens_total", "token_position") for what in ("drafted", "accepted")
    )
    if not drafted:
        raise TraceError(f"`{TRTLLM}drafted_tokens_total` is missing: only totals are there, which tell no position")
    chain = counted(accepted, steps=drafted[0], drafted=drafted, uneven=uneven)
    if len(drafted) > 1:
        return chain
    said = "only position 0 is counted, where its C++ runtime puts drafts of any position: true if it drafts one"
    return Chain(chain.survival, chain.steps, assumed=(*chain.assumed, said))


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
                raise TraceError("--before must hold `draft_count` and `accept_count`, too")
            counts = _minus(counts[0], earlier[0]), _minus(counts[1], earlier[1])
        drafted, accepted = counts
        if not drafted or drafted[:1] != accepted[:1]:
            raise TraceError("`accept_count` and `draft_count` must begin alike: every step commits a token")
        chain = counted(accepted[1:], steps=drafted[0], drafted=drafted[1:], uneven=uneven)
        return Counters(chain, "mlc")
    if before is not None:
        raise TraceError("iteration statistics count each iteration by itself: leave --before out")
    return Counters(_trtllm_iterations(text), "tensorrt-llm")


def _mlc_counts(text: str) -> tuple[list[int], list[int]] | None:
    """`draft_count` and `accept_count` of a JSON text, if they are there."""
    for held in objects(text):
        if "draft_count" in held and "accept_count" in held:
            return _counts(held["draft_count"], "draft_count"), _counts(held["accept_count"], "accept_count")
    return None


def _trtllm_iterations(text: str) -> Chain:
    """Totals tell of positions only where a draft has one token."""
    found = [held["specDecodingStats"] for held in objects(text) if isinstance(held.get("specDecodingStats"), dict)]
    if not found:
        raise TraceError("its JSON holds neither `draft_count` (MLC) nor `specDecodingStats` (TensorRT-LLM)")
    tokens, kept, steps = (
        sum(_counts([part.get(key) for part in found], key))
        for key in ("numDraftTokens", "numAcceptedTokens", "numRequestsWithDraftTokens")
    )
    if tokens != steps:
        raise TraceError(
            f"iteration statistics tell {tokens} drafted and {kept} accepted tokens of {steps} drafts, but of no "
            "position: take /prometheus/metrics, or responses with per_request_spec_decode_stats"
        )
    return counted([kept], steps=steps)


def _minus(after: list[int], before: list[int]) -> list[int]:
    found = [now - then for now, then in zip(after, [*before, *[0] * len(after)], strict=False)]
    if len(before) > len(after) or min(found, default=0) < 0:
        raise TraceError("counts fell: the engine was restarted between the two, or they are of different ones")
    return found


def _counts(value: Any, key: str) -> list[int]:
    if not isinstance(value, list) or not all(type(n) is int and n >= 0 for n in value):
        raise TraceError(f"`{key}` must be counts, found {value!r:.60}")
    return value
