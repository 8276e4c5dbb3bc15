"""Sorted counts of token sequences of one length, looked up on the device, and what counts from a file must be."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from treeopt.errors import ExecutorError

MAX_ORDER = 8


class Grams(nn.Module):
    """The sequences of one length, sorted, so that those of one context lie side by side.

    Attributes:
        keys: int64 (n,), place of the context among the sequences one shorter, times the vocabulary, plus the token.
        counts: int64 (n,), how often each stood in the corpus.
        starts: int64 (contexts + 1,), where those of each context begin.
        totals: int64 (contexts,), their counts added up.
        widest: most of one context.
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
        """Places of `keys`, and whether they are there."""
        place = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        return place, self.keys[place] == keys


def order_of(tables: Mapping[str, Tensor]) -> int:
    """The order that the tables' names make up.

    Raises:
        ExecutorError: names a table that is missing or too many.
    """
    order = sum(name.startswith("counts.") for name in tables)
    due = {"counts.1"} | {f"{part}.{k}" for part in ("grams", "counts") for k in range(2, order + 1)}
    for name in sorted(due ^ set(tables)):
        raise ExecutorError(f"{name} must be {'there' if name in due else 'absent'} beside {sorted(tables)[:8]}")
    if order > MAX_ORDER:
        raise ExecutorError(f"counts.{order} must be absent: the order is {MAX_ORDER} at most")
    return order


def counts_of(tables: Mapping[str, Tensor], name: str, *, least: int) -> Tensor:
    """The table `name`, checked, int64.

    Raises:
        ExecutorError: of another shape or type, or with counts below `least`.
    """
    counts = tables[name]
    if counts.dtype not in (torch.int32, torch.int64) or counts.ndim != 1:
        raise ExecutorError(f"{name} must be int32 or int64 (n,), found {counts.dtype} {tuple(counts.shape)}")
    counts = counts.long()
    refuse(counts < least, f"{name} must be {least} or more")
    if float(counts.double().sum()) > 2**53:
        raise ExecutorError(f"{name} must add up to no more than 2**53")
    return counts


def refuse(wrong: Tensor, what: str, *, first: int = 0) -> None:
    """Refuse the first entry that is marked, if any; entries are counted from `first`.

    Raises:
        ExecutorError: `what` must be, and which entry is not.
    """
    if bool(wrong.any()):
        raise ExecutorError(f"{what}: entry {first + int(wrong.int().argmax())} is not")
