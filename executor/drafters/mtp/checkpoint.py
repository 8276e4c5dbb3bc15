"""Read and write MTP modules: in their target's own checkpoint, or in a folder of their own.

DeepSeek and GLM: `model.layers.{L}.*`, with copies of the embeddings and the LM head. Qwen3-Next and Qwen3.5: `mtp.*`.
MiMo: `model.mtp_layers.0.*`, in speculators' folders `mtp_layers.0.*`. Further modules have the next numbers. Experts
are stored one by one, and stacked here as transformers stacks them.

A folder of its own is written in its family's names. For vLLM, whose MTP reads the target's configuration, the target
and its module are written as one MiMo, whose layers are Qwen2's: a Llama's layer is one with biases of 0.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from executor.checkpoints.tensors.detect_layout import quantised
from executor.checkpoints.tensors.find_tensor_files import open_checkpoint
from executor.checkpoints.tensors.layer_config import TAPS, layer_fields
from executor.checkpoints.tensors.lazy_tensors import Entry, Stored, fill_module, named
from executor.checkpoints.tensors.write_tensors import Written, head_of, is_embedding, is_head
from executor.drafters.mtp import MARKS
from executor.drafters.mtp.drafter import FAMILIES, Mtp
from executor.drafters.mtp.several import SeveralMtp
from executor.target.target_model import Target
from treeopt.errors import ExecutorError, UsageError, counted

COPIES = {"embed_tokens.weight": is_embedding, "lm_head.weight": is_head, "shared_head.head.weight": is_head}
# Fields of a folder's own configuration that must be the target's, where both have them.
LAYER = (
    *("model_type", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("hidden_act", "rms_norm_eps", "rope_theta", "rope_parameters", "partial_rotary_factor", "sliding_window"),
)
_EXPERT = re.compile(r"(.*mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


def own_module(name: str, target: Target) -> Mtp | SeveralMtp:
    """Return the module in the target's own checkpoint; see `DrafterKind.named`.

    Raises:
        UsageError: a name with more than the kind, or a target without a folder.
        ExecutorError: the checkpoint has no module, or one that is not supported.
    """
    folder = Path(str(getattr(target.model.config, "_name_or_path", "") or ""))
    if name != Mtp.kind or not folder.is_dir() or not folder.name:
        raise UsageError(f"{name}: MTP is read from the folder of the target, or give the module's own folder")
    stored = open_checkpoint(folder)
    if stored is None or not prefixes(stored):
        raise ExecutorError(
            f"{folder}: holds no MTP module: its tensors lack eh_proj, pre_fc_norm_hidden and mtp_layers"
        )
    return read_mtp(stored, target, within=True).to(target.device, target.dtype).eval().requires_grad_(False)


def prefixes(stored: Stored) -> list[tuple[str, str]]:
    """Return the family and the prefix of each module, in the order of their numbers."""
    matches = [(family, mark.match(name)) for name in stored.entries for family, mark in MARKS.items()]
    return sorted(((family, match[1]) for family, match in matches if match), key=lambda each: (len(each[1]), each))


def read_mtp(stored: Stored, target: Target, *, within: bool = False) -> Mtp | SeveralMtp:
    """Read one module, or several; `within`: the other tensors are the target's.

    Raises:
        ExecutorError: another number of modules than stated, tensors that do not fit the target's kind of layer, or
            another target's.
    """
    found = prefixes(stored)
    stated = (layer_fields(stored) | stored.config).get("num_nextn_predict_layers")
    numbers = [int(each) for _, prefix in found for each in re.findall(r"\d+", prefix)[-1:]]
    apart = any(after - before != 1 for before, after in pairwise(numbers))
    if apart or len({family for family, _ in found}) != 1 or (stated or len(found)) != len(found):
        raise ExecutorError(
            f"{stored.path}: {counted(len(found), 'MTP module')}, num_nextn_predict_layers is {stated!r:.40}: needed "
            "are as many, of one family, numbered without a gap"
        )
    if not within:
        _check_fields(stored, target)
    family = found[0][0]
    if family == "mimo" and "speculators_model_type" in stored.config:
        family = str(stored.facts.get("family", "speculators"))
        if family not in FAMILIES:
            raise ExecutorError(f"{stored.where}: family must be one of {', '.join(FAMILIES)}, found {family!r:.40}")
        if "family" not in stored.facts:
            stored.assume("input_proj reads the embedding first, as in speculators 0.9; earlier ones read it last")
    starts = {prefix: f"{k}." * (len(found) > 1) for k, (_, prefix) in enumerate(found)}
    outer = {name.rpartition("model.")[2]: entry for name, entry in stored.entries.items() if "lm_head" in name}
    outer |= {n.rpartition("model.")[2]: e for n, e in stored.entries.items() if n.endswith("embed_tokens.weight")}
    places = {name: next((p for p in starts if name.startswith(p)), None) for name in stored.entries}
    inner = stored.renamed(lambda name: None if (p := places[name]) is None else starts[p] + name.removeprefix(p))
    if method := quantised(inner):
        raise ExecutorError(f"{stored.path}: an MTP module in {method} is not supported: give it in bfloat16")
    spelt = {start: prefix for prefix, start in starts.items()}
    whole = replace(
        inner,
        entries=({} if within else outer) | dict(inner.entries),
        spelt=lambda name: next(spelt[start] + name.removeprefix(start) for start in spelt if name.startswith(start)),
    )
    copies = {start + name: is_copy for name, is_copy in COPIES.items() for start in ("", *starts.values())}
    for name, is_copy in copies.items():
        if name in whole.entries and not is_copy(whole.read(name), target):
            raise ExecutorError(f"{stored.path}: {whole.entries[name].key} is not the target's, which MTP uses")
    with torch.device("meta"):
        stacked = any("experts" in name for name in Mtp(target, family).state_dict())

    def made() -> Mtp | SeveralMtp:
        return Mtp(target, family) if len(found) == 1 else SeveralMtp(target, family, len(found))

    return fill_module(made, _stacked(whole) if stacked else whole, partial(stored_name, family), ignored=copies)


def _check_fields(stored: Stored, target: Target) -> None:
    """Refuse a layer that its configuration describes otherwise than the target's."""
    nested, config = stored.config.get("transformer_layer_config"), target.model.config.get_text_config()
    given, due = nested if isinstance(nested, dict) else stored.config, config.to_dict()
    fields = {name: given[name] for name in (*LAYER[1:], "rope_scaling") if given.get(name) is not None}
    rope = {"rope_parameters": None} if fields.keys() & {"rope_theta", "rope_scaling"} else {}
    try:
        fields = type(config)(**due | rope | fields).to_dict()  # in one spelling of rotary positions
    except Exception as error:  # validators of transformers raise classes of their own
        raise ExecutorError(f"{stored.where}: {' '.join(str(error).split())}") from error
    fields |= {name: (given | stored.config).get(name) for name in TAPS} | {LAYER[0]: given.get(LAYER[0])}
    for name in (*LAYER, *TAPS):
        value, mimo = fields.get(name), name == "model_type" and stored.facts.get("kind") == Mtp.kind
        if value not in (None, due.get(name)) and not mimo:
            raise ExecutorError(
                f"{stored.where}: {name} {value!r:.60} must be the target's, {due.get(name)!r:.60}: MTP has a layer of "
                "the target's kind"
            )


