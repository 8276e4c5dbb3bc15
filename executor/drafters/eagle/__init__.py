"""EAGLE, EAGLE-2, HASS and CORAL: one decoder layer over pairs of embedding and feature.

* `drafter`: the network.
* `lm_head_router`: CORAL's router over the LM head.
* `checkpoint`: files of the reference, vLLM and speculators.
* `sizes`: what configurations of EAGLE and EAGLE-3 drafters state.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from executor.drafters.base.recipe import Recipe
from executor.drafters.eagle.sizes import stated_shape
from simulate.model_sizes.drafter_kinds import DrafterKind, Files, RandomWeights, Sizes, Training

_LAYER = re.compile(r"layers\.\d+\.")


def recognise(names: Mapping[str, Sequence[int]]) -> bool:
    """See `Files.recognise`; EAGLE-3 is asked for first."""
    return any(name.startswith(("fc.", "router.")) for name in names) and any(map(_LAYER.match, names))


# Li et al. 2024 (arXiv 2401.15077), §4.1 for the weights; noise, betas, clipping and the 2000 steps of warm-up in
# 800 000 from the project's training script.
EAGLE = Recipe(
    "eagle",
    "eagle",
    depths=1,
    smooth_l1_weight=1.0,
    soft_ce_weight=0.1,
    noise="uniform",
    noise_scale=0.2,
    learning_rate=3e-5,
    beta2=0.95,
    warmup=0.0025,
    schedule="linear",
    clip=0.5,
    clip_by="value",
)

# Zhang et al. 2024 (arXiv 2408.15766): three steps. The published schedule has two stages: 40 epochs of this with
# top_k_weight 0, then 10 more from there at a learning rate of 1e-5.
HASS = replace(EAGLE, name="hass", depths=3, top_k_weight=1.0, detached=True, warmup=0.01)

# Weng et al. 2025 (arXiv 2502.16880): HASS's steps with representations aligned across them. csra_weight is 0.2 for
# Qwen2.5-7B, 0.15 for Llama-3-8B, 0.1 or less for larger ones: about what makes it as large as the regression.
CORAL = replace(HASS, name="coral", smooth_l1_weight=0.5, top_k_weight=0.0, csra_weight=0.2)

# The same paper's second stage: only the router learns. The paper gives no settings of the optimiser.
CORAL_ROUTER = replace(
    HASS,
    name="coral-router",
    smooth_l1_weight=0.0,
    soft_ce_weight=0.0,
    top_k_weight=0.0,
    router_ce_weight=1.0,
    noise="none",
    learning_rate=1e-3,
    trainable="router",
    router_groups=16,
)

ENTRY = DrafterKind(
    "eagle",
    "EAGLE",
    words=("eagle",),
    priority=-2,
    sizes=Sizes(stated_shape),
    files=Files(
        recognise,
        read=f"{__name__}.checkpoint:read_eagle",
        write=f"{__name__}.checkpoint:eagle_content",
        layouts=("eagle", "vllm"),
        known_as="the reference's, vLLM's (also with the bias in the embeddings), speculators'",
    ),
    training=Training(
        (EAGLE, HASS, CORAL, CORAL_ROUTER),
        f"{__name__}.drafter:untrained",
        fields=("detached", "router_ce_weight", "router_groups", "active_groups"),
        resumed=f"{__name__}.drafter:resumed",
    ),
    random=RandomWeights("eagle", f"{__name__}.drafter:random_layer"),
    reads=f"{__name__}.drafter:weights_read",
)
