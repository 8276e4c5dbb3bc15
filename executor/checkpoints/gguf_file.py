"""GGUF files for llama.cpp: EAGLE-3, DFlash and DSpark, and Llama models (a draft model, or the target).

Names of tensors and fields are llama.cpp's (`src/llama-arch.cpp`, `src/models/eagle3.cpp`, `src/models/dflash.cpp`).
Queries and keys are stored in the order of its rotary positions: halves interleaved, but for DFlash and DSpark.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from executor.checkpoints.tensors.write_tensors import refuse_lost
from executor.drafters.base.drafter import Drafter
from executor.drafters.dflash.drafter import DFlash
from executor.drafters.eagle3.drafter import Eagle3
from executor.drafters.language_model.drafter import LanguageModel
from treeopt.errors import ExecutorError, UsageError
from treeopt.storage.user_files import read_text, whole

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # gguf.TokenType
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {WORDS + r"\p{N}{1,3}" + REST: "llama-bpe", WORDS + r"\p{N}" + REST: "qwen2"}


def read_vocabulary(folder: Path, vocabulary: int) -> tuple[list[str], list[int], str]:
    """Read `tokenizer.json`; ids of the model that have no token are unused.

    Returns:
        The tokens in the order of their ids, the type of each, and llama.cpp's name of the pre-tokenizer.

    Raises:
        ExecutorError: no tokenizer, another kind, more tokens than the model has, or an unknown pre-tokenizer.
    """
    file = folder / "tokenizer.json"
    try:
        content = json.loads(read_text(file))
        model, added = content["model"], content.get("added_tokens") or []
        ids = dict(model["vocab"]) | {token["content"]: token["id"] for token in added}
        special = {token["id"]: CONTROL if token["special"] else USER_DEFINED for token in added}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExecutorError(f"{file}: must be the tokenizer of a Hugging Face folder: {error}") from error
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        raise ExecutorError(f"{file}: gguf is written for byte-level BPE tokenizers, found {model.get('type')}")
    if max(ids.values()) >= vocabulary:
        raise ExecutorError(f"{file}: token id {max(ids.values())} is not in the model's vocabulary of {vocabulary}")
    names = {number: token for token, number in ids.items()}
    tokens = [names.get(i, f"[PAD{i}]") for i in range(vocabulary)]
    types = [special.get(i, NORMAL if i in names else UNUSED) for i in range(vocabulary)]
    return tokens, types, pre_tokenizer_name(content.get("pre_tokenizer"), file)


def pre_tokenizer_name(rule: Any, file: Path) -> str:
    """Return llama.cpp's name of a pre-tokenizer.

    Raises:
        ExecutorError: it has none that is known here; another name would split texts differently.

    >>> pre_tokenizer_name({"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}, Path("t.json"))
    'gpt-2'
    """
    parts = rule.get("pretokenizers", [rule]) if isinstance(rule, dict) else [{}]
    *before, last = parts
    if last.get("type") == "ByteLevel" and not last.get("add_prefix_space"):
        if last.get("use_regex", True) and not before:
            return "gpt-2"
        if (
            last.get("use_regex", True)
            and [p.get("type") for p in before] == ["Digits"]
            and before[0]["individual_digits"]
        ):
            return "smollm"
        if len(before) == 1 and before[0].get("type") == "Split" and before[0].get("behavior") == "Isolated":
            name = PATTERNS.get(before[0].get("pattern", {}).get("Regex"))
            if name is not None:
                return name
    raise ExecutorError(
        f"{file}: llama.cpp's name of this pre-tokenizer is not known here; convert with llama.cpp's own "
        "convert_hf_to_gguf.py"
    )


FILE = "model.gguf"
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
OTHERWISE = "convert it with llama.cpp's own convert_hf_to_gguf.py"
LAYER = {
    "input_layernorm": "attn_norm",
    "hidden_norm": "attn_norm_2",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTER = {
    "fc": "fc",
    "norm": "output_norm",
    "hidden_norm": "enc.output_norm",
    "input_norm": "enc.output_norm",
    "lm_head": "output",
    "embed_tokens": "token_embd",
    "markov_w1": "markov_w1",
    "markov_w2": "markov_w2",
    "confidence_head": "conf_proj",
}


def write_gguf(
    folder: Path, drafter: nn.Module | Drafter, target: Path, *, dtype: str, vocabulary: int, hidden: int, layers: int
) -> Path:
    """Write `model.gguf` with the target's tokenizer into a folder, whole or not at all; return its path.

    Matrices are float32, float16 or bfloat16, norms float32. Vocabulary, width and layers are the target's.

    Raises:
        UsageError: llama.cpp has no such type.
        ExecutorError: a drafter, tokenizer or option that GGUF cannot express, or gguf is not installed.
    """
    if find_spec("gguf") is None:
        raise ExecutorError("the layout gguf needs the package gguf: pip install 'treeopt[gguf]'")
    if dtype not in DTYPES:
        raise UsageError(f"gguf holds {', '.join(DTYPES)}, got {dtype}: give --dtype")
    if isinstance(drafter, Eagle3):
        architecture, config, extra = "eagle3", drafter.config, _eagle3_fields(drafter, hidden)
        parts = _drafter_tensors(drafter)
    elif isinstance(drafter, DFlash):
        architecture, config, extra = "dflash", drafter.config, _dflash_fields(drafter)
        parts = _drafter_tensors(drafter)
    elif isinstance(drafter, LanguageModel) and isinstance(drafter.model, LlamaForCausalLM):
        architecture, config, extra = "llama", drafter.model.config, {}
        vocabulary, parts = drafter.target.vocabulary, _llama_tensors(drafter.model)
    else:
        name = type(drafter.model if isinstance(drafter, LanguageModel) else drafter).__name__
        raise ExecutorError(
            f"gguf is written for EAGLE-3, DFlash, DSpark and Llama models, not for {name}: {OTHERWISE}"
        )
    _check(config)
    if max(extra.get("target_layers", [0])) >= layers:
        raise ExecutorError(f"gguf: llama.cpp reads inputs of the target's {layers} layers, not the last one's output")
    tokens = read_vocabulary(target, vocabulary)
    tensors = dict(parts) | _rope_factors(config)
    folder.mkdir(parents=True, exist_ok=True)
    with whole(folder / FILE) as temporary:
        mask = drafter.mask if isinstance(drafter, DFlash) else None
        fields = _fields(config, vocabulary) | extra
        _write(temporary, architecture, fields, tensors, tokens, target, DTYPES[dtype], mask=mask)
    return folder / FILE


def _check(config: LlamaConfig) -> None:
    kind = (config.rope_parameters or {}).get("rope_type", "default")
    lost = {
        "attention_bias": bool(config.attention_bias),
        "mlp_bias": bool(config.mlp_bias),
        f"activation {config.hidden_act}": config.hidden_act != "silu",
        f"rotary positions of type {kind}": kind not in ("default", "linear", "llama3"),
    }
    if any(lost.values()):
        raise ExecutorError(
            f"gguf: not written for {', '.join(n for n, present in lost.items() if present)}: {OTHERWISE}"
        )


def _fields(config: LlamaConfig, vocabulary: int) -> dict[str, Any]:
    """Return the fields of a decoder, without the architecture's name before them."""
    rope = dict(config.rope_parameters or {})
    width = int(config.head_dim or config.hidden_size // config.num_attention_heads)
    fields: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": width,
        "attention.value_length": width,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.dimension_count": width,
        "rope.freq_base": float(rope["rope_theta"]),
        "vocab_size": vocabulary,
    }
    if rope.get("rope_type") == "linear":
        fields |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope["factor"])}
    return fields


