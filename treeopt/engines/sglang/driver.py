"""SGLang: `sglang.launch_server` of the environment that holds it, one launch per draft length.

Run on a CPU with stand-ins for its kernels (tests/helpers/sglang_cpu). `--stream-interval 1` makes it send one chunk
per step, or several steps in one while it is busy. The last object of its own `/generate` counts all steps of a request
by accepted tokens, which tells such chunks apart.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, islice
from typing import Any

import numpy as np

from treeopt.engines.connections.completions_client import Records
from treeopt.engines.connections.servers import Launch, LaunchedServers, Running
from treeopt.engines.driver import Draft, DriverSettings, EngineRequest, EngineStep
from treeopt.engines.dynamic_trees import Triple
from treeopt.engines.sglang import BLOCKS, flags
from treeopt.errors import EngineError

CHUNKS = ("--stream-interval", "1")
CPU = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}  # the second: nothing is compiled for minutes
TRIES, ORDERS = 30_000, 60  # chunks of a request that are split by trial, about a second; orders of its chunks


class SGLang(LaunchedServers):
    """SGLang servers, launched by draft length."""

    title = "SGLang"

    def __init__(self, settings: DriverSettings) -> None:
        """Describe the launches; nothing is started yet.

        Args:
            settings: `method` is the value of `--speculative-algorithm`, such as EAGLE3; None: plain decoding only.

        Raises:
            UsageError: no interpreter.
        """
        super().__init__(settings, drafts=settings.method is not None, method=settings.method)
        self._python = settings.interpreter
        self.tree_requests = 0 if settings.method in BLOCKS else sys.maxsize

    def _launch(self, draft: Draft) -> Launch:
        settings = self.settings
        command = [self._python, "-m", "sglang.launch_server", "--model-path", settings.target, "--host", "127.0.0.1"]
        if draft:
            triple = Triple(draft, 1, draft) if isinstance(draft, int) else Triple(draft.depth, draft.beam, draft.nodes)
            command += ["--speculative-algorithm", str(settings.method)]
            command += [] if settings.drafter is None else ["--speculative-draft-model-path", settings.drafter]
            command += flags(triple, settings.method).split()
        on_cpu = "--device cpu" in " ".join(self._arguments).replace("=", " ")
        return Launch([*command, *CHUNKS, *self._arguments], CPU if on_cpu else {})

    def _version(self, server: Running) -> str | None:
        """Return the version that the server states; None if it states none."""
        with suppress(ValueError, TypeError, KeyError):
            return str(json.loads(server.client.text("/server_info") or "")["version"])[:80]
        return None

    def _steps(
        self, server: Running, number: int, request: EngineRequest, lane: int, *, draft: int, began_s: float
    ) -> Generator[EngineStep, None, None]:
        client = server.client
        prompt = {"input_ids": list(request.tokens)} if request.text is None else {"text": request.text}
        sampling = {"max_new_tokens": request.new_tokens, "temperature": 0, "ignore_eos": request.ignore_stop}
        records = client.events("/generate", {**prompt, "sampling_params": sampling, "stream": True})
        return counted_steps(records, number, began_s, draft=draft, where=client.url)


def counted_steps(
    records: Records, number: int, began_s: float, *, draft: int, where: str
) -> Generator[EngineStep, None, None]:
    """Yield the steps of a request once it has ended; the first token is the prefill's.

    Args:
        records: the streamed objects, each with its time.
        number: of the request.
        began_s: when the run began, on the clock of the times.
        draft: most tokens that a step accepts; 0: the server does not draft.
        where: the server, for messages.

    Raises:
        EngineError: objects without counts, an aborted request, no token at all, steps beyond the draft, or chunks that
            no steps of the histogram add up to.
    """
    chunks, ids, info = list[tuple[float, int]](), list[int](), dict[str, Any]()
    for at_s, record in records:  # to its end
        info = {} if not isinstance(record.get("meta_info"), dict) else record["meta_info"]
        if type(info.get("completion_tokens")) is not int:
            raise EngineError(f"{where}: a chunk has no `meta_info.completion_tokens`: is this an SGLang server?")
        new = info["completion_tokens"] - sum(size for _, size in chunks)
        parts = [new] if chunks else [min(new, 1), new - 1]  # the prefill's token, and what came with it
        chunks += [(at_s - began_s, size) for size in parts if size > 0]
        listed = record.get("output_ids")
        ids += listed[-new:] if new > 0 and isinstance(listed, list) else []
    finish = info.get("finish_reason")
    if isinstance(finish, dict) and finish.get("type") == "abort":
        raise EngineError(f"{where}: request {number} was aborted: {finish.get('message')!r:.300}")
    if not chunks:
        raise EngineError(f"{where}: the answer to request {number} holds no token")
    if finish is None or len(ids) != info["completion_tokens"] or any(type(token) is not int for token in ids):
        raise EngineError(f"{where}: the connection broke: the answer has no end, or not all of its tokens")
    counts = info.get("spec_correct_drafts_histogram") or []
    if not isinstance(counts, list) or any(type(n) is not int or not 0 <= n <= len(ids) for n in counts):
        raise EngineError(f"{where}: `spec_correct_drafts_histogram` must list numbers of steps: {counts!r:.100}")
    counted = [accepted + 1 for accepted, steps in enumerate(counts) for _ in range(steps)]
    if counted and counted[-1] > draft + 1:
        raise EngineError(f"{where}: a step accepted {counted[-1] - 1} tokens of a draft of {draft}: see --engine-args")
    after = [size for _, size in chunks[1:]]
    sizes = [[1], *([[1] * size for size in after] if not draft else step_sizes(after, counted, where))]
    steps = [(at_s, size) for (at_s, _), some in zip(chunks, sizes, strict=True) for size in some]
    ends = list(accumulate(size for _, size in steps))
    for place, ((at_s, size), end) in enumerate(zip(steps, ends, strict=True)):
        tokens = tuple(ids[end - size : end])
        ended, drafted = end == ends[-1], draft if place else None
        yield EngineStep(number, size, at_s, tokens, drafted, prefill=place == 0, ended=ended)


def step_sizes(chunks: Sequence[int], counted: Sequence[int], where: str) -> list[list[int]]:
    """Return the steps within each chunk; those of a chunk that holds several in rising order: theirs is not known.

    Args:
        chunks: tokens of each.
        counted: tokens of all steps by the server's histogram, which also counts what its last one had to drop.
        where: the server, for messages.

    Raises:
        EngineError: no steps add up to the chunks.

    >>> step_sizes([2, 5, 1], [1, 2, 4, 4], "server")
    [[2], [1, 4], [1]]
    """
    if not chunks:
        return []
    dropped, tries = sum(counted) - sum(chunks), iter(range(TRIES))
    *before, last = chunks
    for parts, _ in zip(partitions(last + dropped, Counter(counted)), tries, strict=False):
        if not 0 <= dropped < parts[-1]:
            continue
        left = Counter(counted) - Counter(parts)
        alone = Counter(before) & left
        merged, rng = sorted((Counter(before) - alone).elements()), np.random.default_rng(0)
        orders = (rng.permutation(merged).tolist() if at else merged for at in range(ORDERS))
        splits = (_split(order, left - alone, islice(tries, 2 * len(merged) + ORDERS)) for order in orders)
        split = next((some for some in splits if some is not None), None)
        if split is not None:
            by_total = defaultdict[int, list[list[int]]](list)
            for some in [*([size] for size in alone.elements()), *split]:
                by_total[sum(some)].append(some)
            return [*(by_total[size].pop() for size in before), [*parts[:-1], parts[-1] - dropped]]
    raise EngineError(f"{where}: no steps of {list(counted)!r:.100} found in chunks of {list(chunks)!r:.100} tokens")


def _split(merged: Sequence[int], left: Counter[int], tries: Iterator[int]) -> list[list[int]] | None:
    """Return the steps within chunks of several, which use up all that are left; None if none do, or no try is left."""
    found, ways = list[list[int]](), list[Iterator[list[int]]]()
    while len(found) < len(merged):
        if len(ways) == len(found):
            ways.append(partitions(merged[len(found)], left))
        parts = next(ways[-1], None) if next(tries, None) is not None else None
        if parts is not None:
            found.append(parts)
            left = left - Counter(parts)
        elif found:
            ways.pop()
            left = left + Counter(found.pop())
        else:
            return None
    return found


def partitions(total: int, left: Counter[int]) -> Iterator[list[int]]:
    """Yield rising sizes of those left that add up to a total, the largest sizes first.

    >>> list(partitions(4, Counter([1, 1, 2, 3])))
    [[1, 3], [1, 1, 2]]
    """
    if not left:
        yield from [[]] if total == 0 else []
        return
    size = max(left)
    others = Counter({other: steps for other, steps in left.items() if other != size})
    least = max(0, -((sum(other * steps for other, steps in others.items()) - total) // size))
    for steps in range(min(total // size, left[size]), least - 1, -1):
        yield from ([*rest, *[size] * steps] for rest in partitions(total - steps * size, others))
