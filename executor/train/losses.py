"""What drafters are trained to reduce: named terms over one depth's scores."""

import torch
from torch import Tensor


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean of −log softmax(logits)[label], in float32; logits (rows, vocabulary), labels int64 (rows,)."""
    return torch.nn.functional.cross_entropy(logits.float(), labels)