def _eagle3_fields(drafter: Eagle3, hidden: int) -> dict[str, Any]:
    lost = {
        f"{len(drafter.taps)} layers of the target (llama.cpp reads 3)": len(drafter.taps) != 3,
        "norm_output": drafter.feeds_normed,
        "fc_norm": drafter.norms == "fc",
        **drafter.extensions,
    }
    refuse_lost("gguf", lost)
    return {
        "target_layers": list(drafter.taps),
        "target_hidden_size": hidden,
        "norm_before_residual": drafter.norm_before_residual,
        "norm_before_fc": drafter.norms == "input",
    }


def _dflash_fields(drafter: DFlash) -> dict[str, Any]:
    markov, head = drafter.markov_w1, drafter.confidence_head
    lost = {
        "layers of which some are causal": len(set(drafter.causal)) > 1,
        "windows of several sizes": len({window for window in drafter.windows if window}) > 1,
        "own embeddings without an own head": drafter.embed_tokens is not None and drafter.lm_head is None,
        "sample_from_anchor without a Markov head": markov is None and drafter.from_anchor,
        "a confidence head without the Markov head's embedding": head is not None
        and head.in_features != drafter.config.hidden_size + (0 if markov is None else markov.embedding_dim),
    }
    refuse_lost("gguf", lost)
    fields: dict[str, Any] = {
        "block_count": len(drafter.configs),
        "block_size": drafter.slots,
        "target_layers": list(drafter.taps),
        "attention.causal": drafter.causal[0],
    }
    if any(drafter.windows):
        fields["attention.sliding_window"] = max(window or 0 for window in drafter.windows)
        fields["attention.sliding_window_pattern"] = [window is not None for window in drafter.windows]
    if markov is not None:
        fields |= {"sample_from_anchor": drafter.from_anchor, "has_confidence_head": head is not None}
    return fields


