"""Bytes of stored weights and cached numbers, as `quantization_config` or `hf_quant_config` states them.

Covers fp8 (blocks or tensors), mxfp4, nvfp4, AWQ, GPTQ, AutoRound, bitsandbytes, compressed-tensors, ModelOpt, Quark
and GGUF. Scales count.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from simulate.model_sizes.gguf_header import MODEL_DATA
from simulate.model_sizes.hf_config import positive, text_part
from treeopt.errors import CostError
from treeopt.storage.user_files import shipped_json

HALF = ("mlp.gate", "attn_hc", "ffn_hc", "self_attn.indexer.weights_proj", "linear_attn.in_proj_ba", "self_attn.b_proj")
_FORMATS = {"mxfp4": 17 / 32, "nvfp4": 9 / 16, "w4a16_nvfp4": 9 / 16, "fp8": 1.0, "mxfp8": 33 / 32}  # with scales
_FORMATS |= dict.fromkeys(("fbgemm_fp8", "fp8_per_channel_per_token", "fp8_pb_wo"), 1.0)
WIDEST = 64  # bits of a weight
_WHOLE = ("modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules", "ignore", "exclude", "exclude_modules")
_ONE_BY_ONE = ("dynamic", "modules_in_block_to_quantize", "extra_config", "layer_quant_config")  # widths of modules
_ATTENTION = ("self_attn", "linear_attn")


@dataclass(frozen=True)
class StoredBytes:
    """The bytes of stored weights.

    Attributes:
        groups: bytes, and the modules that have them; (): all linear layers.
        half: modules that are not quantised.
        head: the LM head may be quantised.
        kv_bytes: bytes of a cached number; None: not stated.
        notes: sentences on what was assumed.
        sizes: bytes of each matrix by its name, with its layer's number before it, of a GGUF file; None: none.
        weights: those of the file; 0: not known.
    """

    groups: tuple[tuple[float, Sequence[str]], ...] = ()
    half: Sequence[str] = ()
    head: bool = False
    kv_bytes: float | None = None
    notes: tuple[str, ...] = ()
    sizes: Mapping[str, float] | None = None
    weights: int = 0

    def of(self, name: str, layer: int | None = None) -> float | None:
        """Return the bytes of a weight of a matrix; None where it is not quantised."""
        if self.sizes:
            return self.sizes.get(name if layer is None else f"{layer}.{name}")
        if name in HALF or (name == "lm_head" and not self.head) or _among(name, layer, self.half):
            return None
        return next((size for size, names in self.groups if not names or _among(name, layer, names)), None)


def read_stored_bytes(config: Mapping[str, Any]) -> StoredBytes:
    """Return the bytes of the weights of a parsed config.json.

    Raises:
        CostError: the quantisation is not understood.

    >>> read_stored_bytes({"quantization_config": {"quant_method": "mxfp4"}}).of("mlp.experts", 0)
    0.53125
    """
    text = text_part(config)
    own, more = (text.get(name) or {} for name in ("quantization_config", "hf_quant_config"))
    if not own and not more:
        return StoredBytes()
    if not isinstance(own, Mapping) or not isinstance(more, Mapping):
        raise CostError("quantization_config must hold an object")
    if own.get("quant_method") == "gguf":
        return StoredBytes(sizes=own["sizes"], weights=own["weights"])
    both = {**more, **{name: value for name, value in own.items() if value is not None}}
    cached = more.get("kv_cache_quant_algo") or own.get("kv_cache_scheme") or own.get("kv_cache_quant_algo")
    lists = [both.get(name) for name in _WHOLE]
    names: Any = next((each for each in lists if each), [])
    notes: tuple[str, ...] = ()
    if isinstance(names, str):  # only their number
        notes = (f"quantization_config lists {names} that are not quantised: those of attention are assumed",)
        names = _ATTENTION
    groups = tuple(_groups(both))
    if not groups or any(both.get(name) for name in _ONE_BY_ONE):
        raise CostError(
            f"the bytes of weights quantised by {both.get('quant_algo') or both.get('quant_method')} are not known"
        )
    head = "config_groups" in both or bool(both.get("lm_head"))
    kv_bytes = _FORMATS.get(str(cached).lower(), 1.0) if cached else None
    return StoredBytes(groups, [str(name) for name in names], head, kv_bytes, notes)


def _groups(both: Mapping[str, Any]) -> list[tuple[float, Sequence[str]]]:
    """Return the bytes of each group of modules; [] where they are not understood."""
    groups = both.get("config_groups")
    if isinstance(groups, Mapping):
        found: list[tuple[float, Sequence[str]]] = []
        for group in groups.values():
            targets = [str(name) for name in group.get("targets") or ["Linear"]]
            found.append((_width(group.get("weights")), () if "Linear" in targets else targets))
        return sorted(found, key=lambda group: not group[1])  # a module's own name counts before its class
    method = str(both.get("quant_method") or "").lower()
    if method in ("", "modelopt"):
        method = str(both.get("quant_algo") or "").lower()
    if method == "fp8":
        block = [positive("weight_block_size", size) for size in both.get("weight_block_size") or ()]
        return [(1 + (4 / (block[0] * block[1]) if block else 0), ())]
    if method in _FORMATS:
        return [(_FORMATS[method], ("mlp.experts",) if method == "mxfp4" else ())]
    if method == "quark":
        weights = both["global_quant_config"]["weight"]
        digits, kind = re.findall(r"\d", weights["dtype"]), "int" if "int" in weights["dtype"] else "float"
        return [(_width({**weights, "num_bits": int(digits[0]), "type": kind}), ())]
    if method in ("awq", "gptq", "auto-round"):
        bits = positive("bits", both.get("bits") or both.get("w_bit") or 4, most=WIDEST)
        size = int(both.get("group_size") or 128)
        return [(bits / 8 + (2 + bits / 8) / size if size > 0 else bits / 8, ())]
    if method == "bitsandbytes":
        scale = 1 + 4 / 256 if both.get("bnb_4bit_use_double_quant") else 4  # of 64 weights
        return [(0.5 + scale / 64 if both.get("load_in_4bit") else 1.0, ())]
    return []


def _width(weights: Mapping[str, Any] | None) -> float:
    """Return the bytes of a weight with its scales, of a group of compressed-tensors or ModelOpt; 2 without weights."""
    if weights is None:
        return 2.0
    bits, size = positive("num_bits", weights.get("num_bits"), most=WIDEST), int(weights.get("group_size") or 0)
    scale = 2.0 if weights.get("type") == "int" else 1.0  # fp8 or powers of two for floats
    return bits / 8 + (scale / size if size > 0 else 0)


def _among(name: str, layer: int | None, patterns: Sequence[str]) -> bool:
    """Return whether a list of modules names a matrix of a layer; of a shortened list one layer stands for all."""
    shortened, name = any(pattern.startswith("... ") for pattern in patterns), _plain(name)
    return any(_names(pattern, name, layer, shortened) for pattern in patterns)


def _names(pattern: str, name: str, layer: int | None, shortened: bool) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], f"model.layers.{layer}.{name}") is not None
    if (own := re.match(r".*layers\.(\d+|\*)(?:\.|\*?$)", pattern)) is not None:
        pattern = pattern[own.end() :]
        if own[1] not in ("*", str(layer)) and (pattern in ("", "*") or not shortened):
            return False
    pattern = pattern.removeprefix("*.").removeprefix("language_model.")
    glob, pattern = _plain(pattern), _plain(pattern.rstrip("*").rstrip("."))
    whole = pattern in ("", name) or name.startswith(f"{pattern}.") or pattern in name.split(".")
    return whole or ("*" in glob and fnmatchcase(name, glob))


def _plain(name: str) -> str:
    """Return the name of a module as it is spelled here."""
    for pattern, here in shipped_json(MODEL_DATA)["spellings"].items():
        name = re.sub(pattern, here, name)
    return name
