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
from typing import Any

from treeopt.engines.connections.worker_driver import GRACE_S, StepWorker
from treeopt.engines.driver import Draft, DriverSettings, EngineRequest, EngineStep, model_name
from treeopt.engines.export import LONGEST_MATCH
from treeopt.engines.openvino import ENTRY, TREES
from treeopt.errors import EngineError, UsageError
from treeopt.policies import DynamicTree

NAME = "OpenVINO GenAI"
DEVICE = "CPU"  # OpenVINO's name
LOOKUP = re.compile(r"prompt-lookup(?::([1-9]\d?))?")
PLAIN, DRAFTING = "plain", "drafting"


class OpenVino(StepWorker):
    """OpenVINO GenAI with a draft model, with prompt lookup, or with neither; see `Driver`."""

    tree_requests = TREES.requests or sys.maxsize
    alive, longest = 2, 0
    name, install = NAME, "pip install openvino-genai==2026.4.1.0"
    adapter = Path(__file__).with_name("worker.py")

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
        super().__init__(settings.interpreter, timeout_s=settings.timeout_s, grace_s=grace_s)
        self._model = settings.target
        self._draft_model = None if self._lookup_ngram else settings.drafter
        self._eagle3 = False  # known once the drafter is loaded

    @property
    def meta(self) -> Mapping[str, Any]:
        """The engine's name, its versions once it has started, and what it was started with."""
        return {
            "name": "openvino",
            **self.hello,
            "model": model_name(self._model),
            "draft_model": None if self._draft_model is None else model_name(self._draft_model),
            "lookup_ngram": self._lookup_ngram,
            "device": DEVICE,
            "properties": self._properties,
        }

    def decode(self, requests: Sequence[EngineRequest], *, draft: Draft, concurrency: int) -> Iterator[EngineStep]:
        """See `Driver.decode`; the engine is loaded at the first call that needs it.

        Raises:
            EngineError: see `Driver.decode`; or another iterator of this driver is still open.
        """
        settings = self._settings(draft)
        if isinstance(draft, DynamicTree) and min(concurrency, len(requests)) > self.tree_requests:
            raise EngineError(f"{NAME} fails where one of several requests with trees ends; decode with concurrency 1")
        pipeline = DRAFTING if settings else PLAIN
        return self.steps(
            requests, pipeline=pipeline, concurrency=concurrency, settings=settings, plain=pipeline == PLAIN
        )

    def _settings(self, draft: Draft) -> dict[str, int]:
        """Return the fields of `GenerationConfig` for a draft; none for plain decoding."""
        if draft == 0:
            return {}
        if self._draft_model is None and self._lookup_ngram is None:
            raise EngineError(
                f"{NAME} needs a drafter for a draft of {draft}: give --engine-drafter, or --method prompt-lookup"
            )
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

    @property
    def method(self) -> str:
        """How it drafts, in the word of the export; known once the drafter is loaded."""
        return "prompt-lookup" if self._lookup_ngram else "eagle3" if self._eagle3 else "draft-model"

    def launch(self, draft: Draft) -> str:
        """See `Driver.launch`."""
        return DRAFTING if self._settings(draft) else PLAIN

    def load_order(self, pipeline: str) -> dict[str, Any]:
        """See `StepWorker`."""
        lookup = pipeline == DRAFTING and self._lookup_ngram is not None
        return {
            "model": self._model,
            "draft_model": self._draft_model if pipeline == DRAFTING else None,
            "device": DEVICE,
            "properties": {**self._properties, **({"prompt_lookup": True} if lookup else {})},
        }

    def loaded(self, answer: Mapping[str, Any]) -> None:
        """See `StepWorker`."""
        self._eagle3 |= bool(answer.get("eagle3"))

    def check(self, order: Mapping[str, Any]) -> None:
        """See `StepWorker`."""
        if "tree_depth" in order["settings"] and not self._eagle3:
            raise EngineError(f"{NAME} drafts trees with an EAGLE-3 drafter only, and {self._draft_model} is none")


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
    if settings.drafter is not None and given is None and settings.method in (None, *ENTRY.methods):
        return None
    if settings.method is not None and given is None:
        raise UsageError(
            f"--method of openvino without a drafter is prompt-lookup or prompt-lookup:N, got {settings.method!r:.60}"
        )
    words = () if settings.method is None else (settings.method,)
    rule = settings.lookup_rule("vllm", methods=words, method=settings.method)
    if rule is None:
        return None if given is None else int(given[1] or LONGEST_MATCH)
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
        ("calibration", tree.calibration, None),
    ):
        if given != only:
            raise EngineError(f"{NAME} has no setting for {name} of a dynamic tree; it must be {only}")
    return {"num_assistant_tokens": tree.nodes, "tree_depth": tree.depth, "branching_factor": tree.beam}
