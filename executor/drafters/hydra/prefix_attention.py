"""Hydra++'s prefix attention (Ankner et al. 2024): a decoder layer over the target's features, before the heads."""

from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from executor.drafters.base.decoder_layer import Attend, Layer


class Prefix(Layer):
    """The layer: causal, normalised before and after."""

    def __init__(self, config: LlamaConfig) -> None:
        """Make an untrained one-layer Llama without embeddings."""
        super().__init__(config)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def read(self, features: Tensor, positions: Tensor, attention: Attend) -> Tensor:
        """Map features (b, tokens, hidden) to the inputs of the heads."""
        out: Tensor = self.norm(self(features, self.input_layernorm(features), positions, attention))
        return out
