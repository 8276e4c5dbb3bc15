"""Make a driver from settings in words, as a command line gives them."""

import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor.engines.drivers.llama_cpp import LlamaCpp
from executor.engines.drivers.openai import Count, OpenAI
from executor.engines.drivers.openvino import OpenVino
from executor.engines.drivers.sglang import SGLang
from executor.engines.drivers.vllm import VLLM
from executor.engines.engine import Engine
from treeopt.errors import EngineError, UsageError

KEY = "OPENAI_API_KEY"  # environment variable with the bearer token of a remote server
SERVER = "llama-server"
LOOKUP = re.compile(r"prompt-lookup(?::([1-9]\d?))?")
LONGEST = 3  # tokens that OpenVINO's prompt lookup matches, where the method does not say


@dataclass(frozen=True)
class EngineSettings:
    """Which engine, where it is, and how it is started.

    Attributes:
        engine: name, a key of `ENGINES`.
        target: the target as the engine reads it: a folder, a GGUF file, or a name.
        drafter: the drafter as the engine reads it; None: no drafter, or one without a file.
        method: how the engine drafts, in its own word.
        urls: addresses of servers that run already, by draft length.
        python: interpreter of the environment that holds the engine.
        arguments: further arguments of its launch, as one line.
        servers: servers alive at a time.
        timeout_s: longest time that an engine may take to start, and then to send anything.
        concurrency: largest number of requests in flight.
        count: counts the tokens of a text, for servers that do not report them.
    """

    engine: str
    target: str
    drafter: str | None = None
    method: str | None = None
    urls: Mapping[int, str] | None = None
    python: Path | None = None
    arguments: str = ""
    servers: int = 1
    timeout_s: float = 600.0
    concurrency: int = 1
    count: Count | None = None

    @property
    def words(self) -> list[str]:
        """The further arguments, split as a shell splits them.

        Raises:
            UsageError: an open quote.
        """
        try:
            return shlex.split(self.arguments)
        except ValueError as error:
            raise UsageError(f"--engine-args: {error}: {self.arguments!r:.80}") from error


def make_engine(settings: EngineSettings) -> Engine:
    """Return the driver of an engine; nothing is started yet.

    Raises:
        UsageError: settings that the engine does not take, or that are missing.
        EngineError: the engine is not there.
    """
    if (settings.urls is not None) != (settings.engine == "openai"):
        raise UsageError(
            "--engine openai needs --url, the address of a server that runs"
            if settings.engine == "openai"
            else f"--url is for --engine openai: {settings.engine} is started here"
        )
    return ENGINES[settings.engine](settings)


def _openai(settings: EngineSettings) -> Engine:
    assert settings.urls is not None
    model = None if Path(settings.target).exists() else settings.target
    key = os.environ.get(KEY)
    return OpenAI(settings.urls, model=model, key=key, timeout_s=settings.timeout_s, count=settings.count)


def _vllm(settings: EngineSettings) -> Engine:
    speculation: dict[str, Any] | None = None
    if settings.method is not None:
        speculation = {"method": settings.method}
        speculation |= {} if settings.drafter is None else {"model": settings.drafter}
    return VLLM(
        _python(settings),
        settings.target,
        speculation=speculation,
        arguments=settings.words,
        alive=settings.servers,
        timeout_s=settings.timeout_s,
    )


def _openvino(settings: EngineSettings) -> Engine:
    """Return the driver of OpenVINO GenAI; `--engine-args` holds properties of the device as NAME=VALUE words."""
    pairs = [word.partition("=") for word in settings.words]
    wrong = next((name for name, equals, _ in pairs if not equals), None)
    if wrong is not None:
        raise UsageError(f"--engine-args of openvino are NAME=VALUE, such as KV_CACHE_PRECISION=f32, got {wrong!r:.60}")
    lookup = LOOKUP.fullmatch(settings.method or "")
    if settings.method is not None and lookup is None:
        raise UsageError(f"--method of openvino is prompt-lookup or prompt-lookup:N, got {settings.method!r:.60}")
    return OpenVino(
        _python(settings),
        settings.target,
        draft_model=None if lookup else settings.drafter,
        lookup_ngram=int(lookup[1] or LONGEST) if lookup else None,
        properties={name: int(value) if value.isdecimal() and len(value) < 20 else value for name, _, value in pairs},
        timeout_s=settings.timeout_s,
    )


def _sglang(settings: EngineSettings) -> Engine:
    return SGLang(
        _python(settings),
        settings.target,
        method=settings.method,
        drafter=settings.drafter,
        arguments=settings.words,
        alive=settings.servers,
        timeout_s=settings.timeout_s,
        count=settings.count,
    )


def _llama_cpp(settings: EngineSettings) -> Engine:
    return LlamaCpp(
        llama_server(settings.python),
        settings.target,
        method=settings.method,
        drafter=settings.drafter,
        arguments=settings.words,
        slots=settings.concurrency,
        alive=settings.servers,
        timeout_s=settings.timeout_s,
    )


ENGINES: Mapping[str, Callable[[EngineSettings], Engine]] = {
    "llama.cpp": _llama_cpp,
    "openai": _openai,
    "openvino": _openvino,
    "sglang": _sglang,
    "vllm": _vllm,
}


def _python(settings: EngineSettings) -> Path:
    """Return the interpreter of the engine's environment.

    Raises:
        UsageError: it is not given, or not there.
    """
    if settings.python is None:
        raise UsageError(
            f"--engine {settings.engine} needs --engine-python, the interpreter of the environment that holds it"
        )
    if shutil.which(settings.python) is None:
        raise UsageError(f"--engine-python {settings.python}: cannot be run")
    return settings.python


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
