"""Which of the target's layers an EAGLE-3 checkpoint reads: its configuration's numbers, in the conventions there are.

Numbers of the configuration itself, and `layer_ids` of its `eagle_config`, count as Hugging Face's `hidden_states` do:
number i is what layer i is given. So vLLM and speculators take them. The others of `eagle_config` are SpecForge's: what
layers put out, and SGLang adds 1 to them for most targets. Where they are EAGLE's usual three, or name an input that is
no layer's output, they are inputs too, as SGLang takes them of DeepSeek's kind (sglang#25454).
"""

from collections.abc import Sequence
from typing import Any

from executor.checkpoints.tensors.lazy_tensors import Stored
from executor.drafters.eagle3 import usual_taps
from executor.target.target_model import Target
from treeopt.errors import ExecutorError

NAMES = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")
INPUTS, OUTPUTS = "hidden_states", "layer_outputs"


def taps_of(stored: Stored, wide: int, target: Target) -> tuple[int, ...]:
    """The layers whose inputs are read, side by side `wide`.

    Raises:
        ExecutorError: others are named, or none though they are not three.
    """
    layers = int(target.model.config.get_text_config().num_hidden_layers)
    found, convention = _said(stored, layers)
    named = 3 if found is None else len(found) if isinstance(found, list) else 0
    if found is not None and not (named and all(type(i) is int for i in found)):
        raise ExecutorError(f"{stored.where}: {NAMES[0]} must be a list of layers, found {found!r}")
    if named * target.hidden != wide:
        which = f"the three usual layers, as {stored.where} names none" if found is None else f"layers {found}"
        raise ExecutorError(
            f"{stored.path}: fc.weight must read {named} x {target.hidden} features of {which}, found {wide}"
        )
    if found is None:
        return usual_taps(layers)
    taps = tuple(i + 1 if convention == OUTPUTS else i for i in found)
    if not all(0 <= tap <= layers for tap in taps):
        raise ExecutorError(f"{stored.where}: {NAMES[0]} must name layers of the target's {layers}, found {found!r}")
    return taps


def counted(ids: Sequence[int], layers: int) -> str:
    """What the numbers of `eagle_config` are of: layers' inputs or outputs.

    >>> counted([1, 15, 28], 32), counted([2, 16, 29], 32)
    ('layer_outputs', 'hidden_states')
    """
    return INPUTS if tuple(ids) == usual_taps(layers) or layers in ids else OUTPUTS


def _said(stored: Stored, layers: int) -> tuple[Any, str]:
    if stored.facts.get("aux_layers") is not None:
        return stored.facts["aux_layers"], str(stored.facts.get("aux_convention"))
    nested = stored.config.get("eagle_config")
    nested = nested if isinstance(nested, dict) else {}
    for part, names in ((stored.config, NAMES), (nested, ("layer_ids",))):
        if (found := next((part[name] for name in names if part.get(name) is not None), None)) is not None:
            return found, INPUTS
    found = next((nested[name] for name in NAMES if nested.get(name) is not None), None)
    return found, counted(found, layers) if isinstance(found, list) else INPUTS
