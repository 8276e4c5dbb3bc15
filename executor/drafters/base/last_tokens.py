"""The last tokens of texts and of drafted nodes: the only input of the n-gram drafter and prompt lookup."""

import torch
from torch import Tensor, nn

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


def match_lengths(text: Tensor, suffix: Tensor) -> Tensor:
    """Return how many tokens before each place equal the last ones of `suffix`, int64 (b, n, columns).

    Args:
        text: int64 (b, columns).
        suffix: int64 (b, n, longest), the last token last, negative for a missing token.

    >>> match_lengths(torch.tensor([[5, 6, 5, 6]]), torch.tensor([[[5, 6]]]))
    tensor([[[0, 0, 2, 0]]])
    """
    columns, longest = text.shape[1], suffix.shape[2]
    padded = nn.functional.pad(text, (longest, 0), value=-2)  # no token, and no missing token either
    same = torch.ones(1, 1, 1, dtype=torch.bool, device=text.device)
    matched = torch.zeros(1, 1, 1, dtype=torch.long, device=text.device)
    for back in range(1, longest + 1):
        before = padded[:, None, longest - back : longest - back + columns]
        same = same & (before == suffix[..., -back, None])
        matched = matched + same
    return matched
