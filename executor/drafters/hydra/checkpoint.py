"""Read and write Hydra heads: `hydra_mlp.{i}.{place}.*`, `hydra_lm_head.{i}.*`, `prefix_embeding_layer.*`.

The first block of a head has `linear` and `res_connection`; further blocks have only `linear` and are copies of one
block. With Hydra++'s layer before the heads there are dropouts between the blocks, so blocks stand at odd places and
outputs at `hydra_lm_head.{i}.1`. Heads that do not read drafted tokens have no `res_connection`, and all their blocks
are one.
"""

import re
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from executor.checkpoints.tensors.detect_layout import plain_name
from executor.checkpoints.tensors.layer_config import check_fields, config_of, fields, layer_fields
from executor.checkpoints.tensors.layer_positions import window_of
from executor.checkpoints.tensors.lazy_tensors import Entry, Stored, fill_module, named
from executor.checkpoints.tensors.write_tensors import Written
from executor.drafters.hydra.drafter import Hydra
from executor.target.target_model import Target
from treeopt.errors import ExecutorError, shorten

FILE = "hydra_lm_head"
PREFIX, LAYER = "prefix_embeding_layer.", "prefix_embeding_layer.layers.0."  # sic
UNUSED = ("prefix.embed_tokens.weight", "prefix.rotary_emb.inv_freq", "prefix.self_attn.rotary_emb.inv_freq")
_BLOCK = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.(linear|res_connection)\.(weight|bias)")
_OUTPUT = re.compile(r"hydra_lm_head\.(\d+)\.(?:1\.)?(weight|bias)")
_HEAD = re.compile(r"heads\.(\d+)\.(first|skip|block|output)\.(weight|bias)")
PARTS = ("weight", "bias")
MAX_LAYERS = 64  # the most that a configuration may claim


def read_hydra(stored: Stored, target: Target) -> Hydra:
    """Read Hydra or Hydra++; the tensors decide the numbers of heads and layers, and what the heads read.

    Raises:
        ExecutorError: names tensors that do not fit, blocks that should be copies and are not, or an unsupported
            architecture.
    """
    stored = stored.renamed(lambda name: plain_name(name).removeprefix("hydra_head."))
    if stored.config.get("hidden_state_offset"):
        raise ExecutorError(f"{stored.where}: hidden_state_offset must be 0: heads read the target's last layer")
    places = _places(stored)
    config = None
    if any(name.startswith(PREFIX) for name in stored.entries):
        config = config_of(stored, LAYER, target, hidden=target.hidden)
        if window_of(stored, layer_fields(stored), 0) is not None:
            raise ExecutorError(f"{stored.where}: layer_types: Hydra++ that attends to a window is not supported")
    layers = len(places[0])
    claimed = stored.config.get("hydra_num_layers")
    if layers == 2 and type(claimed) is int and 2 < claimed <= MAX_LAYERS:  # tensors that are copies were left out
        layers = claimed
    renamed = stored.renamed(lambda name: _parameter_name(name, places))
    renamed = replace(renamed, spelt=partial(_file_name, spread=places[0][0] > 0))
    skipping = any(".skip." in name for name in renamed.entries)
    if not skipping:
        renamed = _without_skips(renamed, len(places), layers, target.hidden)
    first = renamed.entries.get("heads.0.first.weight")
    drafter = fill_module(
        lambda: Hydra(
            target.hidden,
            target.vocabulary,
            heads=len(places),
            layers=layers,
            prefix=config,
            grounded=skipping and (first is None or first.shape != (target.hidden, target.hidden)),
        ),
        renamed,
        str,
        ignored=UNUSED,
    )
    _check_copies(stored, places, since=2 if skipping else 1)
    if config is None:
        check_fields(stored, stored.config)
    return drafter


def _places(stored: Stored) -> dict[int, list[int]]:
    """Return head -> places of its blocks, at least one."""
    places: dict[int, set[int]] = {}
    for name in stored.entries:
        if (part := _BLOCK.fullmatch(name)) is not None:
            places.setdefault(int(part[1]), set()).add(int(part[2]))
    kind = stored.config.get("hydra_head_arch")
    if not places or kind not in (None, "mlp", "prefix-mlp"):
        raise ExecutorError(
            f"{stored.path}: Hydra heads must be MLPs (hydra_head_arch mlp or prefix-mlp, found {kind!r}), with "
            f"hydra_mlp.* among the tensors; found {shorten(sorted(stored.entries)) or 'none'}"
        )
    if sorted(places) != list(range(len(places))):
        raise ExecutorError(
            f"{stored.path}: heads must be numbered from 0, hydra_mlp has {shorten(list(map(str, places)))}"
        )
    other = next((head for head in places if len(places[head]) != len(places[0])), None)
    if other is not None:
        raise ExecutorError(
            f"{stored.path}: all heads must have the same number of blocks: hydra_mlp.0 has {len(places[0])}, "
            f"hydra_mlp.{other} has {len(places[other])}"
        )
    return {head: sorted(places[head]) for head in sorted(places)}


