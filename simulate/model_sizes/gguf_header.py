"""The header of a GGUF file: the model that it holds as the fields of a config.json, and the bytes of its tensors.

Names of fields, tensors and types are llama.cpp's (`gguf/constants.py`). The package `gguf` reads a vocabulary token by
token in most of a minute.
"""

import struct
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from treeopt.errors import CostError
from treeopt.storage.user_files import open_regular

FIELDS = {  # of llama.cpp, without the architecture -> of config.json
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
    "leading_dense_block_count": "first_k_dense_replace",
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
}
MODELS = {  # architectures whose model_type is another word
    "gemma3": "gemma3_text",
    "gpt-oss": "gpt_oss",
    "deepseek2": "deepseek_v3",
    "glm4moe": "glm4_moe",
    "qwen3moe": "qwen3_moe",
}
TENSORS = {  # parts of tensors' names -> the matrix that holds them
    **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_qkv"), "self_attn.qkv_proj"),
    "attn_output": "self_attn.o_proj",
    **dict.fromkeys(("ffn_gate", "ffn_up"), "mlp.gate_up_proj"),
    "ffn_down": "mlp.down_proj",
    **dict.fromkeys(("ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps", "ffn_down_exps"), "mlp.experts"),
    **dict.fromkeys(("ffn_gate_shexp", "ffn_up_shexp"), "mlp.shared_experts.gate_up_proj"),
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    **dict.fromkeys(("attn_kv_b", "attn_k_b", "attn_v_b"), "self_attn.kv_b_proj"),
}
_SIZES = (  # of a tensor's type (GGML_QUANT_SIZES): bytes of 256 numbers, and the numbers of the types that have them
    *((36, 41), (50, 19), (54, 34), (56, 29), (66, 16), (66, 35), (74, 17), (82, 22), (84, 10), (98, 18), (110, 11)),
    *((110, 21), (136, 23), (136, 39), (144, 2), (144, 12), (144, 20), (144, 40), (160, 3), (176, 6), (176, 13)),
    *((192, 7), (210, 14), (256, 24), (272, 8), (292, 15), (320, 9), (512, 1), (512, 25), (512, 30), (1024, 0)),
    *((1024, 26), (2048, 27), (2048, 28)),
)
BYTES = {kind: size / 256 for size, kind in _SIZES}
_NUMBERS = dict(zip(range(13), ("B", "b", "H", "h", "I", "i", "f", "?", "", "", "Q", "q", "d"), strict=True))
_TEXT, _LIST, MOST = 8, 9, 2**32


def read_gguf(path: Path) -> dict[str, Any]:
    """Return the model of a GGUF file as the fields of a config.json, its tensors in `quantization_config`.

    Raises:
        CostError: the file is none, is cut off, or is of an architecture that is not understood.
    """
    try:
        with open_regular(path) as file:
            return _config(*_header(file))
    except KeyError as error:
        raise CostError(f"the header of this GGUF file lacks {error}") from error
    except (struct.error, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise CostError(f"the header of this GGUF file cannot be read: {error}") from error


def _config(fields: Mapping[str, Any], tensors: Mapping[str, tuple[int, float]]) -> dict[str, Any]:
    """Return the fields of a config.json."""
    name = str(fields.get("general.architecture"))
    if recurrent := [key for key in fields if key.startswith((f"{name}.ssm.", f"{name}.wkv."))]:
        raise CostError(f"{recurrent[0]}: recurrent layers of GGUF files are not counted: name their config.json")
    own = {key.removeprefix(f"{name}."): _alike(value) for key, value in fields.items()}
    config = {field: own[key] for key, field in FIELDS.items() if key in own}
    config["model_type"] = "mixtral" if name == "llama" and "expert_count" in own else MODELS.get(name, name)
    config["num_hidden_layers"] = own.get("block_count", 0) - own.get("nextn_predict_layers", 0)
    if name == "deepseek2":
        config["v_head_dim"] = own.get("attention.value_length_mla", own.get("attention.value_length"))
        width = own.get("attention.key_length_mla", own.get("attention.key_length"))
        config["qk_nope_head_dim"] = width - own["rope.dimension_count"]
    else:
        config.pop("qk_rope_head_dim", None)
    if name == "gpt-oss":
        kinds = ("sliding_attention", "full_attention")
        config["layer_types"] = [kinds[i % 2] for i in range(config["num_hidden_layers"])]
    count, found = defaultdict[str, int](int), defaultdict[str, float](float)
    for tensor, (numbers, size) in tensors.items():
        layer, _, part = tensor.removeprefix("blk.").partition(".")
        matrix = TENSORS.get(part.removesuffix(".weight"), tensor)
        key = f"{layer}.{matrix}" if tensor.startswith("blk.") else tensor
        count[key], found[key] = count[key] + numbers, found[key] + size
    sizes = {key: found[key] / count[key] for key in count}
    sizes["embed_tokens"] = sizes["token_embd.weight"]
    sizes["lm_head"] = sizes.get("output.weight", sizes["embed_tokens"])
    bias, norm = ("blk.0.attn_q.bias" in tensors), ("blk.0.attn_q_norm.weight" in tensors)
    return config | {
        "vocab_size": tensors["token_embd.weight"][0] // config["hidden_size"],
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": bias,
        "use_qk_norm": norm,
        "quantization_config": {"quant_method": "gguf", "sizes": sizes, "weights": sum(n for n, _ in tensors.values())},
    }


def _header(file: BinaryIO) -> tuple[Mapping[str, Any], Mapping[str, tuple[int, float]]]:
    """Return the fields, and the numbers and bytes of each tensor."""
    size = file.seek(0, 2)
    file.seek(0)
    if file.read(4) != b"GGUF" or _number(file, "I") not in (2, 3):
        raise ValueError("it must begin with GGUF and version 2 or 3")
    count, pairs = _number(file, "Q"), _number(file, "Q")
    fields = {_text(file): _value(file, _number(file, "I")) for _ in range(min(pairs, MOST))}
    tensors: dict[str, tuple[int, float]] = {}
    end = 0.0
    for _ in range(min(count, MOST)):
        name, numbers = _text(file), 1
        for _ in range(_number(file, "I")):
            numbers *= _number(file, "Q")
        if (kind := _number(file, "I")) not in BYTES:
            raise ValueError(f"the bytes of tensors of type {kind} are not known")
        tensors[name] = numbers, numbers * BYTES[kind]
        end = max(end, _number(file, "Q") + tensors[name][1])
    step = int(fields.get("general.alignment", 32))
    if -(-file.tell() // step) * step + end > size:
        raise ValueError("it is cut off")
    return fields, tensors


def _alike(value: Any) -> Any:
    """Return the number that a list holds for every layer; else the value itself."""
    return value[0] if isinstance(value, list) and value and value == value[:1] * len(value) else value


def _number(file: BinaryIO, form: str) -> Any:
    return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))[0]


def _text(file: BinaryIO) -> str:
    return file.read(min(_number(file, "Q"), MOST)).decode("utf-8", "replace")


def _value(file: BinaryIO, kind: int) -> Any:
    """Return a value; of a list of texts, which only the tokenizer needs, nothing."""
    if kind == _TEXT:
        return _text(file)
    if kind != _LIST:
        return _number(file, _NUMBERS.get(kind, f"type {kind}"))
    kind, count = _number(file, "I"), _number(file, "Q")
    if kind == _TEXT:
        for _ in range(count):
            file.seek(_number(file, "Q"), 1)
        return None
    return [_value(file, kind) for _ in range(count)]
