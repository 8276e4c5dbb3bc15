"""DFlash, and what DSpark shares with it: a block of tokens from one forward over the target's features.

* `drafter`: the network.
* `checkpoint`: files of z-lab, SpecForge, vLLM and speculators.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from executor.drafters.base.recipe import Recipe
from executor.drafters.eagle import dense, layer_fields, plain_layers
from simulate.drafter_kinds import DrafterKind, DrafterShape, Files, Sizes, Training, decoder, heads_of
from simulate.model_sizes.forward_pass import Forward
from simulate.model_sizes.hf_config import OWN_SWEEP, positive
from simulate.model_sizes.model_shape import Shape
from treeopt.errors import CostError

LAYERS, SLOTS = 5, 16  # of the published drafters (arXiv 2602.06036)
PARTS = ("dflash_config", "dspark_config")  # where fields may be nested
BLOCKS = ("block_size", "dspark_block_size")
_WINDOWS = ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers")  # beside speculators' layers
_SORTS = ("projector_type", "attention_mode", "attention_modes")  # of SpecForge's drafters


def field_of(config: Mapping[str, Any], *names: str) -> Any:
    """Return the first of these fields in a configuration or its `PARTS`, which come first; None without."""
    nested = [config[part] for part in PARTS if isinstance(config.get(part), Mapping)]
    values = (part.get(name) for part in (*nested, config) for name in names)
    return next((value for value in values if value is not None), None)


def stated_shape(config: Mapping[str, Any], target: Shape | None) -> DrafterShape:
    """Return the forward of a block, and of the features that a step commits; without a configuration five layers."""
    slots, own = field_of(config, *BLOCKS), _states_layers(config)
    inner = {**layer_fields(config), **{name: config[name] for name in _WINDOWS if name in config}}
    plain_layers(inner, "a DFlash drafter")
    sorts = set(re.findall(r"\w+", str([field_of(config, name) for name in _SORTS])))
    if odd := sorts - {"None", "dflash", "dspark", "gqa", "mha"}:
        raise CostError(f"a DFlash drafter of kind {min(odd):.40} has no price: {OWN_SWEEP}")
    layer = Shape.from_config({**inner, "model_type": "qwen3"}) if own else dense(heads_of(target))
    layers = layer.layers if own else LAYERS
    vocabulary = positive("draft_vocab_size", field_of(config, "draft_vocab_size") or layer.vocab)
    ids = field_of(config, "target_layer_ids", "dspark_target_layer_ids", "aux_hidden_state_layer_ids") or [0] * layers
    wide = len(ids) * (layer.hidden if target is None else target.hidden)
    level = decoder(layer, tuple((layers, *matrix) for matrix in layer.layer_matrices.values()), vocabulary, layers)
    keys = (layers, 2 * layer.kv_heads * layer.head_dim, layer.hidden)
    stated = field_of(config, "markov_rank", "dspark_markov_rank")
    rank = positive("markov_rank", stated) if stated else 0
    block, anchor = positive("block_size", slots or SLOTS), field_of(config, "sample_from_anchor")
    return DrafterShape(
        level,
        parallel=True,
        slots=block,
        longest=block - 1 + bool(rank if anchor is None else anchor),
        opening=Forward((keys,), whole=((1, layer.hidden, wide),)),
        deeper=(Forward((), whole=((1, vocabulary, rank),) if rank else ()),),
    )


def _states_layers(config: Mapping[str, Any]) -> bool:
    return field_of(config, *BLOCKS) is not None or any(config.get(part) for part in PARTS)


def assumed(config: Mapping[str, Any] | None, target: Shape, drafter: DrafterShape) -> Sequence[str]:
    """See `Sizes.assumed`."""
    if config is not None and _states_layers(config):
        return ()
    return (f"the drafter is priced as {LAYERS} layers and blocks of {SLOTS}; give its config as --drafter",)


def recognise(names: Mapping[str, Sequence[int]]) -> bool:
    """See `Files.recognise`: one norm for the features of all layers, which normalise queries and keys."""
    return {"fc.weight", "hidden_norm.weight", "norm.weight", "layers.0.self_attn.q_norm.weight"} <= set(names)


# Slot k weighs exp(-(k - 1) / 4), 512 anchors a text (arXiv 2602.06036). Learning rate and warm-up are our choice.
DFLASH = Recipe(
    "dflash",
    "dflash",
    depths=SLOTS - 1,
    kl_weight=1.0,
    coefficient=math.exp(1 / 4),
    decay=math.exp(-1 / 4),
    anchors=512,
    layers=LAYERS,
    learning_rate=6e-4,
    warmup=0.04,
)

ENTRY = DrafterKind(
    "dflash",
    "DFlash",
    words=("dflash",),
    fields=PARTS,
    priority=1,
    parallel=True,
    sizes=Sizes(stated_shape, any_vocabulary=True, assumed=assumed),
    named=f"{__name__}.checkpoint:with_slots",
    files=Files(
        recognise,
        read=f"{__name__}.checkpoint:read_dflash",
        write=f"{__name__}.checkpoint:dflash_content",
        layouts=("speculators-dflash",),
        needs=("fc.weight", "hidden_norm.weight", "layers.0.self_attn.q_norm.weight"),
        known_as="z-lab's, SpecForge's, ModelOpt's and vLLM's, speculators'",
    ),
    training=Training((DFLASH,), f"{__name__}.drafter:untrained", fields=("layers", "anchors")),
)
