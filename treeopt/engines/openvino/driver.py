"""The driver of OpenVINO GenAI: a worker under the engine's own Python decodes by single steps, on a CPU or GPU.

The knobs are the engine's, request by request, so one loaded engine runs every draft length and dynamic tree. A
pipeline with a draft model or with prompt lookup always drafts; plain decoding is a second pipeline, loaded when it is
first asked for. Facts about OpenVINO GenAI 2026.4.1 that a reader of its steps must know:

* Prompt lookup pads every draft to the full length, so a step without a match costs what a full draft costs.
* A request's drafts are cut where its text ends, those of the others are not. A request that joins makes the others
  wait for its prefill.
* Dynamic trees run one request at a time: with several the engine fails ("PaKVReorder ... to have same length") in a
  step that ends one of them while it accepts a branch of another, so the driver refuses it.
* Dynamic trees need an EAGLE-3 drafter. With a language model as the drafter the engine accepts the setting and emits
  another text, so the driver refuses it.
* It does not report drafted tokens step by step.
* It may die after some hundred runs ("free(): invalid next size"). The next run starts it again.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from treeopt.constraints import pool
from treeopt.engines.connections.worker_process import GRACE_S, WorkerProcess
from treeopt.engines.driver import Draft, DriverSettings, EngineRequest, EngineStep, model_name
from treeopt.engines.openvino import TREES
from treeopt.errors import EngineError, UsageError
from treeopt.policies import DynamicTree

NAME = "OpenVINO GenAI"
WORKER = Path(__file__).with_name("worker.py")
PROTOCOL = 1  # the worker's docstring states it
INSTALL = "pip install openvino-genai==2026.4.1.0"
DEVICE = "CPU"  # OpenVINO's name
LOOKUP = re.compile(r"prompt-lookup(?::([1-9]\d?))?")
LONGEST = 3  # tokens that prompt lookup matches, where the method does not say
PLAIN, DRAFTING = "plain", "drafting"


class OpenVino:
    """OpenVINO GenAI with a draft model, with prompt lookup, or with neither; see `Driver`."""

    tree_requests = TREES.requests or sys.maxsize

    def __init__(self, settings: DriverSettings, *, grace_s: float = GRACE_S) -> None:
        """Keep the settings; `__enter__` starts the worker.

        Args:
            settings: `method` is prompt-lookup, prompt-lookup:N, or None for a draft model; `arguments` holds
                properties of the device as NAME=VALUE words, such as INFERENCE_NUM_THREADS=2. The engine's cache has 8
                bits on a CPU unless KV_CACHE_PRECISION says `f32`.
            grace_s: see `WorkerProcess`.

        Raises:
            UsageError: no interpreter, a property without a value, or a method that contradicts the drafter's name.
        """
        self._properties = _properties(settings.words)
        self._lookup_ngram = _longest_match(settings)
        self._python, self._model = settings.interpreter, settings.target
        self._draft_model = None if self._lookup_ngram else settings.drafter
        self._timeout_s, self._grace_s = settings.timeout_s, grace_s
        self._worker: WorkerProcess | None = None
        self._entered = False
        self._versions: dict[str, str] = {}
        self._loaded: set[str] = set()
        self._decoding = False
        self._eagle3 = False  # known once the drafter is loaded

    @property
    def meta(self) -> Mapping[str, Any]:
        """The engine's name, its versions once it has started, and what it was started with."""
        return {
            "name": "openvino",
            **self._versions,
            "model": model_name(self._model),
            "draft_model": None if self._draft_model is None else model_name(self._draft_model),
            "lookup_ngram": self._lookup_ngram,
            "device": DEVICE,
            "properties": self._properties,
            "scheduler": {},
        }

    def __enter__(self) -> Self:
        """Start the worker; models are loaded when they are first needed.

        Raises:
            EngineError: the interpreter does not start, lacks the engine, or speaks another protocol.
        """
        self._start()
        self._entered = True
        return self

    def _start(self) -> None:
        # -I: nothing of the worker's folder is on its path
        self._worker = WorkerProcess(
            [self._python, "-I", str(WORKER)], name=f"the {NAME} worker", grace_s=self._grace_s
        )
        try:
            hello = self._worker.receive(self._timeout_s)
            if hello.get("event") == "error":
                raise EngineError(f"{self._python} cannot import {NAME} ({_words(hello)}); there, run: {INSTALL}")
            if hello.get("event") != "ready" or hello.get("protocol") != PROTOCOL:
                raise EngineError(f"the {NAME} worker must speak protocol {PROTOCOL}, it opened with {hello}")
        except BaseException:
            self._stop()
            raise
        self._versions = {name: str(hello[name]) for name in ("openvino_genai", "openvino") if name in hello}

    def __exit__(self, *_: object) -> None:
        """Stop the worker."""
        self._entered = False
        self._stop()

    def decode(self, requests: Sequence[EngineRequest], *, draft: Draft, concurrency: int) -> Iterator[EngineStep]:
        """See `Driver.decode`; the engine is loaded at the first call that needs it.

        Raises:
            EngineError: see `Driver.decode`; or another iterator of this driver is still open.
        """
        settings = self._settings(draft)
        for number, request in enumerate(requests):
            if not request.tokens or request.new_tokens < 1:
                raise EngineError(
                    f"request {number} needs at least 1 prompt token and 1 new token, "
                    f"got {len(request.tokens)} and {request.new_tokens}"
                )
        if concurrency < 1:
            raise EngineError(f"concurrency must be at least 1, got {concurrency}")
        if isinstance(draft, DynamicTree) and min(concurrency, len(requests)) > self.tree_requests:
            raise EngineError(f"{NAME} fails where one of several requests with trees ends; decode with concurrency 1")
        order = {
            "op": "decode",
            "pipeline": DRAFTING if settings else PLAIN,
            "concurrency": concurrency,
            "settings": settings,
            "requests": [
                {"tokens": list(request.tokens), "new_tokens": request.new_tokens, "ignore_stop": request.ignore_stop}
                for request in requests
            ],
        }
        return self._steps(order, requests)

    def _settings(self, draft: Draft) -> dict[str, int]:
        """Return the fields of `GenerationConfig` for a draft; none for plain decoding."""
        if draft == 0:
            return {}
        if self._draft_model is None and self._lookup_ngram is None:
            raise EngineError(f"{NAME} was started without a drafter; give it a draft model or prompt lookup")
        if isinstance(draft, DynamicTree):
            if self._lookup_ngram is not None:
                raise EngineError(f"{NAME} looks up chains, no trees; give a draft length")
            return _tree_settings(draft)
        if draft < 0:
            raise EngineError(f"a draft length must be at least 0, got {draft}")
        settings = {"num_assistant_tokens": draft}
        if self._lookup_ngram is not None:
            settings["max_ngram_size"] = self._lookup_ngram
        return settings

    def _steps(self, order: dict[str, Any], requests: Sequence[EngineRequest]) -> Iterator[EngineStep]:
        if self._decoding:
            raise EngineError(f"{NAME} decodes one set of requests at a time; close the open iterator first")
        worker = self._live_worker()
        self._load(worker, order["pipeline"])
        if "tree_depth" in order["settings"] and not self._eagle3:
            raise EngineError(f"{NAME} drafts trees with an EAGLE-3 drafter only, and {self._draft_model} is none")
        worker.send(order)
        self._decoding = True
        steps = [0] * len(requests)
        try:
            while (answer := self._answer(worker))["event"] == "step":
                yield from _steps_of(answer, steps, plain=order["pipeline"] == PLAIN)
            if 0 in steps:
                raise EngineError(f"{NAME} ended without a token for request {steps.index(0)}")
        finally:
            if self._decoding:  # closed early, or a step that makes no sense
                self._cancel()

    def _load(self, worker: WorkerProcess, pipeline: str) -> None:
        if pipeline in self._loaded:
            return
        lookup = pipeline == DRAFTING and self._lookup_ngram is not None
        worker.send(
            {
                "op": "load",
                "pipeline": pipeline,
                "model": self._model,
                "draft_model": self._draft_model if pipeline == DRAFTING else None,
                "device": DEVICE,
                "properties": {**self._properties, **({"prompt_lookup": True} if lookup else {})},
                "scheduler": {},
            }
        )
        answer = self._answer(worker)
        if pipeline == DRAFTING:
            self._eagle3 = bool(answer.get("eagle3"))
        self._loaded.add(pipeline)

    def _answer(self, worker: WorkerProcess) -> dict[str, Any]:
        """Return the worker's next object, unless it is an error.

        A worker that fails at an order drops its pipeline; one that breaks the protocol or hangs is stopped.
        """
        try:
            answer = worker.receive(self._timeout_s)
            if answer.get("event") not in ("loaded", "step", "done", "cancelled", "error"):
                raise EngineError(f"the {NAME} worker wrote {str(answer)[:200]}, which its protocol does not know")
        except EngineError:
            self._stop()
            raise
        if answer["event"] != "step":
            self._decoding = False
        if answer["event"] == "error":
            self._loaded.clear()  # the worker drops what failed; the next call loads again
            raise EngineError(f"{NAME}: {_words(answer)}")
        return answer

    def _cancel(self) -> None:
        """Cancel what the worker decodes; an iterator closed early must not fail."""
        try:
            worker = self._live_worker()
            worker.send({"op": "cancel"})
            while self._answer(worker)["event"] == "step":
                pass
        except EngineError:
            self._stop()

    def _live_worker(self) -> WorkerProcess:
        if self._worker is None:
            if not self._entered:
                raise EngineError(f"the {NAME} worker does not run; start it with `with`")
            self._start()  # it died, and said so
        assert self._worker is not None
        return self._worker

    def _stop(self) -> None:
        worker, self._worker = self._worker, None
        self._loaded.clear()
        self._decoding = False
        if worker is not None:
            worker.close()