def _parameter_name(name: str, places: dict[int, list[int]]) -> str | None:
    """Return the name of the module's parameter for this tensor; None for the copies of a block."""
    if (part := _BLOCK.fullmatch(name)) is not None:
        head, number = int(part[1]), places[int(part[1])].index(int(part[2]))
        if part[3] == "linear" and number > 1:
            return None
        if part[3] == "linear" or number == 0:
            kind = "skip" if part[3] == "res_connection" else "block" if number else "first"
            return f"heads.{head}.{kind}.{part[4]}"
    if (part := _OUTPUT.fullmatch(name)) is not None:
        return f"heads.{part[1]}.output.{part[2]}"
    if name.startswith(PREFIX):
        return "prefix." + name.removeprefix(LAYER).removeprefix(PREFIX)
    return name


def _file_name(parameter: str, *, spread: bool) -> str:
    """Return the name in a file of one of the module's parameters; `spread`: dropouts stand between the blocks."""
    part = _HEAD.fullmatch(parameter)
    if part is None:
        inner = parameter.removeprefix("prefix.")
        return PREFIX + inner if inner == "norm.weight" else LAYER + inner
    if part[2] == "output":
        return f"hydra_lm_head.{part[1]}.{'1.' if spread else ''}{part[3]}"
    place = int(part[2] == "block") * (1 + spread) + spread
    return f"hydra_mlp.{part[1]}.{place}.{'res_connection' if part[2] == 'skip' else 'linear'}.{part[3]}"


def _without_skips(renamed: Stored, heads: int, layers: int, hidden: int) -> Stored:
    """Add the skip connections of blocks that add to their own input, and use the first block for all."""
    entries = dict(renamed.entries)
    for i in range(heads):
        entries[f"heads.{i}.skip.weight"] = Entry("", (hidden, hidden), torch.float32, lambda: torch.eye(hidden))
        entries[f"heads.{i}.skip.bias"] = Entry("", (hidden,), torch.float32, lambda: torch.zeros(hidden))
        for part in PARTS:
            if layers > 1 and f"heads.{i}.first.{part}" in entries:
                entries[f"heads.{i}.block.{part}"] = entries[f"heads.{i}.first.{part}"]
    return replace(renamed, entries=entries)


def _check_copies(stored: Stored, places: dict[int, list[int]], *, since: int) -> None:
    """Refuse blocks that differ: the published code repeats one block, so they would be another network."""
    for head, at in places.items():
        for copy in at[since:]:
            for part in PARTS:
                one, other = (f"hydra_mlp.{head}.{place}.linear.{part}" for place in (at[since - 1], copy))
                if not _equal(stored, one, other):
                    raise ExecutorError(
                        f"{stored.path}: {other} must equal {one}: further layers of a head are one layer, repeated"
                    )


def _equal(stored: Stored, one: str, other: str) -> bool:
    kinds = [(e.shape, e.dtype) for name in (one, other) if (e := stored.entries.get(name)) is not None]
    return len(kinds) == 2 and kinds[0] == kinds[1] and torch.equal(stored.read(one), stored.read(other))


def hydra_content(drafter: Hydra, layout: str | None, target: Target | None, name: str) -> Written:
    """Return the file contents for Hydra heads; the layout `hydra` is the published file, else safetensors.

    Raises:
        ExecutorError: heads that do not read drafted tokens, which are published without skip connections.
    """
    if layout and not drafter.grounded:
        raise ExecutorError("hydra: heads that do not read drafted tokens have no skip connections there, these have")
    spread = drafter.prefix is not None  # dropouts stand between
    tensors: dict[str, Tensor] = named(drafter, partial(_file_name, spread=spread))
    for i, head in enumerate(drafter.heads):
        for n in range(2, drafter.layers):
            for part in PARTS:
                place = n * (1 + spread) + spread
                tensors[f"hydra_mlp.{i}.{place}.linear.{part}"] = head.get_parameter(f"block.{part}")
    config = {
        "hydra_num_heads": len(drafter.heads),
        "hydra_num_layers": drafter.layers,
        "hydra_head_arch": "prefix-mlp" if spread else "mlp",
        "grounded_heads": drafter.grounded,
        "hidden_state_offset": 0,
        "base_model_name_or_path": name,
    }
    facts: dict[str, Any] = {"kind": drafter.kind, "heads": len(drafter.heads), "layers": drafter.layers}
    if drafter.config is not None:
        facts["layer"] = fields(drafter.config)
    return Written(f"{FILE}.pt" if layout else f"{FILE}.safetensors", tensors, config, facts)
