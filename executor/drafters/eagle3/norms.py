"""EAGLE-3's norms: which there are, and what `norm_output` means in the file of each trainer.

In vLLM, SGLang, speculators, NeMo Automodel and TorchSpec `norm_output` means that the next pair reads the output of
the last norm. In SpecForge before its pull request 879 it meant that the LM head reads it, as in all of EAGLE-3. Both
write the class LlamaForCausalLMEagle3; fields and names that only the others have tell them apart.
"""

from typing import Any, Literal

from executor.checkpoints.layer_settings.config_fields import eagle_fields
from executor.checkpoints.tensors.lazy_tensors import Stored
from treeopt.errors import ExecutorError

ARCHITECTURE = "LlamaForCausalLMEagle3"
# Fields that SpecForge does not write beside this class.
OTHERS = ("parallel_drafting", "target_hidden_size", "num_aux_hidden_states", "speculators_model_type")
FIELDS = ("norm_before_residual", "norm_output", "fc_norm", "norm_before_fc")
# NVIDIA ModelOpt's fields, and the only values that are EAGLE-3's.
MODELOPT = {"use_mtp_layernorm": False, "use_last_layernorm": True, "use_input_layernorm_in_first_layer": True}


def norm_options(stored: Stored) -> dict[str, Any]:
    """Return the variants of `Eagle3`: the norms by the tensors, their order by the configuration.

    Raises:
        ExecutorError: the configuration contradicts itself or the tensors, or leaves out what readers differ in.
    """
    single, per_tap = "input_norm.weight" in stored.entries, any(n.startswith("fc_norm.") for n in stored.entries)
    if single and per_tap:
        raise ExecutorError(f"{stored.path}: holds both input_norm and fc_norm")
    norms: Literal["none", "fc", "input"] = "input" if single else "fc" if per_tap else "none"
    given = {name: _flag(stored, name) for name in FIELDS}
    for name, expected in MODELOPT.items():
        if _flag(stored, name) not in (None, expected):
            raise ExecutorError(
                f"{stored.where}: {name} {str(not expected).lower()} is not supported: EAGLE-3 has "
                f"{str(expected).lower()}"
            )
    for name, tensor, present in (
        ("fc_norm", "fc_norm.0.weight", per_tap),
        ("norm_before_fc", "input_norm.weight", single),
    ):
        if given[name] is not None and given[name] != present:
            verb = "holds" if present else "lacks"
            raise ExecutorError(
                f"{stored.where}: {name} is {str(given[name]).lower()}, but {stored.path.name} {verb} {tensor}"
            )
    before = given["norm_before_residual"]
    if "speculators_model_type" in stored.config and before is None:
        raise ExecutorError(
            f"{stored.where}: norm_before_residual is missing: speculators reads that as false, vLLM as true; add the "
            "value that the drafter was trained with"
        )
    fed = _feeds_normed(stored, given["norm_output"])
    return {"norms": norms, "norm_before_residual": bool(before), "feeds_normed": fed}


def _flag(stored: Stored, name: str) -> bool | None:
    """Return a field of treeopt's own section, else of the file or its `eagle_config`; None where it is absent."""
    parts = [stored.config, eagle_fields(stored)]
    values = [stored.facts[name]] if name in stored.facts else [part[name] for part in parts if name in part]
    values = [value for value in values if value is not None]
    for value in values:
        if not isinstance(value, bool):
            raise ExecutorError(f"{stored.where}: {name} must be true or false, found {value!r}")
    if len(set(values)) > 1:
        raise ExecutorError(f"{stored.where}: {name} differs from the one in eagle_config")
    return values[0] if values else None


def _feeds_normed(stored: Stored, norm_output: bool | None) -> bool:
    """Return whether the next pair reads the last norm's output, by the checkpoint's `norm_output`."""
    # A checkpoint that treeopt wrote also states the fact in treeopt's own section, with the usual meaning.
    if norm_output is None or "norm_output" in stored.facts or _is_not_specforge(stored):
        return bool(norm_output)
    if norm_output:
        stored.assume(
            "norm_output true is taken for SpecForge's before its pull request 879: the LM head reads the last norm, "
            "the next pair does not; if the next pair reads it too, add target_hidden_size, as NeMo Automodel has it"
        )
    else:
        stored.assume(
            "norm_output false is taken for SpecForge's since its pull request 879, as in vLLM and SGLang: the LM head "
            "reads the last norm, the next pair does not"
        )
    return False


def _is_not_specforge(stored: Stored) -> bool:
    if ARCHITECTURE not in str(stored.config.get("architectures")):
        return True
    names = [entry.key.removeprefix("module.") for entry in stored.entries.values()]
    return any(name in stored.config for name in OTHERS) or any(name.startswith("model.") for name in names)
