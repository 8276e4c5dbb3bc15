"""Configurations of EAGLE and EAGLE-3 drafters: layers, windows, fused features, vocabulary. Kinds that have no price.

A drafter's layers are Llama's, whatever `model_type` was copied from its target. The fields are those of the projects,
vLLM, SGLang, SpecForge, speculators, ModelOpt and NeMo Automodel.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulate.model_sizes.hf_config import EXPERT_FIELDS, FAMILIES, LATENT_FIELDS, positive
from simulate.model_sizes.model_shape import Shape
from treeopt.errors import CostError

NESTED = ("transformer_layer_config", "model")  # where speculators and vLLM have the layer's fields
VOCABULARIES = ("draft_vocab_size", "truncated_vocab_size")
TAPS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "layer_ids")
SLIDING = "sliding_attention"
_NAMED = ("architectures", "speculators_model_type", "model_type")
# Part of a class name or field -> the kind of drafter, none of which drafts level by level as EAGLE does.
_UNPRICED = {
    "peagle": "P-EAGLE",
    "paralleldrafting": "parallel drafting",
    "dflash": "DFlash",
    "dspark": "DSpark",
    "domino": "Domino",
    "jetspec": "JetSpec",
    "mlpspeculator": "an MLP speculator",
    "arctic": "an Arctic speculator",
    "redrafter": "ReDrafter",
    "mtp": "an MTP head",
    "nextn": "an MTP head",
}


@dataclass(frozen=True)
class EagleConfig:
    """The sizes of an EAGLE or EAGLE-3 drafter that its configuration states.

    Attributes:
        layer: sizes of a decoder layer, with the vocabulary of the target.
        layers: decoder layers.
        window: positions that every layer sees; None if one of them sees all.
        vocabulary: tokens that the LM head scores.
        features: width of the target's features side by side that `fc` merges; 0: no `fc`; None: not stated.
    """

    layer: Shape
    layers: int = 1
    window: int | None = None
    vocabulary: int | None = None
    features: int | None = None


def eagle_config(config: Mapping[str, Any], target: Shape | None = None) -> EagleConfig:
    """Return the sizes that a drafter's configuration states; a target's, those of one layer like the target's.

    Args:
        config: the content of a config.json.
        target: sizes of the target, for the width of its features.

    Raises:
        CostError: a field is wrong, missing or not covered; names it.

    >>> llama = {"model_type": "kimi_k2", "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 4}
    >>> drafter = llama | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 2, "vocab_size": 32}
    >>> eagle_config(drafter).layers
    2
    """
    inner = layer_fields(config)
    if not names_drafter(config):
        return EagleConfig(Shape.from_config(inner), vocabulary=_vocabulary(config))
    shape = Shape.from_config(_like_llama(config, inner))
    return EagleConfig(
        shape,
        layers=shape.layers,
        window=_window(inner, shape.layers),
        vocabulary=_vocabulary(config),
        features=_features(config, shape if target is None else target),
    )


def layer_fields(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a layer: those of a nested part if the configuration has one."""
    parts = (config.get(name) for name in NESTED if "hidden_size" not in config)
    return next((part for part in parts if isinstance(part, Mapping)), config)


def names_drafter(config: Mapping[str, Any]) -> bool:
    """Return True if a configuration states that it is an EAGLE's, so that its layers are the drafter's own."""
    fields = ("transformer_layer_config", "eagle_config", *TAPS[:2])
    return "eagle" in _words(config) or any(config.get(field) is not None for field in fields)


def check_priced(config: Mapping[str, Any]) -> None:
    """Raise CostError for kinds of drafters that have no price.

    >>> check_priced({"architectures": ["DFlashDraftModel"]})
    Traceback (most recent call last):
    treeopt.errors.CostError: architectures: DFlash has no price: give the configuration of an EAGLE, ... drafter
    """
    words = _words(config) + (" paralleldrafting" if config.get("parallel_drafting") else "")
    kind = next((kind for part, kind in _UNPRICED.items() if part in words), None)
    kind = "DFlash" if kind is None and config.get("dflash_config") else kind
    if kind is not None:
        field = next((name for name in ("parallel_drafting", "dflash_config") if config.get(name)), "architectures")
        raise CostError(
            f"{field}: {kind} has no price: give the configuration of an EAGLE, EAGLE-3, Medusa or Hydra drafter"
        )


def _words(config: Mapping[str, Any]) -> str:
    """Return what the configuration calls its class, in small letters."""
    words = " ".join(str(config.get(name) or "") for name in _NAMED)
    return words.lower().replace("-", "").replace("_", "")


def _like_llama(config: Mapping[str, Any], inner: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a layer's fields without what was copied from a target of another family.

    Classes of Llama's layers have neither experts nor latent attention, whatever fields their configurations have.
    """
    classes = config.get("architectures")
    llama = "llama" in str(classes).lower() or inner is not config
    if not llama and any(inner.get(field) for field in EXPERT_FIELDS):
        raise CostError("an EAGLE drafter with experts has no price")
    copied = (*EXPERT_FIELDS, *LATENT_FIELDS) if llama else ()
    kind = inner.get("model_type")
    known = kind in FAMILIES and FAMILIES[kind].experts is None
    return {name: value for name, value in inner.items() if name not in copied} | (
        {} if known else {"model_type": "llama"}
    )


def _window(inner: Mapping[str, Any], layers: int) -> int | None:
    """Return the window of the layers, counted from the drafter's own first one; None if one of them has none."""
    kinds = inner.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) < layers or any(kind != SLIDING for kind in kinds[:layers]):
        return None
    return positive("sliding_window", inner.get("sliding_window"))


def _vocabulary(config: Mapping[str, Any]) -> int | None:
    """Return the tokens of the LM head; None if the configuration does not state them."""
    stated = ((name, config.get(name)) for name in VOCABULARIES)
    return next((positive(name, value) for name, value in stated if value is not None), None)


def _features(config: Mapping[str, Any], target: Shape) -> int | None:
    """Return the width of the features that `fc` merges; 0 without `fc`."""
    nested = config.get("eagle_config")
    parts = [config, nested if isinstance(nested, Mapping) else {}]
    if any(part.get("use_aux_hidden_state") is False for part in parts):
        return 0
    lists = [part.get(name) for part in parts for name in TAPS if part.get(name)]
    taps = next((len(ids) for ids in lists if isinstance(ids, list)), None)
    stated = config.get("num_aux_hidden_states")
    taps = positive("num_aux_hidden_states", stated) if taps is None and stated is not None else taps
    width = config.get("target_hidden_size")
    return (3 if taps is None else taps) * (target.hidden if width is None else positive("target_hidden_size", width))
