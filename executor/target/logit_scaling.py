"""What a model does to its LM head's output before it calls it logits."""

import torch
from torch import Tensor
from transformers import PretrainedConfig

from treeopt.errors import ExecutorError


def head_scaling(config: PretrainedConfig, raw: Tensor, logits: Tensor) -> tuple[float, float | None]:
    """What a model does to its LM head's output: a factor (Cohere, Granite), or a soft cap (Gemma 2).

    Found by comparing one forward's `raw` with its `logits`, since configurations name and use these in many ways.
    Logits far below a cap look as if scaled by a factor: where a configuration names a cap, it is believed unless
    another account is nearer by more than rounding.

    Raises:
        ExecutorError: it does something else.
    """
    step = max(torch.finfo(values.dtype).eps for values in (raw, logits))
    raw, logits = raw.double(), logits.double()
    largest = float(logits.abs().max())
    cap = getattr(config.get_text_config(), "final_logit_softcapping", None)
    fitted = float((logits * raw).sum() / raw.square().sum().clamp(min=1e-30))
    accounts: list[tuple[float, float | None]] = [(1.0, None), (fitted, None)]
    apart = [float((factor * raw - logits).abs().max()) for factor, _ in accounts]
    if cap and apart[0]:
        capped = float((cap * (raw / cap).tanh() - logits).abs().max())
        if capped <= max(min(apart), 4 * step * largest):
            accounts, apart = [(1.0, float(cap))], [capped]
    for account, far in zip(accounts, apart, strict=True):
        if far <= min(16 * step, 2**-6) * largest:
            return account
    raise ExecutorError(f"{config.model_type} models change their logits in a way that is not known")
