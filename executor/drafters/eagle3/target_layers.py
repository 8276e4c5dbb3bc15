"""The target's layers that an EAGLE-3 checkpoint reads, by the numbers of its config.json in two conventions.

Numbers at the top level, and `layer_ids` in `eagle_config`, count as Hugging Face's `hidden_states`: number i is the
input of layer i. vLLM and speculators read them so. The other numbers in `eagle_config` are SpecForge's and count
outputs of layers; SGLang adds 1 to them for most targets. Where they are EAGLE's usual three, or name an input that is
no layer's output, they count inputs too, as SGLang reads them for DeepSeek's kind (sglang#25454); and for gpt-oss
always (sglang#32334). DeepSpec's `target_layer_ids` count outputs. Engines collect features in the order of the layers,
so that the order of numbers says nothing; an empty list names the usual layers. With `use_aux_hidden_state` false a
drafter reads the input of the target's LM head alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from executor.checkpoints.layer_settings.config_fields import eagle_fields
from executor.checkpoints.tensors.lazy_tensors import Stored
from executor.drafters.eagle3.drafter import usual_taps
from executor.drafters.eagle3.norms import ARCHITECTURE
from executor.target.target_model import Target
from treeopt.errors import ExecutorError

NAMES = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")
OUTPUTS_NAMES = ("target_layer_ids",)  # DeepSpec's, outputs of layers
Named = tuple[str, list[int]]  # a field, and its list
INPUTS, OUTPUTS = "hidden_states", "layer_outputs"
BOUNDARIES = ("gpt_oss",)  # targets for which engines count inputs everywhere


def taps_of(stored: Stored, wide: int, target: Target) -> tuple[int, ...]:
    """Return the layers whose inputs are read; together they are `wide`.

    Raises:
        ExecutorError: the configuration names layers that do not fit `wide`, or none and there are not three.
    """
    if reads_last_feature(stored):
        if wide != target.hidden:
            raise ExecutorError(
                f"{stored.path}: fc.weight must read {target.hidden} features, the target's last ones, as "
                f"{stored.where} has use_aux_hidden_state false, found {wide}"
            )
        return ()
    config = target.model.config.get_text_config()
    layers = int(config.num_hidden_layers)
    ids, convention = _named_layers(stored, layers, str(config.model_type))
    count = 3 if ids is None else len(ids)
    if count * target.hidden != wide:
        which = f"the three usual layers, as {stored.where} names none" if ids is None else f"layers {ids}"
        raise ExecutorError(
            f"{stored.path}: fc.weight must read {count} x {target.hidden} features of {which}, found {wide}"
        )
    if ids is None:
        return usual_taps(layers)
    taps = tuple(i + 1 if convention == OUTPUTS else i for i in ids)
    if not all(0 <= tap <= layers for tap in taps):
        raise ExecutorError(f"{stored.where}: {NAMES[0]} must name layers of the target's {layers}, found {ids!r}")
    if stored.facts.get("aux_layers") is not None:  # treeopt's own, also of targets with few layers
        return taps
    if len(set(taps)) < count:
        raise ExecutorError(f"{stored.where}: {NAMES[0]} must name each layer once, found {ids!r}")
    return tuple(sorted(taps))


def reads_last_feature(stored: Stored) -> bool:
    """Return whether the drafter reads the input of the target's LM head, and no other layers.

    Raises:
        ExecutorError: the field is neither true nor false.
    """
    if stored.facts.get("aux_layers") is not None:
        return bool(stored.facts["aux_layers"] == [])
    parts = [stored.config, eagle_fields(stored)]
    values = [part["use_aux_hidden_state"] for part in parts if part.get("use_aux_hidden_state") is not None]
    if any(not isinstance(value, bool) for value in values) or len(set(values)) > 1:
        raise ExecutorError(f"{stored.where}: use_aux_hidden_state must be true or false, found {values}")
    return False in values


def convention_of(ids: Sequence[int], layers: int) -> str:
    """Return whether the numbers in `eagle_config` count inputs or outputs of layers.

    >>> convention_of([1, 15, 28], 32), convention_of([2, 16, 29], 32)
    ('layer_outputs', 'hidden_states')
    """
    return INPUTS if tuple(ids) == usual_taps(layers) or layers in ids else OUTPUTS


def _named_layers(stored: Stored, layers: int, target: str) -> tuple[list[int] | None, str]:
    """Return the numbers in the configuration, None without any; and their convention.

    Args:
        stored: the checkpoint.
        layers: of the target.
        target: its `model_type`.
    """
    if stored.facts.get("aux_layers") is not None:
        ids = _checked(stored, NAMES[0], stored.facts["aux_layers"])
        return ids, str(stored.facts.get("aux_convention"))
    nested = eagle_fields(stored)
    inputs = _lists(stored, stored.config, NAMES) + _lists(stored, nested, ("layer_ids",), "eagle_config.")
    inputs += [(name, [i + 1 for i in ids]) for name, ids in _lists(stored, stored.config, OUTPUTS_NAMES)]
    others = _lists(stored, nested, NAMES, "eagle_config.")
    _check_same(stored, inputs, others)
    if inputs or not others or target in BOUNDARIES:
        return next((ids for _, ids in inputs or others), None), INPUTS
    ids = others[0][1]
    convention = convention_of(ids, layers)
    if convention == OUTPUTS and ARCHITECTURE not in str(stored.config.get("architectures")):
        stored.assume(
            f"the layers {ids} of eagle_config are taken for outputs of layers, as SpecForge and SGLang count them; "
            "vLLM counts inputs; numbers outside eagle_config are inputs everywhere"
        )
    return ids, convention


def _lists(
    stored: Stored, part: Mapping[str, Any], names: Sequence[str], place: str = ""
) -> list[tuple[str, list[int]]]:
    """Return the lists of layers in a part of the configuration, with their fields; an empty one says nothing."""
    given = [(f"{place}{name}", part[name]) for name in names if part.get(name) not in (None, [])]
    return [(name, _checked(stored, name, ids)) for name, ids in given]


def _checked(stored: Stored, name: str, ids: Any) -> list[int]:
    if not (isinstance(ids, list) and ids and all(type(i) is int for i in ids)):
        raise ExecutorError(f"{stored.where}: {name} must be a list of layers, found {ids!r}")
    return ids


def _check_same(stored: Stored, inputs: list[Named], others: list[Named]) -> None:
    """Refuse two lists of different layers; `others` may count inputs or outputs."""
    first = next(iter(inputs or others), ("", []))
    for name, ids in [*inputs, *others]:
        may = [sorted(ids)]
        if inputs and (name, ids) in others:
            may.append([i + 1 for i in sorted(ids)])
        if sorted(first[1]) not in may:
            raise ExecutorError(
                f"{stored.where}: {first[0]} {first[1]} and {name} {ids} name different layers: remove one"
            )
