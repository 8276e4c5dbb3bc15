"""The target's layers that an EAGLE-3 checkpoint reads, by the numbers of its config.json in two conventions.

Numbers at the top level, and `layer_ids` in `eagle_config`, count as Hugging Face's `hidden_states`: number i is the
input of layer i. vLLM and speculators read them so. The other numbers in `eagle_config` are SpecForge's and count
outputs of layers; SGLang adds 1 to them for most targets. Where they are EAGLE's usual three, or name an input that is
no layer's output, they count inputs too, as SGLang reads them for DeepSeek's kind (sglang#25454); and for gpt-oss
always (sglang#32334). With `use_aux_hidden_state` false a drafter reads the input of the target's LM head alone.
"""

from collections.abc import Sequence
from typing import Any

from executor.checkpoints.eagle3_norms import ARCHITECTURE
from executor.checkpoints.tensors.lazy_tensors import Stored
from executor.drafters.eagle3 import usual_taps
from executor.target.target_model import Target
from treeopt.errors import ExecutorError

NAMES = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")
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
    count = 3 if ids is None else len(ids) if isinstance(ids, list) else 0
    if ids is not None and not (count and all(type(i) is int for i in ids)):
        raise ExecutorError(f"{stored.where}: {NAMES[0]} must be a list of layers, found {ids!r}")
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
    return taps


def reads_last_feature(stored: Stored) -> bool:
    """Return whether the drafter reads the input of the target's LM head, and no other layers.

    Raises:
        ExecutorError: the field is neither true nor false.
    """
    if stored.facts.get("aux_layers") is not None:
        return bool(stored.facts["aux_layers"] == [])
    nested = stored.config.get("eagle_config")
    parts = [stored.config, *([nested] if isinstance(nested, dict) else [])]
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


def _named_layers(stored: Stored, layers: int, target: str) -> tuple[Any, str]:
    """Return the numbers in the configuration, unchecked, None without any; and their convention.

    Args:
        stored: the checkpoint.
        layers: of the target.
        target: its `model_type`.
    """
    if stored.facts.get("aux_layers") is not None:
        return stored.facts["aux_layers"], str(stored.facts.get("aux_convention"))
    nested = stored.config.get("eagle_config")
    nested = nested if isinstance(nested, dict) else {}
    for part, names in ((stored.config, NAMES), (nested, ("layer_ids",))):
        if (ids := next((part[name] for name in names if part.get(name) is not None), None)) is not None:
            return ids, INPUTS
    ids = next((nested[name] for name in NAMES if nested.get(name) is not None), None)
    if not isinstance(ids, list) or target in BOUNDARIES:
        return ids, INPUTS
    convention = convention_of(ids, layers)
    if convention == OUTPUTS and ARCHITECTURE not in str(stored.config.get("architectures")):
        stored.assume(
            f"the layers {ids} of eagle_config are taken for outputs of layers, as SpecForge and SGLang count them; "
            "vLLM counts inputs; numbers outside eagle_config are inputs everywhere"
        )
    return ids, convention
