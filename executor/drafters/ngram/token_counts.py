"""Sorted counts of token sequences, looked up on the device, and checks of counts from a file."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from treeopt.errors import ExecutorError

MAX_ORDER = 8


class Grams(nn.Module):
    """The sequences of one length, sorted, so that the sequences of one context lie side by side.

    Attributes:
        keys: int64 (n,), place of the context among the sequences one shorter, times the vocabulary, plus the token.
        counts: int64 (n,), occurrences of each sequence in the corpus.
        starts: int64 (contexts + 1,), where the sequences of each context begin.
        totals: int64 (contexts,), sum of the counts of each context.
        widest: largest number of sequences of one context.
    """

    keys: Tensor
    counts: Tensor
    starts: Tensor
    totals: Tensor

    def __init__(self, keys: Tensor, counts: Tensor, contexts: int, vocabulary: int) -> None:
        """Group checked counts by their `contexts` contexts."""
        super().__init__()
        starts = torch.searchsorted(keys, torch.arange(contexts + 1) * vocabulary)
        totals = nn.functional.pad(counts.cumsum(0), (1, 0))[starts].diff()
        for name, tensor in (("keys", keys), ("counts", counts)):
            self.register_buffer(name, tensor)
        for name, tensor in (("starts", starts), ("totals", totals)):
            self.register_buffer(name, tensor, persistent=False)
        self.widest = int(starts.diff().max()) if contexts else 0

    def find(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return the places of `keys`, and whether they exist."""
        place = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        return place, self.keys[place] == keys


def order_of(tables: Mapping[str, Tensor]) -> int:
    """Return the order of the tables, by their names.

    Raises:
        ExecutorError: names a table that is missing or unexpected.
    """
    order = sum(name.startswith("counts.") for name in tables)
    expected = {"counts.1"} | {f"{part}.{k}" for part in ("grams", "counts") for k in range(2, order + 1)}
    for name in sorted(expected ^ set(tables)):
        state = "present" if name in expected else "absent"
        raise ExecutorError(f"{name} must be {state} in a file with {sorted(tables)[:8]}")
    if order > MAX_ORDER:
        raise ExecutorError(f"counts.{order} must be absent: the order is at most {MAX_ORDER}")
    return order


def counts_of(tables: Mapping[str, Tensor], name: str, *, least: int) -> Tensor:
    """Return the table `name`, checked, as int64.

    Raises:
        ExecutorError: another shape or type, or counts below `least`.
    """
    counts = tables[name]
    if counts.dtype not in (torch.int32, torch.int64) or counts.ndim != 1:
        raise ExecutorError(f"{name} must be int32 or int64 (n,), found {counts.dtype} {tuple(counts.shape)}")
    counts = counts.long()
    refuse(counts < least, f"{name} must be {least} or more")
    if float(counts.double().sum()) > 2**53:
        raise ExecutorError(f"{name} must add up to no more than 2**53")
    return counts


def refuse(wrong: Tensor, requirement: str, *, first: int = 0) -> None:
    """Refuse the first entry that is marked as wrong, if any; entries are counted from `first`.

    Raises:
        ExecutorError: names the requirement and the entry that breaks it.
    """
    if bool(wrong.any()):
        raise ExecutorError(f"{requirement}: entry {first + int(wrong.int().argmax())} is not")
