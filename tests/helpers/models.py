"""Small models with random weights, flat enough that a broken mask or cache shows, and drafters for tests."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    GPTNeoXConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3Config,
)

from executor.drafters.base.drafter import Admitted, Committed, Forced
from executor.drafters.medusa.drafter import MedusaHeads
from executor.target.target_model import Target

VOCABULARY = 61
HIDDEN = 32
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.35,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SMALL, num_key_value_heads=2),
    "gpt_neox": GPTNeoXConfig(**SMALL),
    "qwen3": Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=8),
    "gemma": GemmaConfig(**SMALL, num_key_value_heads=1, head_dim=8),
}


def small_model(kind: str = "llama", *, seed: int = 0, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A model with random weights."""
    torch.manual_seed(seed)
    config = copy.deepcopy(CONFIGS[kind])  # the model keeps it, and reads there which attention to run
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=dtype)
    return model.eval()


def noisy(model: PreTrainedModel, noise: float = 0.05) -> PreTrainedModel:
    """A copy with noise on its weights: as a drafter it is right often, not always."""
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += noise * parameter.std() * torch.randn(parameter.shape, generator=generator)
    return model


def small_target(kind: str = "llama", *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Target:
    """The same, wrapped."""
    return Target(small_model(kind, seed=seed, dtype=dtype), name=kind)


def deep_target(layers: int = 7) -> Target:
    """A Llama of so many layers; of 7, the fewest of which EAGLE-3 reads its usual three."""
    torch.manual_seed(0)
    return Target(LlamaForCausalLM(LlamaConfig(**{**SMALL, "num_hidden_layers": layers, "num_key_value_heads": 2})))


def random_heads(
    *, heads: int = 5, seed: int = 0, own: bool = False, layers: int = 1, dtype: torch.dtype = torch.float32
) -> MedusaHeads:
    """Medusa heads with random weights."""
    torch.manual_seed(seed)
    drafter = MedusaHeads(heads, HIDDEN, layers=layers, vocabulary=VOCABULARY if own else None)
    for parameter in drafter.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return drafter.to(dtype).eval().requires_grad_(False)


def random_prompts(lengths: Sequence[int], *, seed: int = 0) -> list[list[int]]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def generated(model: PreTrainedModel, prompt: Sequence[int], new_tokens: int) -> list[int]:
    """What Hugging Face's greedy `generate` writes after one prompt."""
    tokens = torch.tensor([prompt])
    out = model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=new_tokens)
    return out[0, len(prompt) :].tolist()


@cache
def continued(
    lengths: tuple[int, ...], new_tokens: int, kind: str = "llama"
) -> tuple[list[list[int]], list[list[int]]]:
    """Random prompts, and what `generate` writes after each."""
    prompts = random_prompts(lengths, seed=3)
    return prompts, [generated(small_model(kind), prompt, new_tokens) for prompt in prompts]


@dataclass
class Told:
    """A drafter that knows each prompt's true continuation and is right with probability `share` at each level.

    The true token stands at rank `rank` of the candidates when it is told, and last when it is not. Rows must be
    filled in the order of the prompts (batch = number of prompts, no refill).
    """

    truth: Sequence[Sequence[int]]
    share: float = 1.0
    rank: int = 0
    kind: str = "told"
    taps: tuple[int, ...] = ()
    max_depth: int = 64
    abstains: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def cache_bytes(self, batch: int, capacity: int) -> int:
        return 0

    def begin(self, target: Target, batch: int, depth: int, length: int, capacity: int) -> dict[str, Tensor]:
        return {"done": torch.zeros(batch, dtype=torch.long), "level": torch.zeros(1, dtype=torch.long)}

    def lasting(self, state: dict[str, Tensor]) -> Sequence[Tensor]:
        return tuple(state.values())

    def admit(self, state: dict[str, Tensor], admitted: Admitted) -> None:
        state["done"][admitted.rows] = 0

    def extend(self, state: dict[str, Tensor], committed: Committed, *, view: int, all_fed: bool) -> None:
        state["done"] += committed.counts
        state["level"][:] = 0

    def level(self, state: dict[str, Tensor], tokens: Tensor, parents: Tensor) -> Tensor:
        scores = torch.rand(tokens.shape[0], 1, VOCABULARY, generator=self.generator)
        for row, truth in enumerate(self.truth):
            at = int(state["done"][row] + state["level"])
            true = truth[at] if at < len(truth) else 0
            told = torch.rand(1, generator=self.generator).item() < self.share
            order = scores[row, 0].argsort(descending=True)
            order = order[order != true].tolist()
            order.insert(self.rank if told else len(order), true)
            scores[row, 0, order] = torch.linspace(1, 0, VOCABULARY)
        state["level"] += 1
        return scores

    def teacher_forced(self, target: Target, tokens: Tensor, features: Tensor, depth: int) -> Iterator[Forced]:
        raise AssertionError("a told drafter is not recorded")
