"""The last tokens of texts and of drafted nodes, which is all that drafters without a network look at."""

import torch
from torch import Tensor

MISSING = -1  # the text does not reach so far back
FALL = 2**-20  # scores fall by so much from a token to the next: equals are ranked by id, whoever sorts them


def suffixes(text: Tensor, ends: Tensor, length: int) -> Tensor:
    """The last `length` tokens before each end, MISSING before the text: (b, columns), (b, n) -> (b, n, length)."""
    place = ends[..., None] + torch.arange(-length, 0, device=text.device)
    found = text.gather(1, place.clamp(0, text.shape[1] - 1).flatten(1)).view_as(place)
    return torch.where(place >= 0, found, MISSING)


def continued(above: Tensor, tokens: Tensor, parents: Tensor) -> Tensor:
    """The last tokens of the next level's nodes, from those of the level above and the nodes' own tokens."""
    place = parents.expand(len(tokens), -1)[..., None].expand(-1, -1, above.shape[2])
    return torch.cat([above.gather(1, place), tokens[..., None]], 2)[..., 1:]
