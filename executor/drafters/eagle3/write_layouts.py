"""Write EAGLE-3 checkpoints in the layouts of the reference, vLLM, SpecForge and speculators."""

from typing import Any

import torch
from torch import Tensor

from executor.checkpoints.tensors.layer_config import SCALED, fields, is_scaled
from executor.checkpoints.tensors.lazy_tensors import STORED_LAYER, layer_name, named
from executor.checkpoints.tensors.write_tensors import Written, refuse_lost
from executor.drafters.eagle3.drafter import Eagle3
from executor.drafters.eagle3.read_checkpoint import ARCHITECTURE, INPUTS, OUTPUTS, convention_of
from executor.target.positions import FULL, SLIDING
from executor.target.target_model import Target
from treeopt.errors import ExecutorError


def eagle3_content(drafter: Eagle3, layout: str | None, target: Target | None, name: str) -> Written:
    """Return the file contents for EAGLE-3; without a layout, the reference's names in safetensors.

    The reference's own code always reads the layers (2, L // 2, L - 3) of a target of L layers, and refuses scaled
    rotary positions as transformers writes them today: its layout cannot express others.

    Raises:
        ExecutorError: the layout cannot express this drafter.
    """
    layers = None if target is None else int(target.model.config.get_text_config().num_hidden_layers)
    _check_expressible(drafter, layout, layers)
    layer = STORED_LAYER if layout in ("eagle3-vllm", "speculators-eagle3") else "midlayer."
    tensors = named(drafter, lambda name: layer_name(name).replace(STORED_LAYER, layer, 1))
    tensors |= vocabulary_tensors(drafter.draft_ids, drafter.vocabulary)
    file = "pytorch_model.bin" if layout == "eagle3" else "model.safetensors"
    facts = {
        "kind": drafter.kind,
        "aux_layers": list(drafter.taps),
        "aux_convention": INPUTS,
        "norm_before_residual": drafter.norm_before_residual,
        "norm_output": drafter.feeds_normed,
    }
    config = _reference(drafter, len(tensors["lm_head.weight"]))
    if layout == "eagle3-specforge":
        config = _specforge(drafter, config)
    elif layout == "eagle3-vllm":
        config |= {"architectures": ["Eagle3LlamaForCausalLM"], **_variants(drafter)}
    elif layout == "speculators-eagle3":
        config = _speculators(drafter, len(tensors["lm_head.weight"]), target, name)
    return Written(file, tensors, config, facts)


def _check_expressible(drafter: Eagle3, layout: str | None, layers: int | None) -> None:
    norms, taps = _variants(drafter), drafter.taps
    positions = {str(sorted((config.rope_parameters or {}).items())) for config in drafter.configs}
    if len(positions) > 1 or len({window for window in drafter.windows if window is not None}) > 1:
        raise ExecutorError("no layout expresses layers whose positions or windows differ")
    if layout is not None and list(taps) != sorted(taps):
        raise ExecutorError(f"{layout} cannot express layers {taps}: engines read them in the target's order")
    others = layers is not None and taps != (2, layers // 2, layers - 3)
    ambiguous = layers is not None and convention_of([tap - 1 for tap in taps], layers) != OUTPUTS
    unsupported = {
        "eagle3": norms | {f"layers {taps}": others, SCALED: is_scaled(drafter.config)} | drafter.extensions,
        "eagle3-specforge": {
            **drafter.extensions,
            **{name: norms[name] for name in ("norm_before_residual", "norm_output")},
            "a first tap at the embeddings": 0 in taps,
            f"layers {taps}, whose numbers there are those of EAGLE's usual inputs": ambiguous,
        },
    }
    refuse_lost(layout or "", unsupported.get(layout or "", {}), ": write speculators-eagle3")


def _reference(drafter: Eagle3, drafted: int) -> dict[str, Any]:
    """Return the reference's config.json for an LM head of `drafted` tokens."""
    wide = drafter.target_hidden
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **_layer_fields(drafter),
        "vocab_size": drafter.vocabulary,
        "draft_vocab_size": drafted,
        # With this field the reference's code takes no embeddings from the target.
        **({"target_hidden_size": wide} if wide != drafter.config.hidden_size else {}),
        "eagle_aux_hidden_state_layer_ids": list(drafter.taps),
        **({} if drafter.taps else {"eagle_config": {"use_aux_hidden_state": False}}),
        "torch_dtype": "",
    }


def _layer_fields(drafter: Eagle3) -> dict[str, Any]:
    """Return the fields of the layers."""
    window = next((window for window in drafter.windows if window is not None), None)
    types = [FULL if own is None else SLIDING for own in drafter.windows]
    sliding = {} if window is None else {"sliding_window": window, "layer_types": types}
    return fields(drafter.config) | {"num_hidden_layers": len(drafter.configs)} | sliding


def _specforge(drafter: Eagle3, reference: dict[str, Any]) -> dict[str, Any]:
    """Return SpecForge's config.json from the reference's; its `eagle_config` numbers layers by their outputs."""
    config = {key: value for key, value in reference.items() if key != "eagle_aux_hidden_state_layer_ids"}
    outputs = [tap - 1 for tap in drafter.taps]
    return config | {
        "architectures": [ARCHITECTURE],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": outputs, "use_aux_hidden_state": True},
        "fc_norm": drafter.norms == "fc",
        "norm_before_fc": drafter.norms == "input",
    }


def _speculators(drafter: Eagle3, drafted: int, target: Target | None, name: str) -> dict[str, Any]:
    kind = "qwen3" if drafter.head_norms else "llama"
    layer = {"model_type": kind, **_layer_fields(drafter), "vocab_size": drafter.vocabulary}
    verifier = [] if target is None else [type(target.model).__name__]
    method = {"proposal_type": "greedy", "speculative_tokens": 3, "accept_tolerance": 0.0, "verifier_accept_k": 1}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": {"name_or_path": name, "architectures": verifier},
        },
        "transformer_layer_config": layer,
        "draft_vocab_size": drafted,
        "target_hidden_size": drafter.target_hidden,
        "eagle_aux_hidden_state_layer_ids": list(drafter.taps),
        **({} if drafter.taps else {"eagle_config": {"use_aux_hidden_state": False}}),
        **_variants(drafter),
        "tie_word_embeddings": False,
        "torch_dtype": "",
    }


def _variants(drafter: Eagle3) -> dict[str, bool]:
    return {
        "norm_before_residual": drafter.norm_before_residual,
        "norm_output": drafter.feeds_normed,
        "fc_norm": drafter.norms == "fc",
        "norm_before_fc": drafter.norms == "input",
    }


def vocabulary_tensors(ids: Tensor | None, known: int) -> dict[str, Tensor]:
    """Return `d2t` and `t2d` for the drafted tokens; {} if all tokens are drafted.

    >>> vocabulary_tensors(torch.tensor([1, 3]), 4)["d2t"]
    tensor([1, 2])
    """
    if ids is None:
        return {}
    ids = ids.cpu()
    chosen = torch.zeros(known, dtype=torch.bool)
    chosen[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": chosen}
