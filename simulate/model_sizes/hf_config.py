"""The configuration of a model: Hugging Face config.json or a GGUF header, its language model's part, context limit."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from simulate.model_sizes.gguf_header import MODEL_DATA, read_gguf
from treeopt.errors import CostError
from treeopt.storage.hub_models import hub_hint, model_folder
from treeopt.storage.user_files import found, read_text, shipped_json

SHAPES = ("toy", "100m", "1b", "8b", "14b", "70b")  # of Llama 3.1 and 3.2, but for 14b, which is Qwen 2.5's
FIELDS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
# What to do about a model without a price.
OWN_SWEEP = (
    "measure a sweep of batch sizes and draft lengths in your engine, make it a profile with `treeopt times`, and give "
    "that to `treeopt search --profile`"
)
ORIGINAL = "name the Hugging Face checkpoint that they were made from"
T = TypeVar("T")
LATENT_FIELDS = ("kv_lora_rank", "q_lora_rank")
EXPERT_FIELDS = ("num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "n_routed_experts")
LARGEST = 2**31  # the largest size that is accepted


def other_format(path: Path) -> str | None:
    """Return why a model's file or folder is none that is read here, and the way out; None if it may be one."""
    suffixes = {file.suffix for file in ([path] if path.is_file() else path.glob("*"))}
    alone = suffixes.isdisjoint((".safetensors", ".bin", ".pt"))
    if alone and ".gguf" in suffixes:
        return f"GGUF files are written, but not read: {ORIGINAL}"
    config = path / "config.json"
    mlx: Any = None
    with suppress(CostError):  # what reads the configuration says what is wrong with it
        mlx = parsed(config, lambda content: content.get("quantization")) if config.is_file() else None
    if (isinstance(mlx, Mapping) and "group_size" in mlx) or (alone and config.is_file() and ".npz" in suffixes):
        return f"weights of MLX (for Apple's processors) are not read: {ORIGINAL}"
    return None


def _gguf_file(path: Path) -> Path | None:
    """Return the GGUF file that a path names, or the only one of a folder without other weights."""
    if path.is_file():
        return path if path.suffix == ".gguf" else None
    weights = [file for file in path.glob("*") if file.suffix in (".safetensors", ".bin", ".pt", ".gguf")]
    return weights[0] if len(weights) == 1 and weights[0].suffix == ".gguf" else None


def shape_name(source: Any) -> str | None:
    """Return the name of the shape that a path or text names, in lower case; None for what is none, or exists.

    >>> shape_name("8B"), shape_name(Path("70b")), shape_name("data/models/stdlib-llama")
    ('8b', '70b', None)
    """
    name = str(source).lower()
    return name if name in SHAPES and not Path(str(source)).exists() else None


def shape_fields(name: str) -> Mapping[str, Any]:
    """Return the fields of a shape's config.json, a Llama's.

    >>> shape_fields("8b")["num_hidden_layers"]
    32
    """
    return {"_name_or_path": name, **shipped_json(MODEL_DATA)["shapes"][name]}


def known_models() -> Mapping[str, Mapping[str, Any]]:
    """Return the config.json of each model that treeopt knows by name; data/model_configs.json says its source."""
    models: Mapping[str, Mapping[str, Any]] = shipped_json(MODEL_DATA)["models"]
    return models


