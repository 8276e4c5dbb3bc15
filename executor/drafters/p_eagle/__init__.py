"""P-EAGLE: EAGLE-3's layers, which draft all tokens in one forward by mask tokens.

* `drafter`: the network, and files of vLLM, SpecForge and speculators.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from executor.drafters.base.recipe import Recipe
from executor.drafters.eagle3 import stated_shape as sequential
from simulate.drafter_kinds import DrafterKind, DrafterShape, Files, Sizes, Training
from simulate.model_sizes.forward_pass import Forward
from simulate.model_sizes.model_shape import Shape

SLOTS = 8  # depths that are learnt (arXiv 2602.01469)


def stated_shape(config: Mapping[str, Any], target: Shape | None) -> DrafterShape:
    """Return EAGLE-3's forward, once for all depths."""
    return replace(sequential(config, target), slots=SLOTS, deeper=(Forward(()),))


def recognise(names: Mapping[str, Sequence[int]]) -> bool:
    """See `Files.recognise`."""
    return "mask_hidden" in names


# arXiv 2602.01469: eight depths, four layers, embeddings that learn. The optimiser's settings are EAGLE-3's.
PEAGLE = Recipe(
    "p-eagle",
    "p-eagle",
    depths=SLOTS,
    layers=4,
    kl_weight=1.0,
    depth_share=0.7,
    learning_rate=5e-5,
    beta2=0.95,
    warmup=0.015,
    schedule="linear",
    clip=0.5,
)

ENTRY = DrafterKind(
    "p-eagle",
    "P-EAGLE",
    words=("peagle", "paralleldrafting"),
    priority=1,
    sizes=Sizes(stated_shape, any_vocabulary=True),
    files=Files(
        recognise,
        read=f"{__name__}.drafter:read_peagle",
        write=f"{__name__}.drafter:peagle_content",
        layouts=("speculators-peagle",),
        needs=("mask_hidden", "fc.weight", "layers.0.hidden_norm.weight"),
        known_as="vLLM's, SpecForge's, speculators'",
    ),
    training=Training((PEAGLE,), f"{__name__}.drafter:untrained", fields=("layers", "depth_share", "draft_vocabulary")),
)
