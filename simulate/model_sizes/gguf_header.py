"""The header of a GGUF file: the model that it holds as the fields of a config.json, and the bytes of its tensors.

Names of fields, tensors and types are llama.cpp's (`gguf/constants.py`), as data/model_configs.json has them. The
package `gguf` reads a vocabulary token by token in most of a minute.
"""

import struct
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from treeopt.errors import CostError
from treeopt.storage.user_files import open_regular, shipped_json

MODEL_DATA = "model_configs.json"
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
    lists = {key: value for key, value in fields.items() if isinstance(value, list) and value}
    alike = {key: value[0] for key, value in lists.items() if value == value[:1] * len(value)}  # in every layer
    own = {key.removeprefix(f"{name}."): value for key, value in {**fields, **alike}.items()}
    tables = shipped_json(MODEL_DATA)["gguf"]
    config = {field: own[key] for key, field in tables["fields"].items() if key in own}
    mixtral = name == "llama" and "expert_count" in own
    config["model_type"] = "mixtral" if mixtral else tables["architectures"].get(name, name)
    config["num_hidden_layers"] = own.get("block_count", 0) - own.get("nextn_predict_layers", 0)
    if name == "deepseek2":
        config.setdefault("q_lora_rank", None)
        config["v_head_dim"] = own.get("attention.value_length_mla", own.get("attention.value_length"))
        width = own.get("attention.key_length_mla", own.get("attention.key_length"))
        config["qk_nope_head_dim"] = width - own["rope.dimension_count"]
    else:
        config.pop("qk_rope_head_dim", None)
    count, found = defaultdict[str, int](int), defaultdict[str, float](float)
    for tensor, (numbers, size) in tensors.items():
        layer, _, part = tensor.removeprefix("blk.").partition(".")
        matrix = tables["matrices"].get(part.removesuffix(".weight"), tensor)
        key = f"{layer}.{matrix}" if tensor.startswith("blk.") else tensor
        count[key], found[key] = count[key] + numbers, found[key] + size
    sizes = {key: found[key] / count[key] for key in count}
    sizes["embed_tokens"] = sizes["token_embd.weight"]
    sizes["lm_head"] = sizes.get("output.weight", sizes["embed_tokens"])
    return config | {
        "vocab_size": tensors["token_embd.weight"][0] // config["hidden_size"],
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in tensors,
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
    end, bytes_of_256 = 0.0, shipped_json(MODEL_DATA)["gguf"]["types"]
    for _ in range(min(count, MOST)):
        name, numbers = _text(file), 1
        for _ in range(_number(file, "I")):
            numbers *= _number(file, "Q")
        if (kind := str(_number(file, "I"))) not in bytes_of_256:
            raise ValueError(f"the bytes of tensors of type {kind} are not known")
        tensors[name] = numbers, numbers * bytes_of_256[kind] / 256
        end = max(end, _number(file, "Q") + tensors[name][1])
    step = int(fields.get("general.alignment", 32))
    if -(-file.tell() // step) * step + end > size:
        raise ValueError("it is cut off")
    return fields, tensors


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