def _properties(words: Sequence[str]) -> dict[str, Any]:
    """Return properties of the device, NAME=VALUE each.

    >>> _properties(["KV_CACHE_PRECISION=f32", "INFERENCE_NUM_THREADS=2"])
    {'KV_CACHE_PRECISION': 'f32', 'INFERENCE_NUM_THREADS': 2}
    """
    pairs = [word.partition("=") for word in words]
    wrong = next((name for name, equals, _ in pairs if not equals), None)
    if wrong is not None:
        raise UsageError(f"--engine-args of openvino are NAME=VALUE, such as KV_CACHE_PRECISION=f32, got {wrong!r:.60}")
    return {name: int(value) if value.isdecimal() and len(value) < 20 else value for name, _, value in pairs}


def _longest_match(settings: DriverSettings) -> int | None:
    """Return N of OpenVINO's prompt lookup, which is vLLM's rule with matches of N tokens down to 1; None: none."""
    given = LOOKUP.fullmatch(settings.method or "")
    if settings.method is not None and given is None:
        raise UsageError(f"--method of openvino is prompt-lookup or prompt-lookup:N, got {settings.method!r:.60}")
    if settings.drafter is not None and given is None:
        return None
    words = () if settings.method is None else (settings.method,)
    rule = settings.lookup_rule("vllm", methods=words, method=settings.method)
    if rule is None:
        return None if given is None else int(given[1] or LONGEST)
    if rule["shortest"] != 1 or (given is not None and given[1] and int(given[1]) != rule["longest"]):
        method = settings.method or "prompt-lookup"
        raise UsageError(
            f"--drafter {settings.lookup} is not {method} of openvino, which matches N tokens down to 1: "
            "name prompt-lookup:vllm:1-N"
        )
    return rule["longest"]


