"""Medusa heads (Cai et al. 2024, arXiv 2401.10774): residual networks on the target's last feature.

* `drafter`: the heads and their files.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from executor.drafters.base.recipe import Recipe
from simulate.drafter_kinds import (
    DrafterKind,
    DrafterShape,
    Files,
    RandomWeights,
    Sizes,
    Training,
    heads_of,
)
from simulate.model_sizes.forward_pass import Forward
from simulate.model_sizes.hf_config import positive
from simulate.model_sizes.model_shape import Shape

TRUNCATED = "truncated_vocab_size"  # of vLLM's heads
_NAMES = re.compile(r"medusa_head\.|\d+\.\d+\.linear\.|blocks\.\d+\.layers\.\d+\.")


def medusa_shape(
    target: Shape, *, blocks: int = 1, draft_vocab: int | None = None, shared_head: bool = False
) -> DrafterShape:
    """Return Medusa heads: for each depth `blocks` residual blocks and an LM head, of its own unless it is shared.

    >>> target = Shape(layers=2, hidden=8, intermediate=16, heads=4, kv_heads=2, head_dim=2, vocab=32)
    >>> medusa_shape(target).level.weights
    320
    """
    block = (blocks, target.hidden, target.hidden)
    forward = Forward((), (draft_vocab or target.vocab, target.hidden), whole=(block,))
    return DrafterShape(forward, parallel=True, shared_head=shared_head)


def stated_shape(config: Mapping[str, Any], target: Shape | None) -> DrafterShape:
    """Return the heads of a Medusa or vLLM configuration; of a target's configuration, heads of one layer."""
    layers = "num_hidden_layers" if config.get("model_type") == "medusa" else "medusa_num_layers"
    if layers not in config:
        return medusa_shape(Shape.from_config(config))
    rows = None if config.get(TRUNCATED) is None else positive(TRUNCATED, config[TRUNCATED])
    shared, blocks = config.get("original_lm_head", config.get("version") == "2"), positive(layers, config[layers])
    shape = medusa_shape(heads_of(target), blocks=blocks, draft_vocab=rows, shared_head=bool(shared))
    heads = "num_heads" if config.get("model_type") == "medusa" else "medusa_num_heads"
    return replace(shape, longest=positive(heads, config[heads]) if heads in config else None)


def recognise(names: Mapping[str, Sequence[int]]) -> bool:
    """See `Files.recognise`."""
    return any(map(_NAMES.match, names))


# §2.2.1: λ_k = 0.8^k, backbone frozen; the rest from the project's training script.
MEDUSA1 = Recipe("medusa1", "medusa", depths=5, hard_ce_weight=1.0, decay=0.8)

# §2.2.2, and the settings of its second stage: heads at four times the rate, LoRA on every linear layer.
# For self-distilled text the settings are coefficient 0.01, ramp sine, lm_kl, learning rate 1e-4, warm-up 20.
MEDUSA2 = replace(
    MEDUSA1,
    name="medusa2",
    coefficient=0.2,
    lm_weight=1.0,
    learning_rate=5e-4,
    heads_factor=4.0,
    warmup=40,
    trainable="backbone",
)

ENTRY = DrafterKind(
    "medusa",
    "Medusa heads",
    words=("medusa",),
    fields=("medusa_num_heads", "medusa_num_layers"),
    parallel=True,
    sizes=Sizes(stated_shape, any_vocabulary=True),
    files=Files(
        recognise,
        read=f"{__name__}.drafter:read_medusa",
        write=f"{__name__}.drafter:medusa_content",
        layouts=("medusa-v1", "medusa-v2", "vllm-medusa"),
        needs=("0.0.linear.weight",),
        names=("medusa_lm_head.safetensors", "medusa_lm_head.pt"),
        known_as="the project's own files, full Medusa-2 models, vLLM's",
    ),
    training=Training((MEDUSA1, MEDUSA2), f"{__name__}.drafter:untrained", fields=("layers", "own_output")),
    random=RandomWeights("medusa:K", f"{__name__}.drafter:random_heads", number="heads", most=64),
    reads=f"{__name__}.drafter:weights_read",
)
