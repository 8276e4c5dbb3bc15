"""PARD: a small language model that drafts all tokens in one forward, by mask tokens.

* `drafter`: its step, and its files.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from executor.drafters.base.recipe import Recipe
from executor.drafters.language_model import ENTRY as LANGUAGE_MODEL
from executor.drafters.language_model import stated_shape as sequential
from simulate.drafter_kinds import DrafterKind, DrafterShape, Files, Sizes, Training
from simulate.model_sizes.forward_pass import Forward
from simulate.model_sizes.model_shape import Shape

SLOTS = 8  # depths that are learnt (PARD's own configurations); it may draft more
MASKS = ("pard_token", "ptd_token_id")


def stated_shape(config: Mapping[str, Any], target: Shape | None) -> DrafterShape:
    """Return the model's forward, once for all depths."""
    return replace(sequential(config, target), slots=SLOTS, deeper=(Forward(()),))


# arXiv 2504.18583, and the project's training script (AMD-AGI/PARD): eight depths of equal weight, of whose anchors
# 0.7^(k - 1) are kept at depth k, at least 0.2; a constant rate of 3e-5 for a trained model.
PARD = Recipe(
    "pard",
    "pard",
    depths=SLOTS,
    layers=2,
    hard_ce_weight=1.0,
    coefficient=1 / SLOTS,
    depth_share=0.7,
    learning_rate=3e-5,
    warmup=0.0,
    schedule="constant",
)

ENTRY = DrafterKind(
    "pard",
    "PARD",
    fields=MASKS,
    parallel=True,
    sizes=Sizes(stated_shape, own_config=True, any_width=True),
    files=Files(
        lambda names: False,
        read=f"{__name__}.drafter:read_pard",
        write=f"{__name__}.drafter:pard_content",
        known_as="AMD's and vLLM's: a whole language model with `pard_token`",
        whole=True,
    ),
    training=Training(
        (PARD,),
        f"{__name__}.drafter:untrained",
        fields=("layers", "depth_share"),
        resumed=f"{__name__}.drafter:resumed",
        begins_from=(LANGUAGE_MODEL.name,),
    ),
    reads=LANGUAGE_MODEL.reads,
)
