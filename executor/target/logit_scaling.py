"""Logit scaling: the factor or soft cap that a model applies to its LM head's output."""

import torch
from torch import Tensor
from transformers import PretrainedConfig

from treeopt.errors import ExecutorError


def head_scaling(config: PretrainedConfig, raw: Tensor, logits: Tensor) -> tuple[float, float | None]:
    """Return the factor (Cohere, Granite) and the soft cap (Gemma 2; None for none) on the LM head's output.

    They are measured by comparing one forward's `raw` with its `logits`, since configurations name and use them in many
    ways. Logits far below a cap look as if scaled by a factor: a cap that the configuration names is believed unless
    another explanation is nearer by more than rounding.

    Raises:
        ExecutorError: the model changes its logits in another way.
    """
    step = max(torch.finfo(values.dtype).eps for values in (raw, logits))
    raw, logits = raw.double(), logits.double()
    largest = float(logits.abs().max())
    cap = getattr(config.get_text_config(), "final_logit_softcapping", None)
    fitted = float((logits * raw).sum() / raw.square().sum().clamp(min=1e-30))
    scalings: list[tuple[float, float | None]] = [(1.0, None), (fitted, None)]
    errors = [float((factor * raw - logits).abs().max()) for factor, _ in scalings]
    if cap and errors[0]:
        capped = float((cap * (raw / cap).tanh() - logits).abs().max())
        if capped <= max(min(errors), 4 * step * largest):
            scalings, errors = [(1.0, float(cap))], [capped]
    for scaling, error in zip(scalings, errors, strict=True):
        if error <= min(16 * step, 2**-6) * largest:
            return scaling
    raise ExecutorError(f"{config.model_type} models change their logits in a way that is not known")