def _drafter_tensors(drafter: DFlash | Eagle3) -> Iterator[tuple[str, Tensor]]:
    for name, values in drafter.named_parameters():
        module, _, kind = name.rpartition(".")
        if module in OUTER:
            yield f"{OUTER[module]}.{kind}", values
    if drafter.draft_ids is not None:
        yield "d2t", drafter.draft_ids  # the target's ids themselves, not differences
    if isinstance(drafter, Eagle3):
        yield from _layer_tensors(drafter.layer, 0, interleaved=drafter.config)
    else:
        for number, layer in enumerate(drafter.layers):
            yield from _layer_tensors(layer, number)


def _llama_tensors(model: LlamaForCausalLM) -> Iterator[tuple[str, Tensor]]:
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert isinstance(table, Tensor)
    assert isinstance(head, Tensor)
    yield "token_embd.weight", table
    yield "output_norm.weight", model.model.norm.weight
    if head is not table:
        yield "output.weight", head
    for number, layer in enumerate(model.model.layers):
        yield from _layer_tensors(layer, number, interleaved=model.config)


def _layer_tensors(
    layer: nn.Module, number: int, interleaved: LlamaConfig | None = None
) -> Iterator[tuple[str, Tensor]]:
    config, heads = interleaved, dict[str, Any]()
    if config is not None:
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, values in layer.named_parameters():
        part = LAYER[name.removesuffix(".weight")]
        count = heads.get(part)
        yield f"blk.{number}.{part}.weight", _interleaved(values, int(count)) if count else values


def _interleaved(weight: Tensor, heads: int) -> Tensor:
    """Return rows of each head with the two halves alternating, as llama.cpp rotates neighbours.

    >>> _interleaved(torch.arange(8.0)[:, None], heads=2)[:, 0].tolist()
    [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]
    """
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, -1).transpose(1, 2).reshape(weight.shape)


def _rope_factors(config: LlamaConfig) -> dict[str, Tensor]:
    """Return Llama 3's divisors of frequencies; nothing for other rotary positions."""
    rope = dict(config.rope_parameters or {})
    if rope.get("rope_type") != "llama3":
        return {}
    scaled = LlamaRotaryEmbedding(config).inv_freq.double()
    steps = torch.arange(len(scaled), dtype=torch.float64) / len(scaled)
    return {"rope_freqs.weight": (float(rope["rope_theta"]) ** -steps / scaled).float()}


def _write(
    path: Path,
    architecture: str,
    fields: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    vocabulary: tuple[list[str], list[int], str],
    target: Path,
    kind: str,
    *,
    mask: int | None,
) -> None:
    """Write the file with the `gguf` package; `mask` is the token of positions to come."""
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(target.name)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_file_type({"F32": 0, "F16": 1, "BF16": 32}[kind])
    adders: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
    }
    for name, value in fields.items():
        key = f"{architecture}.{name}"
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            adders[type(value)](key, value)
    writer.add_tokenizer_model("gpt2")
    names, types, pre_tokenizer = vocabulary
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(names)
    writer.add_token_types(types)
    gguf.SpecialVocab(target, load_merges=True).add_to_gguf(writer, quiet=True)
    if mask is not None:
        writer.add_mask_token_id(mask)
    for name, values in tensors.items():
        number = "I64" if not values.is_floating_point() else kind if values.dim() > 1 else "F32"
        form = gguf.GGMLQuantizationType[number]
        plain = values.detach().cpu()
        array = plain.numpy() if number == "I64" else gguf.quantize(plain.float().contiguous().numpy(), form)
        writer.add_tensor(name, array, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