def _tree_settings(tree: DynamicTree) -> dict[str, int]:
    """Return a dynamic tree as fields of `GenerationConfig`.

    >>> _tree_settings(DynamicTree(nodes=15, depth=5, beam=4))
    {'num_assistant_tokens': 15, 'tree_depth': 5, 'branching_factor': 4}
    """
    for name, given, only in (
        ("width", tree.children, tree.beam),
        ("min_probability", tree.min_probability, 0),
        ("budget", tree.budget, None),
        ("calibration", tree.calibration, None),
    ):
        if given != only:
            raise EngineError(f"{NAME} has no setting for {name} of a dynamic tree; it must be {only}")
    candidates = pool(depth=tree.depth, width=tree.beam)
    if tree.nodes > candidates:
        raise EngineError(
            f"a tree of depth {tree.depth} and branching {tree.beam} has {candidates} candidates; "
            f"{NAME} cannot verify {tree.nodes} of them"
        )
    return {"num_assistant_tokens": tree.nodes, "tree_depth": tree.depth, "branching_factor": tree.beam}


def _steps_of(answer: Mapping[str, Any], steps: list[int], *, plain: bool) -> Iterator[EngineStep]:
    """Yield an engine step's rows; `steps` counts the steps of every request.

    Raises:
        EngineError: a request ended without a token, which is what the engine does where its cache is too small.
    """
    for request, tokens, ended in answer["rows"]:
        if not tokens:
            raise EngineError(f"{NAME} gave up request {request} after {steps[request]} steps; raise its `cache_size`")
        prefill = steps[request] == 0
        steps[request] += 1
        yield EngineStep(
            request=request,
            committed=len(tokens),
            at_s=answer["at_s"],
            tokens=tuple(tokens),
            drafted=0 if plain or prefill else None,
            prefill=prefill,
            ended=ended,
        )


def _words(answer: Mapping[str, Any]) -> str:
    r"""Return an error's own words in one line, without the places in the engine's source.

    >>> _words({"message": "Exception from /src/utils.cpp:500:\nCould not find a model\n"})
    'Could not find a model'
    """
    lines = [line.strip() for line in str(answer.get("message", "")).splitlines() if line.strip()]
    return " ".join([line for line in lines if not line.startswith("Exception from ")] or lines)
