"""Temperature, top-k and top-p: one pipeline for target, drafter and bonus token, and draws from its probabilities.

Nothing here reads a tensor on the host. All randomness comes in as uniforms or as a generator.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.errors import UsageError

LOWEST = 1e-4  # scores divided by a lower temperature may leave the range of fp32


@dataclass(frozen=True)
class Warp:
    """Turns scores into the distribution that is sampled: temperature, then top-k, then top-p, as in Hugging Face.

    Attributes:
        temperature: scores are divided by it.
        top_k: keep the tokens that score at least as much as the k-th best, so ties may leave more than k.
        top_p: keep the best tokens until their mass reaches it, at least one. Sorting decides between equal scores.

    >>> Warp(top_k=2).log_probabilities(torch.tensor([0.0, 0.0, -1.0])).exp()
    tensor([0.5000, 0.5000, 0.0000])
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        """Raise UsageError, naming the field, if a value is out of range."""
        if 0 < self.temperature < LOWEST:
            raise UsageError(
                f"temperature must be at least {LOWEST} to sample, got {self.temperature}; use rule greedy"
            )
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise UsageError(f"temperature must be positive to sample, got {self.temperature}; for 0 use rule greedy")
        if self.top_k is not None and not (type(self.top_k) is int and self.top_k >= 1):
            raise UsageError(f"top_k must be an integer of at least 1, got {self.top_k!r}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p must be in (0, 1], got {self.top_p}")

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """Return warped log-probabilities, (..., vocabulary); float64 for float64, float32 for any other dtype."""
        scores = logits if logits.dtype == torch.float64 else logits.float()
        if self.temperature != 1:
            scores = scores / self.temperature
        if self.top_k is not None:
            lowest = scores.topk(min(self.top_k, scores.shape[-1]), dim=-1).values[..., -1:]
            scores = scores.masked_fill(scores < lowest, -torch.inf)
        if self.top_p < 1:
            rising, order = scores.sort(dim=-1)
            dropped = rising.softmax(-1).cumsum(-1) <= 1 - self.top_p
            dropped[..., -1] = False
            scores = scores.masked_fill(dropped.scatter(-1, order, dropped), -torch.inf)
        return scores.log_softmax(-1)


def seeded_generator(device: torch.device, seed: int) -> torch.Generator:
    """Return a seeded generator on the device."""
    return torch.Generator(device=device).manual_seed(seed)


def pick(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Return the tokens at which the cumulated weights pass each uniform's share of the total.

    Blocks are summed first, so the vocabulary is read only once and no noise of its size is drawn.

    Args:
        weights: (..., vocabulary), not negative, with any sum. Where all are 0 the token has no meaning.
        uniforms: float64 (..., draws) in [0, 1).

    Returns:
        int64 (..., draws), each with a positive weight.

    >>> pick(torch.tensor([1.0, 0.0, 3.0]), torch.tensor([0.1, 0.9], dtype=torch.float64))
    tensor([0, 2])
    """
    vocabulary = weights.shape[-1]
    size = 1 << (math.isqrt(max(0, vocabulary - 1)).bit_length())
    blocks = F.pad(weights, (0, -vocabulary % size)).reshape(*weights.shape[:-1], -1, size)
    edges = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    goal = _below(uniforms * edges[..., -1:], edges[..., -1:])
    block = (edges[..., None, :] <= goal[..., None]).sum(-1).clamp(max=edges.shape[-1] - 1)
    before = F.pad(edges, (1, 0)).gather(-1, block)
    chosen = blocks.gather(-2, block[..., None].expand(*block.shape, size))
    inside = chosen.cumsum(-1, dtype=torch.float64)
    goal = _below(goal - before, inside[..., -1])
    place = (inside <= goal[..., None]).sum(-1).clamp(max=size - 1)
    return (block * size + place).clamp(max=vocabulary - 1)


def draws(weights: Tensor, width: int, generator: torch.Generator, *, replacement: bool) -> Tensor:
    """Draw tokens one after the other, int64 (..., width), from weights (..., vocabulary).

    Without replacement each draw is from what the earlier ones left. Draws after the last token with a positive weight
    have no meaning; rules recognise them by their weight of 0.
    """
    shape = (*weights.shape[:-1], width)
    uniforms = torch.rand(shape, dtype=torch.float64, device=weights.device, generator=generator)
    if replacement or width == 1:
        return pick(weights, uniforms)
    left = weights.clone()
    drawn = []
    for turn in range(width):
        drawn.append(pick(left, uniforms[..., turn : turn + 1]))
        left.scatter_(-1, drawn[-1], 0)
    return torch.cat(drawn, -1)


def _below(goal: Tensor, end: Tensor) -> Tensor:
    """Return the goal strictly below the end, to which rounding may have moved it."""
    return torch.minimum(goal, torch.nextafter(end, torch.zeros_like(end)))