def stored_name(family: str, name: str) -> str:
    """Return a parameter's name in a family's files, behind the number of its module if there are several.

    >>> stored_name("deepseek", "last_norm.weight"), stored_name("qwen", "layer.block.mlp.up_proj.weight")
    ('shared_head.norm.weight', 'layers.0.mlp.up_proj.weight')
    >>> stored_name("deepseek", "parts.1.last_norm.weight")
    '1.shared_head.norm.weight'
    """
    if name.startswith("parts."):
        _, number, name = name.split(".", 2)
        return f"{number}.{stored_name(family, name)}"
    spelling = FAMILIES[family]
    part, _, rest = name.partition(".")
    return (
        spelling.block + name.removeprefix("layer.block.") if part == "layer" else f"{getattr(spelling, part)}.{rest}"
    )


def _stacked(stored: Stored) -> Stored:
    """Return the tensors with the experts of a layer in one: gate and up side by side, and down."""
    experts: dict[tuple[str, str], dict[int, Entry]] = {}
    entries = dict[str, Entry]()
    for name, entry in stored.entries.items():
        if match := _EXPERT.fullmatch(name):
            experts.setdefault((match[1], match[3]), {})[int(match[2])] = entry
        else:
            entries[name] = entry
    for (place, part), each in experts.items():
        pieces = [each, experts.get((place, "up"), {})] if part == "gate" else [each]
        if part == "up":
            continue
        shape = each[min(each)].shape
        numbers = range(len(each))
        if any(sorted(piece) != list(numbers) or piece[n].shape != shape for piece in pieces for n in piece):
            raise ExecutorError(f"{stored.path}: {place}: experts must be numbered from 0 and have equal shapes")
        name = f"{place}.{'gate_up' if part == 'gate' else 'down'}_proj"

        def read(pieces: list[dict[int, Entry]] = pieces, numbers: range = numbers) -> Tensor:
            return torch.stack([torch.cat([piece[n].read() for piece in pieces]) for n in numbers])

        whole = (len(each), len(pieces) * shape[0], *shape[1:])
        entries[name] = Entry(name, whole, each[0].dtype, read)
    return replace(stored, entries=entries)


