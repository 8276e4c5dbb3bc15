"""What a model does to its LM head's output before it calls it logits."""

from torch import Tensor
from transformers import PretrainedConfig

from treeopt.errors import ExecutorError


def head_scaling(config: PretrainedConfig, raw: Tensor, logits: Tensor) -> tuple[float, float | None]:
    """What a model does to its LM head's output: a factor (Cohere, Granite), then perhaps a soft cap (Gemma 2).

    Found by comparing one forward's `raw` with its `logits`, since configurations name and use these in many ways.

    Raises:
        ExecutorError: it does something else.
    """
    raw, logits = raw.double(), logits.double()
    near = 2**-6 * float(logits.abs().max())  # a forward in half precision
    factor = float((logits * raw).sum() / raw.square().sum().clamp(min=1e-30))
    if abs(factor - 1) < 2**-9 or not near:
        factor = 1.0
    if float((factor * raw - logits).abs().max()) <= near:
        return factor, None
    cap = getattr(config.get_text_config(), "final_logit_softcapping", None)
    if cap and float((cap * (raw / cap).tanh() - logits).abs().max()) <= near:
        return 1.0, float(cap)
    raise ExecutorError(f"{config.model_type} models change their logits in a way that is not known")
