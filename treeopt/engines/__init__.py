"""Engines: export a plan to one, and the rules on trees of each of 17.

* `export`: what all exporters share: their result, the planned entries, the replacement of a tree that breaks a rule.
* `medusa`, `sglang`, `vllm`: exporters, each with its engine's rules.
* `engine_rules`: rules of the engines without an exporter: Hydra, EAGLE-1, Sequoia, UMbreLLa, SpecInfer, TensorRT-LLM,
  MLC-LLM, llama.cpp, LMDeploy, TGI, transformers.
* `imposed_acceptance`: acceptance rates of a trace, for vLLM and SGLang to simulate.
* `rules_for_trace`: an engine's rules for trees of one trace: its own, and the drafter's number of heads.

`treeopt.constraints.broken` returns the rule that a tree breaks.
"""

from collections.abc import Callable, Mapping

from treeopt.engines import medusa, sglang, vllm
from treeopt.engines.engine_rules import RULES_WITHOUT_EXPORTER
from treeopt.engines.export import EngineRules, Export

ENGINES: Mapping[str, Callable[..., Export]] = {
    "medusa": medusa.export,
    "sglang": sglang.export,
    "vllm": vllm.export,
}

# Engine name, as in `--engine` -> its rules. A drafter with n heads also drafts no deeper than n.
ENGINE_RULES: Mapping[str, EngineRules] = {
    **RULES_WITHOUT_EXPORTER,
    "medusa": EngineRules(medusa.ENGINE, medusa.constraints(heads=None)),
    "vllm-0.20": EngineRules(vllm.ENGINE_WITH_TREES, vllm.TREES),
    "vllm": EngineRules(vllm.ENGINE, vllm.CONSTRAINTS),
    "sglang": EngineRules(sglang.ENGINE, sglang.CHAINS),
}
