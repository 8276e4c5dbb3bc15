"""Targets and drafters of a given shape with random weights: the time of a forward depends only on the shape."""

from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig

from executor.drafters.base.drafter import Drafter
from executor.target.fused_verification import fuse
from executor.target.load_hf_model import read_verifiable_config
from executor.target.packed_linears import pack_where_it_fits
from executor.target.target_model import Target
from simulate.model_sizes.drafter_kinds import DRAFTERS
from simulate.model_sizes.hf_config import SHAPES, shape_fields, shape_name
from treeopt.errors import ExecutorError, UsageError
from treeopt.registry import load
from treeopt.storage.hub_models import folder_name, hub_hint

DIGITS = 6  # of the number of a random drafter


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
        return make_target(shape_config(shape), f"random-{shape}", dtype, device, packed)
    if not (Path(source) / "config.json").is_file():
        known = f"neither a shape ({', '.join(SHAPES)}) nor a folder with a config.json"
        raise ExecutorError(f"{source}: {known}{hub_hint(source)}")
    return make_target(read_verifiable_config(source), f"random-{folder_name(source)}", dtype, device, packed)


def random_drafter(source: str, target: Target, *, packed: bool = False) -> Drafter:
    """Return a drafter for the target with random weights, in its number type and on its device.

    Args:
        source: `medusa:K`, `layers:N`, or `eagle`; see `DrafterKind.random`.
        target: the target, whose shape it takes.
        packed: for `layers:N`, see `random_target`.

    Raises:
        UsageError: unknown source.
    """
    known = {kind.random.option.partition(":")[0]: kind.random for kind in DRAFTERS.values() if kind.random}
    word, colon, number = source.partition(":")
    option = known.get(word)
    count = int(number) if number.isdecimal() and len(number) <= DIGITS else 0
    if option is None or not (1 <= count <= option.most or (option.most == 0 and not colon)):
        *first, last = map(str, known.values())
        raise UsageError(f"a drafter of random weights must be {', '.join(first)} or {last}, got {source!r}")
    torch.manual_seed(1)
    made: Drafter = load(option.make)(target, count, packed)
    return made.to(target.device, target.dtype).eval().requires_grad_(False) if isinstance(made, nn.Module) else made


def make_target(config: PretrainedConfig, name: str, dtype: torch.dtype, device: str, packed: bool) -> Target:
    """Return a target of this configuration with random weights, the same ones each time; see `random_target`."""
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()
    if packed:
        pack_where_it_fits(model)
    target = Target(model, name=name)
    if packed:
        fuse(target)
    return target
