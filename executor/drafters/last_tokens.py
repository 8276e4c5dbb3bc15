"""The last tokens of texts and of drafted nodes: the only input of the n-gram drafter and prompt lookup."""

import torch
from torch import Tensor

MISSING = -1  # stands before the beginning of the text
RANK_STEP = 2**-20  # scores fall by this from one token id to the next, so that every sort ranks equals by id


def suffixes(text: Tensor, ends: Tensor, length: int) -> Tensor:
    """Return the `length` tokens before each end, MISSING before the text: (b, columns), (b, n) -> (b, n, length).

    >>> suffixes(torch.tensor([[5, 6, 7]]), torch.tensor([[2]]), 3)
    tensor([[[-1,  5,  6]]])
    """
    place = ends[..., None] + torch.arange(-length, 0, device=text.device)
    tokens = text.gather(1, place.clamp(0, text.shape[1] - 1).flatten(1)).view_as(place)
    return torch.where(place >= 0, tokens, MISSING)


def continued(above: Tensor, tokens: Tensor, parents: Tensor) -> Tensor:
    """Return the last tokens of the next level's nodes, from those of the level above and the nodes' own tokens."""
    place = parents.expand(len(tokens), -1)[..., None].expand(-1, -1, above.shape[2])
    return torch.cat([above.gather(1, place), tokens[..., None]], 2)[..., 1:]
