"""Which of the target's layers an EAGLE-3 checkpoint reads: its configuration's numbers, in the conventions there are.

EAGLE, vLLM, speculators and sglang count as Hugging Face's `hidden_states` do: i is what layer i is given. SpecForge
numbers layers by what they put out: i there is i + 1 here. Files do not say which; what begins with 1 is of the second
kind, as sglang takes it, unless speculators wrote it.
"""

from typing import Any

from executor.checkpoints.stored import Stored
from executor.drafters.eagle3 import usual_taps
from executor.target import Target
from treeopt.errors import ExecutorError

NAMES = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")
INPUTS, OUTPUTS = "hidden_states", "layer_outputs"


def taps_of(stored: Stored, wide: int, target: Target) -> tuple[int, ...]:
    """The layers whose inputs are read, side by side `wide`.

    Raises:
        ExecutorError: others are named, or none though they are not three.
    """
    layers = int(target.model.config.get_text_config().num_hidden_layers)
    found, convention = _said(stored)
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


def _said(stored: Stored) -> tuple[Any, str]:
    if stored.facts.get("aux_layers") is not None:
        return stored.facts["aux_layers"], str(stored.facts.get("aux_convention"))
    places = [part for part in (stored.config, stored.config.get("eagle_config")) if isinstance(part, dict)]
    found = next((part[name] for part in places for name in NAMES if part.get(name) is not None), None)
    second = isinstance(found, list) and found[:1] == [1] and "speculators_model_type" not in stored.config
    return found, OUTPUTS if second else INPUTS