def known_name(source: Any) -> str | None:
    """Return the whole name of a model that is known by it, or by its last part; None for a path that exists.

    >>> known_name("gpt-oss-120b"), known_name("OpenAI/GPT-OSS-120b"), known_name("8b")
    ('openai/gpt-oss-120b', 'openai/gpt-oss-120b', None)
    """
    asked = str(source).lower()
    if Path(str(source)).exists():
        return None
    return next((name for name in known_models() if asked in (name.lower(), name.lower().partition("/")[2])), None)


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of the language model: those of a nested part where a multimodal model has one.

    >>> text_part({"text_config": {"hidden_size": 8}, "model_type": "gemma3"})["model_type"]
    'gemma3'
    """
    for name in ("thinker_config", "text_config", "llm_config", "language_config"):
        inner = config.get(name)
        if isinstance(inner, Mapping) and not {"hidden_size", "num_hidden_layers"} <= config.keys():
            outer = ("model_type", "tie_word_embeddings", "quantization_config", "hf_quant_config")
            return text_part({**{field: config[field] for field in outer if field in config}, **inner})
    return config


def context_limit(config: Mapping[str, Any] | Path | str) -> int | None:
    """Return the longest context that a model was built for; None if its configuration does not state it.

    `max_position_embeddings` may be the length that the model was trained with before rotary positions were stretched
    by YaRN or linearly (Vicuna 16k), as vLLM and SGLang read it. Command-R states the full length in
    `model_max_length`.

    Args:
        config: the parsed file, its path, or the path of its folder.

    Raises:
        CostError: the file or a field cannot be read; names both.

    >>> yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    >>> context_limit({"max_position_embeddings": 40960, "rope_scaling": yarn})
    131072
    """
    if not isinstance(config, Mapping):
        return parsed(config, context_limit)
    config = text_part(config)
    limit = config.get("max_position_embeddings")
    if limit is None:
        return None
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    try:
        limits = [int(limit)]
        if rope or "rope_theta" in config:
            limits.append(int(config.get("model_max_length") or 0))
        unstretched = {"linear": limit, "yarn": rope.get("original_max_position_embeddings") or limit}
        kind = str(rope.get("rope_type", rope.get("type")))
        limits.append(int(unstretched.get(kind, 0) * float(rope.get("factor") or 1)))
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise CostError(f"max_position_embeddings and the fields that stretch it must be numbers: {error}") from error
    return max(limits) if max(limits) > 0 else None


def parsed(config: Mapping[str, Any] | Path | str, read: Callable[[Mapping[str, Any]], T]) -> T:
    """Return what `read` makes of a config.json: the parsed file, its path, the path of its folder, or the name of a
    shape or model.

    Raises:
        CostError: the file cannot be read, or `read` raises one; names the file.

    >>> parsed({"num_hidden_layers": 2}, lambda config: config["num_hidden_layers"])
    2
    """
    if isinstance(config, Mapping):
        return read(config)
    if (name := shape_name(config)) is not None:
        return read(shape_fields(name))
    if (name := known_name(config)) is not None:
        place, load = Path(name), partial(known_models().__getitem__, name)
    else:
        named = model_folder(found(config), weights=False)
        place = _gguf_file(named) or (named / "config.json" if named.is_dir() else named)
        load = partial(_loaded, place)
        if not place.exists() and (reason := other_format(named)) is not None:
            raise CostError(f"{named}: {reason}")
        if not place.exists():
            raise CostError(
                f"{place}: No such file; name a model's folder, its config.json, a shape ({', '.join(SHAPES)}), or "
                f"a model of `treeopt models`{hub_hint(named)}"
            )
    try:
        return read(load())
    except (OSError, ValueError, RecursionError, CostError) as error:
        raise CostError(f"{place}: {error}") from error


def _loaded(path: Path) -> Mapping[str, Any]:
    """Return the fields of a config.json, or of a GGUF file."""
    if path.suffix == ".gguf":
        return read_gguf(path)
    content = json.loads(read_text(path))
    if not isinstance(content, dict):
        raise CostError(f"must hold an object, got {content!r:.80}")
    if (beside := path.with_name("hf_quant_config.json")).is_file():  # of ModelOpt
        return {"hf_quant_config": json.loads(read_text(beside)).get("quantization"), **content}
    return content


def positive(name: str, value: object, most: int = LARGEST) -> int:
    """Return `value` if it is a positive integer, no larger than any model's sizes.

    Raises:
        CostError: it is not; says `name`.

    >>> positive("layers", 2)
    2
    """
    if type(value) is not int or value < 1:
        raise CostError(f"{name} must be a positive integer, got {value!r:.80}")
    if value > most:
        raise CostError(f"{name} must be at most {most}, got {value!r:.80}")
    return value
