"""Make a driver from settings in words, as a command line gives them."""

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treeopt.engines.driver import Count, Driver
from treeopt.errors import EngineError, UsageError
from treeopt.registry import load

KEY = "OPENAI_API_KEY"  # environment variable with the bearer token of a remote server
SERVER = "llama-server"
LOOKUP = re.compile(r"prompt-lookup(?::([1-9]\d?))?")
NGRAM = ("ngram", "ngram_gpu")  # vLLM's methods of prompt lookup
NGRAM_SIMPLE = "ngram-simple"  # llama.cpp's
LENGTH = "num_speculative_tokens"
RULE_OF = "executor.drafters.prompt_lookup.lookup_names:engine_rule"  # reads the name of a prompt lookup
LONGEST = 3  # tokens that OpenVINO's prompt lookup matches, where the method does not say


@dataclass(frozen=True)
class EngineSettings:
    """Which engine, where it is, and how it is started.

    Attributes:
        engine: name, a key of `ENGINES`.
        target: the target as the engine reads it: a folder, a GGUF file, or a name.
        drafter: the drafter as the engine reads it; None: no drafter, or one without a file.
        method: how the engine drafts, in its own word; vllm also takes the JSON of its `--speculative-config`.
        lookup: name of a prompt lookup that the engine drafts by, such as prompt-lookup:vllm:1-3.
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
    lookup: str | None = None

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


def make_engine(settings: EngineSettings) -> Driver:
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


def _driver(name: str) -> Callable[..., Driver]:
    """Return the class of a driver; only the engine that is used is imported."""
    driver: Callable[..., Driver] = load(name)
    return driver


def _openai(settings: EngineSettings) -> Driver:
    assert settings.urls is not None
    model = None if Path(settings.target).exists() else settings.target
    key = os.environ.get(KEY)
    return _driver("treeopt.engines.openai.driver:OpenAI")(
        settings.urls, model=model, key=key, timeout_s=settings.timeout_s, count=settings.count
    )


def _vllm(settings: EngineSettings) -> Driver:
    return _driver("treeopt.engines.vllm.driver:VLLM")(
        _python(settings),
        settings.target,
        speculation=_speculation(settings),
        arguments=settings.words,
        alive=settings.servers,
        timeout_s=settings.timeout_s,
    )


def _speculation(settings: EngineSettings) -> dict[str, Any] | None:
    """Return vLLM's `--speculative-config` without a length; None for plain decoding."""
    config = _config(settings.method)
    rule = _lookup_rule(settings, "vllm", methods=NGRAM, method=None if config is None else config.get("method"))
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


def _lookup_rule(
    settings: EngineSettings, engine: str, *, methods: Sequence[str], method: str | None
) -> Mapping[str, int] | None:
    """Return the sizes of the rule that the drafter's name states, if the engine drafts by it; else None.

    Args:
        settings: of the driver.
        engine: the engine whose rule it must be.
        methods: the words for prompt lookup in `settings.engine`.
        method: the word that is given; None: none.

    Raises:
        UsageError: the engine's prompt lookup is asked for, and another rule is named.
    """
    if settings.lookup is None or method not in (None, *methods):
        return None
    rule: Any = load(RULE_OF)(settings.lookup)
    if rule is None:
        return None
    if rule.engine != engine:
        raise UsageError(
            f"--drafter {settings.lookup} is the rule of {rule.engine}, which {settings.engine} does not draft by; "
            f"name prompt-lookup:{engine}, or how {settings.engine} drafts with --method"
        )
    sizes: Mapping[str, int] = rule.settings
    return sizes


def _openvino(settings: EngineSettings) -> Driver:
    """Return the driver of OpenVINO GenAI; `--engine-args` holds properties of the device as NAME=VALUE words."""
    pairs = [word.partition("=") for word in settings.words]
    wrong = next((name for name, equals, _ in pairs if not equals), None)
    if wrong is not None:
        raise UsageError(f"--engine-args of openvino are NAME=VALUE, such as KV_CACHE_PRECISION=f32, got {wrong!r:.60}")
    longest = _longest_match(settings)
    return _driver("treeopt.engines.openvino.driver:OpenVino")(
        _python(settings),
        settings.target,
        draft_model=None if longest else settings.drafter,
        lookup_ngram=longest,
        properties={name: int(value) if value.isdecimal() and len(value) < 20 else value for name, _, value in pairs},
        timeout_s=settings.timeout_s,
    )


def _longest_match(settings: EngineSettings) -> int | None:
    """Return N of OpenVINO's prompt lookup, which is vLLM's rule with matches of N tokens down to 1; None: none."""
    given = LOOKUP.fullmatch(settings.method or "")
    if settings.method is not None and given is None:
        raise UsageError(f"--method of openvino is prompt-lookup or prompt-lookup:N, got {settings.method!r:.60}")
    if settings.drafter is not None and given is None:
        return None
    words = () if settings.method is None else (settings.method,)
    rule = _lookup_rule(settings, "vllm", methods=words, method=settings.method)
    if rule is None:
        return None if given is None else int(given[1] or LONGEST)
    if rule["shortest"] != 1 or (given is not None and given[1] and int(given[1]) != rule["longest"]):
        method = settings.method or "prompt-lookup"
        raise UsageError(
            f"--drafter {settings.lookup} is not {method} of openvino, which matches N tokens down to 1: "
            "name prompt-lookup:vllm:1-N"
        )
    return rule["longest"]


def _sglang(settings: EngineSettings) -> Driver:
    return _driver("treeopt.engines.sglang.driver:SGLang")(
        _python(settings),
        settings.target,
        method=settings.method,
        drafter=settings.drafter,
        arguments=settings.words,
        alive=settings.servers,
        timeout_s=settings.timeout_s,
        count=settings.count,
    )


def _llama_cpp(settings: EngineSettings) -> Driver:
    rule = _lookup_rule(settings, "llama.cpp", methods=(NGRAM_SIMPLE,), method=settings.method)
    return _driver("treeopt.engines.llama_cpp.driver:LlamaCpp")(
        llama_server(settings.python),
        settings.target,
        method=settings.method if rule is None else NGRAM_SIMPLE,
        drafter=settings.drafter if rule is None else None,
        match=None if rule is None else rule["size"],
        arguments=settings.words,
        slots=settings.concurrency,
        alive=settings.servers,
        timeout_s=settings.timeout_s,
    )


ENGINES: Mapping[str, Callable[[EngineSettings], Driver]] = {
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
