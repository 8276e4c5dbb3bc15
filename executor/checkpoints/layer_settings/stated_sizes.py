"""Sizes that config.json states beside those of the tensors: a number of layers must agree, others are printed.

The tensors decide all sizes. A layer that is missing may be a lost shard, so that a contradicted number is an error,
unless it is the target's: then the configuration was copied from the target.
"""

from collections.abc import Mapping

from transformers import LlamaConfig

from executor.checkpoints.layer_settings.layer_config import layer_fields
from executor.checkpoints.tensors.lazy_tensors import Stored
from executor.target.target_model import Target
from treeopt.errors import ExecutorError


def check_sizes(stored: Stored, target: Target, *, layers: int, sizes: Mapping[str, int]) -> None:
    """Check the number of decoder layers, and print which of the other sizes are contradicted.

    Args:
        stored: the checkpoint.
        target: that it drafts for.
        layers: whose tensors are stored.
        sizes: field of config.json -> what the tensors have.

    Raises:
        ExecutorError: another number of layers is stated.
    """
    said, theirs = (
        layer_fields(stored).get("num_hidden_layers"),
        target.model.config.get_text_config().num_hidden_layers,
    )
    if said not in (None, layers, theirs):
        raise ExecutorError(
            f"{stored.where}: num_hidden_layers is {said!r:.40}, but {stored.path.name} has tensors of {layers}: is a "
            "part of the checkpoint missing? if not, correct the number"
        )
    if said not in (None, layers):
        stored.assume(f"num_hidden_layers is {said}, as the target's, but the tensors are of {layers}, which is used")
    note_sizes(stored, sizes)


def note_sizes(stored: Stored, sizes: Mapping[str, int | bool]) -> None:
    """Note which sizes of config.json the tensors contradict; `sizes` is field -> what the tensors have."""
    for name, size in sizes.items():
        stated = [part[name] for part in (stored.config, layer_fields(stored)) if part.get(name) not in (None, size)]
        if stated:
            stored.assume(f"{name} is {stated[0]!r:.40}, but the tensors have {size}, which is used")


def note_missing(stored: Stored, switches: Mapping[str, bool]) -> None:
    """Note which fields of config.json are true without their tensors; `switches` is field -> the tensors exist."""
    parts = (stored.config, layer_fields(stored))
    for name, there in switches.items():
        if not there and any(part.get(name) is True for part in parts):
            stored.assume(f"{name} is true, but {stored.path.name} has no such tensors: none are used")


def layer_switches(config: LlamaConfig) -> dict[str, bool]:
    """Return the biases of a decoder layer, by the tensors."""
    attention = bool(config.attention_bias)
    return {"attention_bias": attention, "qkv_bias": attention, "mlp_bias": bool(config.mlp_bias)}


def layer_sizes(config: LlamaConfig) -> dict[str, int]:
    """Return the sizes of a decoder layer, by the tensors."""
    return {name: int(getattr(config, name)) for name in ("intermediate_size", "num_key_value_heads")}
