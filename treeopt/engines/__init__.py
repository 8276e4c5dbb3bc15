"""Engines: the trees that each runs, its export of a plan, and the driver that runs it.

* `export`: what all exporters share: their result, the planned entries, the replacement of a tree that breaks a rule.
* `dynamic_trees`: what exporters of dynamic trees share: the three settings, and how each engine counts them.
* `llama_cpp`, `lmdeploy`, `medusa`, `openai`, `openvino`, `sglang`, `tensorrt_llm`, `transformers`, `vllm`: one engine
  each: its rules and exporter, and its driver if treeopt runs it.
* `driver`: the interface of every driver, and the values that pass through it: requests, draft settings, steps.
* `driver_settings`: a driver made from settings in words.
* `connections`: processes of engines, and clients of their servers.
* `model_files`: name and hash of the models that an engine loads.
* `drafting_methods`: the engines' methods of drafting, and the kinds of drafters that each runs.
* `engine_rules`: rules of the engines without an exporter: Hydra, EAGLE-1, Sequoia, UMbreLLa, SpecInfer, TensorRT-LLM
  with static trees, MLC-LLM, TGI.
* `imposed_acceptance`: acceptance rates of a trace, for llama.cpp, SGLang and vLLM to simulate.
* `rules_for_trace`: an engine's rules for trees of one trace: its own, and the drafter's number of heads.

`treeopt.constraints.broken` returns the rule that a tree breaks.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from treeopt.engines.drafting_methods import METHODS as METHODS
from treeopt.engines.drafting_methods import method_for as method_for
from treeopt.engines.engine_rules import RULES_WITHOUT_EXPORTER
from treeopt.engines.export import EngineRules, Export


def _engine(name: str) -> Any:
    """Import the module of an engine."""
    return import_module(f"treeopt.engines.{name}")


llama_cpp = _engine("llama_cpp")
lmdeploy = _engine("lmdeploy")
medusa = _engine("medusa")
openvino = _engine("openvino")
sglang = _engine("sglang")
tensorrt_llm = _engine("tensorrt_llm")
transformers = _engine("transformers")
vllm = _engine("vllm")

ENGINES: Mapping[str, Callable[..., Export]] = {
    "llama.cpp": llama_cpp.export,
    "lmdeploy": lmdeploy.export,
    "medusa": medusa.export,
    "openvino": openvino.export,
    "sglang": sglang.export,
    "tensorrt-llm": tensorrt_llm.export,
    "transformers": transformers.export,
    "vllm": vllm.export,
}

# Engine name, as in `--engine` -> its rules. A drafter with n heads also drafts no deeper than n.
ENGINE_RULES: Mapping[str, EngineRules] = {
    **RULES_WITHOUT_EXPORTER,
    "medusa": EngineRules(medusa.ENGINE, medusa.constraints(heads=None)),
    "vllm-0.20": EngineRules(vllm.ENGINE_WITH_TREES, vllm.TREES),
    "vllm": EngineRules(vllm.ENGINE, vllm.CONSTRAINTS),
    "sglang": EngineRules(sglang.ENGINE, sglang.CHAINS, sglang.TREES.cannot_run),
    "llama.cpp": EngineRules(llama_cpp.ENGINE, llama_cpp.CONSTRAINTS),
    "lmdeploy": EngineRules(lmdeploy.ENGINE, lmdeploy.CONSTRAINTS),
    "openvino": EngineRules(openvino.ENGINE, openvino.CONSTRAINTS, openvino.TREES.cannot_run),
    "tensorrt-llm": EngineRules(tensorrt_llm.ENGINE, tensorrt_llm.CONSTRAINTS, tensorrt_llm.TREES.cannot_run),
    "transformers": EngineRules(transformers.ENGINE, transformers.CONSTRAINTS),
}
