"""EAGLE-3 on disk: the reference's `midlayer.*`, vLLM's and speculators' `layers.0.*`, with or without `model.`.

`fc.weight`, `norm.weight`, an LM head of its own (or none, if `draft_vocab_size` is null: then it is the target's),
`d2t` and `t2d`; perhaps embeddings, `fc_norm.{i}` or `input_norm`.
"""

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor

from executor.checkpoints.detect_layout import plain
from executor.checkpoints.eagle import EMBEDDINGS, FREQUENCIES, HEAD, one_layer
from executor.checkpoints.eagle3_d2t_vocabulary import drafted_ids, vocabulary_tensors
from executor.checkpoints.eagle3_target_layers import INPUTS, OUTPUTS, counted, taps_of
from executor.checkpoints.layer_config import SCALED, config_of, fields, is_scaled
from executor.checkpoints.tensors.lazy_tensors import Stored
from executor.checkpoints.tensors.parameter_names import LAYER, STORED_LAYER, filled, layer_name, named
from executor.checkpoints.tensors.target_copies import head_of, is_embedding
from executor.checkpoints.tensors.write_tensors import Written
from executor.drafters.eagle3 import Eagle3
from executor.target.target_model import Target
from treeopt.errors import ExecutorError, UsageError

LAYOUTS = ("eagle3", "eagle3-specforge", "eagle3-vllm", "speculators-eagle3")
SPECFORGE = "LlamaForCausalLMEagle3"
# Copies of the target's that trainers leave.
LEFT = ("verifier_lm_head.weight", "verifier_norm.weight")


def read_eagle3(stored: Stored, target: Target) -> Eagle3:
    """EAGLE-3 of any of the layouts.

    Raises:
        ExecutorError: names the tensors that do not fit, or what the configuration contradicts.
    """
    stored = plain(stored)
    one_layer(stored)
    hidden, wide = _matrix(stored, "fc.weight")
    shares_head = _shares_head(stored, hidden, target)
    rows = target.vocabulary if shares_head else _matrix(stored, "lm_head.weight")[0]
    config = config_of(stored, STORED_LAYER, target, hidden=hidden)
    taps = taps_of(stored, wide, target)
    ids = drafted_ids(stored, rows, target)
    own = EMBEDDINGS in stored.entries
    if own and stored.entries[EMBEDDINGS].shape == (target.vocabulary, hidden) and hidden == target.hidden:
        own = not is_embedding(stored.read(EMBEDDINGS), target)
    if not own and hidden != target.hidden:
        raise ExecutorError(
            f"{stored.path}: fc.weight makes features of width {hidden} where the target's embeddings have "
            f"{target.hidden}, and {EMBEDDINGS} is missing"
        )
    options = _options(stored)
    return filled(
        lambda: Eagle3(
            config,
            taps=taps,
            target_hidden=target.hidden,
            vocabulary=target.vocabulary,
            draft_ids=ids,
            own_embeddings=own,
            **options,
        ),
        stored,
        layer_name,
        ignored=["d2t", "t2d", *FREQUENCIES, *LEFT, *([] if own else [EMBEDDINGS])],
        given={HEAD: head_of(target, "EAGLE-3 without an LM head")} if shares_head else None,
    )


def _shares_head(stored: Stored, hidden: int, target: Target) -> bool:
    """Whether the LM head is the target's: none is there, nor a number of tokens that can be drafted (as in SGLang)."""
    absent = all(name not in stored.entries for name in (HEAD, "d2t", "t2d"))
    return absent and hidden == target.hidden and stored.config.get("draft_vocab_size") is None


def _matrix(stored: Stored, name: str) -> tuple[int, int]:
    entry = stored.entries.get(name)
    if entry is None:
        raise ExecutorError(f"{stored.path}: 1 missing: {name}")
    if len(entry.shape) != 2 or not all(entry.shape):
        raise ExecutorError(f"{stored.path}: {entry.key} must have two dimensions, found {entry.shape}")
    return entry.shape[0], entry.shape[1]


def _options(stored: Stored) -> dict[str, Any]:
    """The variants: norms as tensors say, what is fed where as the configuration says."""
    single, each = "input_norm.weight" in stored.entries, any(n.startswith("fc_norm.") for n in stored.entries)
    if single and each:
        raise ExecutorError(f"{stored.path}: holds both input_norm and fc_norm")
    norms: Literal["none", "fc", "input"] = "input" if single else "fc" if each else "none"
    said = stored.config | stored.facts
    before, output = (said.get(name) for name in ("norm_before_residual", "norm_output"))
    for name, value in (("norm_before_residual", before), ("norm_output", output)):
        if value is not None and not isinstance(value, bool):
            raise ExecutorError(f"{stored.where}: {name} must be true or false, found {value!r}")
    if "speculators_model_type" in stored.config and before is None:
        raise ExecutorError(
            f"{stored.where}: norm_before_residual is missing: speculators takes that for false, vLLM for true; say "
            "which the drafter was trained with"
        )
    # By `norm_output` speculators and vLLM mean that the next pair is given the norm's output, SpecForge (which writes
    # no such fact as ours) that the LM head is.
    if "norm_output" not in stored.facts and SPECFORGE in str(stored.config.get("architectures")):
        if output is False:
            raise ExecutorError(f"{stored.where}: norm_output false is not supported: the LM head is given the norm's")
        output = False
    return {"norms": norms, "norm_before_residual": bool(before), "feeds_normed": bool(output)}


