"""The n-gram drafter: a proper distribution q(x | last tokens) from counts of short token sequences in a corpus.

Interpolated Witten-Bell smoothing (Witten and Bell 1991, method C; as in Chen and Goodman 1998): with c(h x) how often
x followed the context h, c(h) their sum and T(h) how many different x there were,

    q_k(x | h) = (c(h x) + T(h) q_{k-1}(x | h without its first token)) / (c(h) + T(h)),

down to q_0 = 1 / vocabulary; a context that was never seen has T = c = 0 and uses the shorter one. Order 1 is
the unigram and order 2 the bigram drafter of Leviathan et al. 2023, table 3.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from executor.checkpoints.tensors.lazy_tensors import Stored
from executor.checkpoints.tensors.write_tensors import Written
from executor.drafters.base.drafter import Forced
from executor.drafters.prompt_lookup.drafter import MISSING, RANK_STEP, TextDrafter, TextState, suffixes
from executor.target.causal_model import pick_rows
from executor.target.target_model import Target
from treeopt.errors import ExecutorError
from treeopt.traces.trace import MAX_DEPTH

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
    """Return the order of the tables by their names; raise ExecutorError if one is missing or unexpected."""
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
    """Raise ExecutorError, naming the first entry that is marked as wrong, if any, counted from `first`."""
    if bool(wrong.any()):
        raise ExecutorError(f"{requirement}: entry {first + int(wrong.int().argmax())} is not")


class NGram(TextDrafter):
    """Sorted counts of sequences of up to `order` tokens, looked up on the device."""

    kind = "ngram"
    abstains = False
    max_depth = MAX_DEPTH
    settings: Mapping[str, Any] = MappingProxyType({})
    unigrams: Tensor

    def __init__(self, tables: Mapping[str, Tensor]) -> None:
        """Take the tables of counts of a checkpoint.

        Args:
            tables: `counts.1`, int32 or int64 (vocabulary,); for k = 2 ... order `grams.k`, int16 or int32 (n, k),
                token sequences in lexicographic order, each once, and `counts.k`, int32 or int64 (n,), 1 or more.

        Raises:
            ExecutorError: names the table that is not valid.
        """
        super().__init__()
        self.order = order_of(tables)
        unigrams = counts_of(tables, "counts.1", least=0)
        self.vocabulary = len(unigrams)
        if not int(unigrams.sum()):
            raise ExecutorError("counts.1 must count at least one token, found none")
        self.register_buffer("unigrams", unigrams)
        self.longer = nn.ModuleList()
        contexts = self.vocabulary
        for k in range(2, self.order + 1):
            counts = counts_of(tables, f"counts.{k}", least=1)
            keys = self._keys(f"grams.{k}", tables[f"grams.{k}"], k)
            if len(keys) != len(counts):
                raise ExecutorError(f"counts.{k} must be ({len(keys)},) to match grams.{k}, found ({len(counts)},)")
            self.longer.append(Grams(keys, counts, contexts, self.vocabulary))
            contexts = len(keys)

    def _keys(self, name: str, grams: Tensor, length: int) -> Tensor:
        if grams.dtype not in (torch.int16, torch.int32) or grams.ndim != 2 or grams.shape[1] != length:
            shape = tuple(grams.shape)
            raise ExecutorError(f"{name} must be int16 or int32 (n, {length}), found {grams.dtype} {shape}")
        grams = grams.int()
        outside = ((grams < 0) | (grams >= self.vocabulary)).any(1)
        refuse(outside, f"{name} must hold tokens of the vocabulary of {self.vocabulary}")
        node, known = self._find(grams[:, :-1].long())
        refuse(~known, f"{name} must continue the sequences of grams.{length - 1}")
        keys = node * self.vocabulary + grams[:, -1]
        refuse(keys[1:] <= keys[:-1], f"{name} must be sorted, without repeats", first=1)
        return keys

    @classmethod
    def count(cls, texts: Sequence[Sequence[int] | NDArray[np.integer]], *, order: int = 3, vocabulary: int) -> "NGram":
        """Count token sequences; no sequence reaches from one text into the next.

        Raises:
            ExecutorError: order out of range, no text, or tokens outside the vocabulary.

        >>> NGram.count([[0, 1, 0, 1, 1]], order=2, vocabulary=3).tables()["grams.2"].tolist()
        [[0, 1], [1, 0], [1, 1]]
        """
        if not 1 <= order <= MAX_ORDER:
            raise ExecutorError(f"order must be in 1..{MAX_ORDER}, got {order}")
        pieces = [np.append(np.asarray(text, dtype=np.int64), MISSING) for text in texts]
        for number, piece in enumerate(pieces):
            if len(piece) > 1 and not 0 <= piece[:-1].min() <= piece[:-1].max() < vocabulary:
                raise ExecutorError(f"text {number} holds tokens outside the vocabulary of {vocabulary}")
        stream = np.concatenate([np.empty(0, dtype=np.int64), *pieces])
        tables = {"counts.1": torch.from_numpy(np.bincount(stream[stream >= 0], minlength=vocabulary))}
        known, grams = stream, np.arange(vocabulary)[:, None]  # the gram that begins at each place
        for k in range(2, order + 1):
            before, last = known[:-1], stream[k - 1 :]
            there = (before >= 0) & (last >= 0)
            keys, places, counts = np.unique(
                before[there] * vocabulary + last[there], return_inverse=True, return_counts=True
            )
            known = np.full(len(before), MISSING)
            known[there] = places
            grams = np.concatenate([grams[keys // vocabulary], keys[:, None] % vocabulary], 1)
            tables[f"grams.{k}"] = torch.from_numpy(grams.astype(np.int32))
            tables[f"counts.{k}"] = torch.from_numpy(counts.astype(np.int64))
        return cls(tables)

    def tables(self) -> dict[str, Tensor]:
        """Return the tables of counts as `__init__` takes them, on the CPU, in the narrowest types that hold them."""
        counted = [self.unigrams, *(longer.counts for longer in self.longer if isinstance(longer, Grams))]
        narrow = torch.int32 if max(int(counts.max()) for counts in counted if len(counts)) < 2**31 else torch.int64
        tables = {"counts.1": self.unigrams.to("cpu", narrow)}
        grams = torch.arange(self.vocabulary)[:, None]
        for k, longer in enumerate(self.longer, 2):
            assert isinstance(longer, Grams)
            keys = longer.keys.cpu()
            grams = torch.cat([grams[keys // self.vocabulary], keys[:, None] % self.vocabulary], 1)
            tables |= {
                f"grams.{k}": grams.to(torch.int16 if self.vocabulary <= 2**15 else torch.int32),
                f"counts.{k}": longer.counts.to("cpu", narrow),
            }
        return tables

    def forward(self, context: Tensor) -> Tensor:
        """Return q(. | context), float32 (..., vocabulary); context int64 (..., order - 1), MISSING before the text."""
        types = (self.unigrams > 0).sum()
        q = (self.unigrams + types / self.vocabulary) / (self.unigrams.sum() + types)
        q = q.expand(*context.shape[:-1], -1).clone()
        for length, grams in enumerate(self.longer, 1):
            assert isinstance(grams, Grams)
            if not grams.widest:
                break
            node, known = self._find(context[..., -length:])
            start = grams.starts[node]
            kinds = torch.where(known, grams.starts[node + 1] - start, 0)[..., None]
            total = (torch.where(known, grams.totals[node], 0)[..., None] + kinds).clamp(min=1)
            column = torch.arange(grams.widest, device=context.device)
            there = column < kinds
            place = torch.where(there, start[..., None] + column, 0)
            q *= torch.where(kinds > 0, kinds / total, 1)
            share = torch.where(there, grams.counts[place] / total, 0)
            q.scatter_add_(-1, torch.where(there, grams.keys[place] % self.vocabulary, 0), share)
        return q

    def _find(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return each context's place, (..., length), among the sequences of its length, and whether it was counted."""
        node, known = context[..., 0].clamp(min=0), (context != MISSING).all(-1)
        for grams, token in zip(self.longer, context[..., 1:].unbind(-1), strict=False):
            assert isinstance(grams, Grams)
            if not len(grams.keys):
                return node, torch.zeros_like(known)
            node, present = grams.find(node * self.vocabulary + token)
            known = known & present
        return node, known

    def scores(self, context: Tensor) -> Tensor:
        """Return log q up to a constant, with `RANK_STEP` to order equals; see `forward`."""
        q: Tensor = self(context)
        return q.log() - RANK_STEP * torch.arange(self.vocabulary, device=context.device)

    def begin(self, target: Target, batch: int, depth: int, length: int, capacity: int) -> TextState:
        """See `Drafter.begin`; raises ExecutorError for a target of another vocabulary."""
        self._check(target)
        return super().begin(target, batch, depth, length, capacity)

    def _check(self, target: Target) -> None:
        if target.vocabulary != self.vocabulary:
            raise ExecutorError(f"counted for {self.vocabulary} tokens, the target has {target.vocabulary}")

    @torch.no_grad()
    def level(self, state: TextState, tokens: Tensor, parents: Tensor) -> Tensor:
        """See `Drafter.level`."""
        return self.scores(state.last_tokens(tokens, parents, self.order - 1))

    def teacher_forced(
        self, target: Target, tokens: Tensor, features: Tensor, depth: int, *, rows: Tensor | None = None
    ) -> Iterator[Forced]:
        """See `Drafter.teacher_forced`."""
        self._check(target)
        ends = torch.arange(1, tokens.shape[1] + 1, device=tokens.device).expand_as(tokens)
        contexts = suffixes(tokens, ends, self.order - 1)
        scores = torch.stack([self.scores(context) for context in contexts])
        for k in range(1, depth + 1):
            guessed = scores.roll(-k, 1)  # row t is the guess after x_{t+k}; the last k rows have no meaning
            yield Forced(pick_rows(guessed, rows))


NGRAM_FILE = "ngram.safetensors"


def read_ngram(stored: Stored, target: Target) -> NGram:
    """Read the counts; raise ExecutorError, naming the table, if one does not fit."""
    try:
        drafter = NGram({name: entry.read() for name, entry in stored.entries.items()})
    except ExecutorError as error:
        raise error if str(stored.path) in str(error) else ExecutorError(f"{stored.path}: {error}") from error
    if drafter.vocabulary != target.vocabulary:
        raise ExecutorError(f"{stored.path}: counts.1 must be ({target.vocabulary},), found ({drafter.vocabulary},)")
    return drafter


def ngram_content(drafter: NGram, layout: str | None, target: Target | None, name: str) -> Written:
    """Return the file contents for counts."""
    facts = {"kind": drafter.kind, "order": drafter.order, "vocabulary": drafter.vocabulary}
    return Written(NGRAM_FILE, drafter.tables(), {}, facts)