def _unstacked(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with each expert's own, as files have them."""
    apart = dict[str, Tensor]()
    for name, value in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            apart[name] = value
            continue
        place, _, part = name.rpartition(".")
        for number, expert in enumerate(value):
            halves = zip(("gate", "up"), expert.chunk(2), strict=True) if part[0] == "g" else [("down", expert)]
            apart |= {f"{place}.{number}.{half}_proj.weight": rows for half, rows in halves}
    return apart


def mtp_content(drafter: Mtp | SeveralMtp, layout: str | None, target: Target | None, name: str) -> Written:
    """Return the file contents of a module's own folder, in its family's names.

    The layout `vllm-mimo` is the whole target with the module, as a MiMo; its tokenizer is not written.

    Raises:
        ExecutorError: the layout cannot express this module.
    """
    config, facts = drafter.config.to_dict(), {"kind": drafter.kind, "family": drafter.family}
    if layout is not None and (drafter.family != "mimo" or config["model_type"] not in ("llama", "qwen2")):
        raise ExecutorError(f"{layout} has layers of Llama and Qwen2 alone, this one is {config['model_type']}'s")
    if isinstance(drafter, SeveralMtp):
        if layout is not None:
            raise ExecutorError(f"{layout} has one MTP module, this drafter has {drafter.max_depth}")
        config["num_nextn_predict_layers"] = drafter.max_depth
    modules = [drafter] if isinstance(drafter, Mtp) else drafter.parts
    tensors = dict[str, Tensor]()
    for k, module in enumerate(modules):
        mimo = f"mtp_layers.{k}."
        prefixes_of = {
            "mimo": mimo,
            "speculators": mimo,
            "qwen": "mtp.",
            "deepseek": f"model.layers.{_number(target) + k}.",
        }
        own = _unstacked(named(module, partial(stored_name, drafter.family)))
        tensors |= {f"{prefixes_of[drafter.family]}{key}": value for key, value in own.items()}
    if layout is None:
        layer = {key: value for key, value in config.items() if not key.startswith("_")}
        outer = {"speculators_model_type": "mtp", "architectures": ["MTPSpeculator"], "transformer_layer_config": layer}
        return Written("model.safetensors", tensors, outer | {"torch_dtype": ""}, facts)
    head = head_of(target, layout)
    assert target is not None  # or `head_of` raised
    tensors = {f"model.{key}": value for key, value in tensors.items()}
    tensors |= {**target.model.state_dict(), "lm_head.weight": head}
    for key in [key for key in tensors if re.search(r"\.[qkv]_proj\.weight$", key)]:
        tensors.setdefault(key.replace(".weight", ".bias"), torch.zeros(len(tensors[key])))
    fields: dict[str, Any] = {"architectures": ["MiMoForCausalLM"], "model_type": "qwen2"}
    fields |= {"num_hidden_layers": _number(target), "num_nextn_predict_layers": 1, "tie_word_embeddings": False}
    fields["layer_types"] = getattr(target.model.config, "layer_types", None)
    return Written("model.safetensors", tensors, config | fields | {"torch_dtype": ""}, facts)


def _number(target: Target | None) -> int:
    """Return the number that the layer has in a target's checkpoint."""
    return 0 if target is None else int(target.model.config.get_text_config().num_hidden_layers)