def eagle3_content(drafter: Eagle3, layout: str | None, target: Target | None, name: str) -> Written:
    """What is written of EAGLE-3; without a layout, the reference's names in safetensors.

    The reference's own code reads the layers (2, L // 2, L - 3) of a target of L, whatever its config.json says, and
    refuses what transformers says today of scaled rotary positions: its layout says neither otherwise.

    Raises:
        UsageError: not a layout of EAGLE-3.
        ExecutorError: the layout cannot say what this drafter is.
    """
    if layout not in (None, *LAYOUTS):
        raise UsageError(f"layout of EAGLE-3 must be one of {', '.join(LAYOUTS)}, got {layout}")
    layers = None if target is None else int(target.model.config.get_text_config().num_hidden_layers)
    _check_sayable(drafter, layout, layers)
    spelt = layer_name if layout in ("eagle3-vllm", "speculators-eagle3") else _reference_name
    tensors = named(drafter, spelt) | vocabulary_tensors(drafter.draft_ids, drafter.vocabulary)
    file = "pytorch_model.bin" if layout == "eagle3" else "model.safetensors"
    facts = {
        "kind": drafter.kind,
        "aux_layers": list(drafter.taps),
        "aux_convention": INPUTS,
        "norm_before_residual": drafter.norm_before_residual,
        "norm_output": drafter.feeds_normed,
    }
    make = {"speculators-eagle3": _speculators, "eagle3-specforge": _specforge, "eagle3-vllm": _vllm}
    config = make.get(layout or "", _reference)(drafter, tensors, target, name)
    return Written(file, tensors, config, facts)


def _reference_name(name: str) -> str:
    return f"midlayer.{name.removeprefix(LAYER)}" if name.startswith(LAYER) else name


def _check_sayable(drafter: Eagle3, layout: str | None, layers: int | None) -> None:
    norms, taps = _variants(drafter), drafter.taps
    others = layers is not None and taps != (2, layers // 2, layers - 3)
    mistaken = layers is not None and counted([tap - 1 for tap in taps], layers) != OUTPUTS
    unsaid = {
        "eagle3": norms | {f"layers {taps}": others, SCALED: is_scaled(drafter.config)},
        "eagle3-specforge": {
            **{name: norms[name] for name in ("norm_before_residual", "norm_output")},
            "a first tap at the embeddings": 0 in taps,
            f"layers {taps}, whose numbers there are those of EAGLE's usual inputs": mistaken,
        },
    }
    lost = [name for name, has in unsaid.get(layout or "", {}).items() if has]
    if lost:
        raise ExecutorError(f"{layout} cannot say {', '.join(lost)}: write speculators-eagle3")


Content = Callable[[Eagle3, dict[str, Tensor], Target | None, str], dict[str, Any]]


def _reference(drafter: Eagle3, tensors: dict[str, Tensor], target: Target | None, name: str) -> dict[str, Any]:
    wide = drafter.fc.in_features // len(drafter.taps)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **fields(drafter.config),
        "vocab_size": drafter.vocabulary,
        "draft_vocab_size": len(tensors["lm_head.weight"]),
        # The reference's code takes no embeddings from the target where this is told.
        **({"target_hidden_size": wide} if wide != drafter.config.hidden_size else {}),
        "eagle_aux_hidden_state_layer_ids": list(drafter.taps),
        "torch_dtype": "",
    }


def _vllm(drafter: Eagle3, tensors: dict[str, Tensor], target: Target | None, name: str) -> dict[str, Any]:
    config = _reference(drafter, tensors, target, name)
    return config | {"architectures": ["Eagle3LlamaForCausalLM"], **_variants(drafter)}


def _specforge(drafter: Eagle3, tensors: dict[str, Tensor], target: Target | None, name: str) -> dict[str, Any]:
    """Layers by what they put out."""
    config = _reference(drafter, tensors, target, name)
    ids = [tap - 1 for tap in drafter.taps]
    del config["eagle_aux_hidden_state_layer_ids"]
    return config | {
        "architectures": [SPECFORGE],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True},
        "fc_norm": drafter.norms == "fc",
        "norm_before_fc": drafter.norms == "input",
    }


def _speculators(drafter: Eagle3, tensors: dict[str, Tensor], target: Target | None, name: str) -> dict[str, Any]:
    layer = {"model_type": "llama", **fields(drafter.config), "vocab_size": drafter.vocabulary}
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
        "draft_vocab_size": len(tensors["lm_head.weight"]),
        "target_hidden_size": drafter.fc.in_features // len(drafter.taps),
        "eagle_aux_hidden_state_layer_ids": list(drafter.taps),
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
