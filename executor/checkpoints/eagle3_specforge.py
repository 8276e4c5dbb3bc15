"""SpecForge's EAGLE-3 checkpoints: how their config.json differs from the other projects'.

* `architectures` is LlamaForCausalLMEagle3.
* `eagle_config` numbers layers by their outputs, not by their inputs (see `eagle3_target_layers`).
* `norm_output` means that the LM head reads the output of the last norm. For speculators and vLLM it means that the
  next pair reads it.

The tensors are named as in the reference.
"""

from typing import Any

from executor.checkpoints.tensors.lazy_tensors import Stored
from executor.drafters.eagle3 import Eagle3
from treeopt.errors import ExecutorError

ARCHITECTURE = "LlamaForCausalLMEagle3"


def feeds_normed(stored: Stored, norm_output: bool | None) -> bool:
    """Return whether the next pair reads the last norm's output, by the checkpoint's `norm_output`.

    Raises:
        ExecutorError: a SpecForge checkpoint whose LM head does not read the norm's output.
    """
    # A checkpoint that treeopt wrote also states the fact in treeopt's own section, with the usual meaning.
    if "norm_output" in stored.facts or ARCHITECTURE not in str(stored.config.get("architectures")):
        return bool(norm_output)
    if norm_output is False:
        raise ExecutorError(f"{stored.where}: norm_output false is not supported: the LM head must read the last norm")
    return False


def specforge_config(drafter: Eagle3, reference: dict[str, Any]) -> dict[str, Any]:
    """Return the config.json of SpecForge's layout.

    Args:
        drafter: what is written.
        reference: the config.json of the reference's layout.
    """
    config = dict(reference)
    del config["eagle_aux_hidden_state_layer_ids"]
    outputs = [tap - 1 for tap in drafter.taps]
    return config | {
        "architectures": [ARCHITECTURE],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": outputs, "use_aux_hidden_state": True},
        "fc_norm": drafter.norms == "fc",
        "norm_before_fc": drafter.norms == "input",
    }
