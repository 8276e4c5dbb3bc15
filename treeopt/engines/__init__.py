"""Engines that a plan can be handed to, and the rules of these and of others, by name; one project a file."""

from collections.abc import Callable, Mapping

from treeopt.engines import (
    eagle,
    hydra,
    llama_cpp,
    lmdeploy,
    medusa,
    mlc,
    sequoia,
    sglang,
    specinfer,
    tensorrt_llm,
    tgi,
    transformers,
    vllm,
)
from treeopt.engines.base import EngineProfile, Export

ENGINES: Mapping[str, Callable[..., Export]] = {
    "medusa": medusa.export,
    "sglang": sglang.export,
    "vllm": vllm.export,
}

PROFILES: Mapping[str, EngineProfile] = {
    "treeopt": EngineProfile("treeopt's own loop", ()),
    "medusa": EngineProfile(medusa.ENGINE, medusa.constraints(heads=None)),
    "hydra": EngineProfile(hydra.ENGINE, hydra.CONSTRAINTS),
    "eagle-1": EngineProfile(eagle.ENGINE, eagle.CONSTRAINTS),
    "sequoia": EngineProfile(sequoia.SEQUOIA, sequoia.CONSTRAINTS),
    "umbrella": EngineProfile(sequoia.UMBRELLA, sequoia.CONSTRAINTS),
    "specinfer": EngineProfile(specinfer.ENGINE, specinfer.CONSTRAINTS),
    "tensorrt-llm-medusa": EngineProfile(tensorrt_llm.MEDUSA, tensorrt_llm.MEDUSA_CONSTRAINTS),
    "tensorrt-llm-eagle": EngineProfile(tensorrt_llm.EAGLE, tensorrt_llm.EAGLE_CONSTRAINTS),
    "vllm-0.20": EngineProfile(vllm.ENGINE_WITH_TREES, vllm.TREES),
    "vllm": EngineProfile(vllm.ENGINE, vllm.CONSTRAINTS),
    "sglang": EngineProfile(sglang.ENGINE, sglang.CHAINS),
    "mlc": EngineProfile(mlc.ENGINE, mlc.CONSTRAINTS),
    "llama.cpp": EngineProfile(llama_cpp.ENGINE, llama_cpp.CONSTRAINTS),
    "lmdeploy": EngineProfile(lmdeploy.ENGINE, lmdeploy.CONSTRAINTS),
    "tgi": EngineProfile(tgi.ENGINE, tgi.CONSTRAINTS),
    "transformers": EngineProfile(transformers.ENGINE, transformers.CONSTRAINTS),
}
"""What each engine can run of static trees. A drafter of n heads also drafts no deeper than n."""
