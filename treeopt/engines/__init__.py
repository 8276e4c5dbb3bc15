"""Engines: export a plan to one, and the rules on trees of each of 19.

* `export`: what all exporters share: their result, the planned entries, the replacement of a tree that breaks a rule.
* `dynamic_trees`: what exporters of dynamic trees share: the three settings, and how each engine counts them.
* `llama_cpp`, `lmdeploy`, `medusa`, `openvino`, `sglang`, `tensorrt_llm`, `transformers`, `vllm`: exporters, each with
  its engine's rules.
* `engine_rules`: rules of the engines without an exporter: Hydra, EAGLE-1, Sequoia, UMbreLLa, SpecInfer, TensorRT-LLM
  with static trees, MLC-LLM, TGI.
* `imposed_acceptance`: acceptance rates of a trace, for llama.cpp, SGLang and vLLM to simulate.
* `rules_for_trace`: an engine's rules for trees of one trace: its own, and the drafter's number of heads.

`treeopt.constraints.broken` returns the rule that a tree breaks.
"""

from collections.abc import Callable, Mapping

from treeopt.engines import llama_cpp, lmdeploy, medusa, openvino, sglang, tensorrt_llm, transformers, vllm
from treeopt.engines.engine_rules import RULES_WITHOUT_EXPORTER
from treeopt.engines.export import EngineRules, Export

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

# Engine name, as in `--format` -> its drafting methods with the kinds of treeopt's drafters that each runs; Medusa's
# code has only one.
METHODS: Mapping[str, Mapping[str, frozenset[str]]] = {
    "llama.cpp": llama_cpp.METHODS,
    "lmdeploy": lmdeploy.METHODS,
    "openvino": openvino.METHODS,
    "sglang": sglang.ALGORITHMS,
    "tensorrt-llm": tensorrt_llm.METHODS,
    "transformers": transformers.METHODS,
    "vllm": vllm.METHODS,
}

# Engine name, as in `--engine` -> its rules. A drafter with n heads also drafts no deeper than n.
ENGINE_RULES: Mapping[str, EngineRules] = {
    **RULES_WITHOUT_EXPORTER,
    "medusa": EngineRules(medusa.ENGINE, medusa.constraints(heads=None)),
    "vllm-0.20": EngineRules(vllm.ENGINE_WITH_TREES, vllm.TREES),
    "vllm": EngineRules(vllm.ENGINE, vllm.CONSTRAINTS),
    "sglang": EngineRules(sglang.ENGINE, sglang.CHAINS),
    "llama.cpp": EngineRules(llama_cpp.ENGINE, llama_cpp.CONSTRAINTS),
    "lmdeploy": EngineRules(lmdeploy.ENGINE, lmdeploy.CONSTRAINTS),
    "openvino": EngineRules(openvino.ENGINE, openvino.CONSTRAINTS),
    "tensorrt-llm": EngineRules(tensorrt_llm.ENGINE, tensorrt_llm.CONSTRAINTS),
    "transformers": EngineRules(transformers.ENGINE, transformers.CONSTRAINTS),
}


def method_for(engine: str | None, kind: object) -> str | None:
    """Return the engine's first drafting method for a kind of drafter; None where it has none, or needs no name.

    >>> method_for("vllm", "language-model"), method_for("vllm", "medusa")
    ('draft_model', None)
    """
    methods = METHODS.get(engine or "", {})
    return next((method for method, kinds in methods.items() if isinstance(kind, str) and kind in kinds), None)
