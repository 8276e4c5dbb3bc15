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
from treeopt.engines.base import Export, Profile

ENGINES: Mapping[str, Callable[..., Export]] = {
    "medusa": medusa.export,
    "sglang": sglang.export,
    "vllm": vllm.export,
}

PROFILES: Mapping[str, Profile] = {
    "treeopt": Profile("treeopt's own loop", ()),
    "medusa": Profile(medusa.ENGINE, medusa.constraints(heads=None)),
    "hydra": Profile(hydra.ENGINE, hydra.CONSTRAINTS),
    "eagle-1": Profile(eagle.ENGINE, eagle.CONSTRAINTS),
    "sequoia": Profile(sequoia.SEQUOIA, sequoia.CONSTRAINTS),
    "umbrella": Profile(sequoia.UMBRELLA, sequoia.CONSTRAINTS),
    "specinfer": Profile(specinfer.ENGINE, specinfer.CONSTRAINTS),
    "tensorrt-llm-medusa": Profile(tensorrt_llm.MEDUSA, tensorrt_llm.MEDUSA_CONSTRAINTS),
    "tensorrt-llm-eagle": Profile(tensorrt_llm.EAGLE, tensorrt_llm.EAGLE_CONSTRAINTS),
    "vllm-0.20": Profile(vllm.ENGINE_WITH_TREES, vllm.TREES),
    "vllm": Profile(vllm.ENGINE, vllm.CONSTRAINTS),
    "sglang": Profile(sglang.ENGINE, sglang.CHAINS),
    "mlc": Profile(mlc.ENGINE, mlc.CONSTRAINTS),
    "llama.cpp": Profile(llama_cpp.ENGINE, llama_cpp.CONSTRAINTS),
    "lmdeploy": Profile(lmdeploy.ENGINE, lmdeploy.CONSTRAINTS),
    "tgi": Profile(tgi.ENGINE, tgi.CONSTRAINTS),
    "transformers": Profile(transformers.ENGINE, transformers.CONSTRAINTS),
}
"""What each engine can run of static trees. A drafter of n heads also drafts no deeper than n."""
