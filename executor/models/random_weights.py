"""Targets and drafters of a given shape with random weights: the time of a forward depends only on the shape."""

from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig

from executor.drafters.base.decoder_layer import layer_config
from executor.drafters.base.drafter import Drafter
from executor.drafters.eagle.drafter import Eagle
from executor.drafters.language_model.drafter import LanguageModel
from executor.drafters.medusa.drafter import MedusaHeads
from executor.target.fused_verification import fuse
from executor.target.load_hf_model import read_verifiable_config
from executor.target.packed_linears import pack_where_it_fits
from executor.target.target_model import Target
from simulate.model_sizes.named_shapes import SHAPES, shape_fields, shape_name
from treeopt.errors import ExecutorError, UsageError

DIGITS, MOST_HEADS, MOST_LAYERS = 6, 64, 1024  # of random drafters
DRAFTERS = (
    f"medusa:K (heads, at most {MOST_HEADS}), layers:N (a language model of the target's layers, at most "
    f"{MOST_LAYERS}) or eagle"
)


def shape_config(shape: str) -> LlamaConfig:
    """Return a Llama configuration of a shape, one of `SHAPES`, without tokens that end a text."""
    return LlamaConfig(
        **{name: size for name, size in shape_fields(shape).items() if name != "model_type"},
        max_position_embeddings=40960,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def random_target(
    source: Path | str, *, dtype: torch.dtype = torch.float32, device: str = "cpu", packed: bool = False
) -> Target:
    """Return a target with random weights, the same ones each time.

    Args:
        source: one of `SHAPES`, or a folder with a config.json.
        dtype: of the weights.
        device: where they are made and stay.
        packed: see `executor.target.load_hf_model.load_target`.

    Raises:
        ExecutorError: neither a shape nor a folder, or an architecture that cannot verify trees.
    """
    if (shape := shape_name(source)) is not None:
        return _make_target(shape_config(shape), f"random-{shape}", dtype, device, packed)
    if not (Path(source) / "config.json").is_file():
        raise ExecutorError(f"{source}: neither a shape ({', '.join(SHAPES)}) nor a folder with a config.json")
    return _make_target(read_verifiable_config(source), f"random-{Path(source).resolve().name}", dtype, device, packed)


def random_drafter(source: str, target: Target, *, packed: bool = False) -> Drafter:
    """Return a drafter for the target with random weights, in its number type and on its device.

    Args:
        source: `medusa:K`, `layers:N`, or `eagle`.
        target: the target, whose shape it takes.
        packed: for `layers:N`, see `random_target`.

    Raises:
        UsageError: unknown source.
    """
    kind, _, number = source.partition(":")
    count = int(number) if number.isdecimal() and len(number) <= DIGITS else 0
    config = target.model.config
    torch.manual_seed(1)
    if kind == "layers" and 1 <= count <= MOST_LAYERS:
        small = _of_layers(config, count)
        name = f"{target.name}-{count}-layers"
        return LanguageModel(_make_target(small, name, target.dtype, str(target.device), packed))
    drafter: nn.Module
    if kind == "medusa" and 1 <= count <= MOST_HEADS:
        drafter = MedusaHeads(count, target.hidden)
        nn.init.normal_(drafter.weight, std=0.02)
    elif source == "eagle":
        drafter = Eagle(layer_config(config))
    else:
        raise UsageError(f"a drafter of random weights must be {DRAFTERS}, got {source!r}")
    made: Drafter = drafter.to(target.device, target.dtype).eval().requires_grad_(False)
    return made


def _of_layers(config: PretrainedConfig, count: int) -> PretrainedConfig:
    """Return the text part of a configuration with `count` layers, the first ones (repeated if they are all alike)."""
    text = config.get_text_config()
    present = int(text.num_hidden_layers)
    fields = text.to_dict()
    lists = {name for name, value in fields.items() if isinstance(value, list) and len(value) == present}
    per_layer = {name for name in lists if not name.endswith("token_id")}  # several end tokens are no layers
    cut = {name: (fields[name] * count)[:count] for name in per_layer}
    if count > present and any(value != fields[name][0] for name in per_layer for value in fields[name]):
        raise UsageError(f"layers:{count}: the model has {present} layers that differ, so none can be added")
    return type(text).from_dict(fields | cut | {"num_hidden_layers": count})


def _make_target(config: PretrainedConfig, name: str, dtype: torch.dtype, device: str, packed: bool) -> Target:
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()
    if packed:
        pack_where_it_fits(model)
    target = Target(model, name=name)
    if packed:
        fuse(target)
    return target
