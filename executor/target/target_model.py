"""Any Hugging Face causal language model as the target: tokens in, logits and features out, ragged and in trees.

The model is used through its public forward: explicit `position_ids`, a four-dimensional mask and a Cache
subclass; no modelling code is copied. What is known of families is in architectures.py, masks are in attention.py.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers import PreTrainedModel

from executor.device.free_memory import free_bytes
from executor.device.upload import uploaded
from executor.target.architectures import check, context_limit, query_group, windows
from executor.target.features import Features, Taps, picked
from executor.target.kv_cache import Layout, TreeCache, layout_of
from executor.target.logit_scaling import head_scaling
from executor.target.packed_linears import unpack_linears
from executor.target.tree_attention_mask import (
    KINDS,
    TreeMasks,
    additive,
    chunk_seen,
    folded,
    keep_shapes,
    set_attention,
    tree_blocks,
    tree_seen,
)
from treeopt.errors import ExecutorError

CHUNK = 1024  # tokens of a prompt that go through the model at once

Mask = Tensor | BlockMask


@dataclass(frozen=True)
class Outputs:
    """What a forward returns: logits (batch, tokens, vocabulary); features (batch, tokens, hidden), the input
    of the LM head (after the final norm), or (batch, tokens, taps x hidden), what the tapped layers are given.
    """

    logits: Tensor
    features: Tensor


@dataclass(frozen=True)
class _Prefilled:
    """A prompt that a row of the cache's memory holds, and its features by taps."""

    prompt: list[int]
    features: dict[Taps, Tensor] = field(default_factory=dict)


class Target:
    """The model whose output is wanted, with a key/value cache for `batch` sequences of up to `capacity` tokens.

    Attributes:
        attention: how it attends, "packed" (scaled-dot-product, grouped heads folded), "flex" (FlexAttention),
            "sdpa" or "eager" (transformers' own).
        attention_reason: why that is not what was asked for; None when it is.
    """

    def __init__(self, model: PreTrainedModel, name: str = "", *, attention: str = "packed") -> None:
        """Wrap `model` (in evaluation mode); `name` is what provenance calls it.

        On CUDA the process's attention is from then on that of torch without cuDNN's.

        Raises:
            ExecutorError: the model cannot verify trees, or there is no such attention.
        """
        if attention not in KINDS:
            raise ExecutorError(f"attention must be one of {', '.join(KINDS)}, got {attention}")
        check(model)
        self.model = model
        model.eval().requires_grad_(False)
        self.name = name or str(model.config.model_type)
        self.attention, self.attention_reason = set_attention(model, attention)
        if self.device.type == "cuda":  # for every new shape it makes a plan, and views and trees make many
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.windows = windows(model)
        self._group = query_group(model) if self.attention in ("packed", "flex") else 1
        self._tree_masks = TreeMasks(self.dtype, self._group)
        self.cache: TreeCache | None = None
        self._keeping = False
        self._prefilled: dict[int, _Prefilled] = {}  # by row
        self._decoder: nn.Module = model.get_decoder()
        layers = int(getattr(model.config.get_text_config(), "num_hidden_layers", 0))
        self._features = Features(self._decoder, layers, self.name)
        self._forward: Callable[..., Any] = model

    def feature_width(self, taps: Taps) -> int:
        """Width of the features that a drafter with these taps is given."""
        return 0 if taps is None else self.hidden * max(1, len(taps))

    def embed(self, tokens: Tensor) -> Tensor:
        """The input embeddings: int64 (...) -> (..., hidden)."""
        found: Tensor = self.model.get_input_embeddings()(tokens)
        return found

    @cached_property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    @cached_property
    def dtype(self) -> torch.dtype:
        """The type of the weights, and of the cache."""
        return next(self.model.parameters()).dtype

    @cached_property
    def hidden(self) -> int:
        """Width of a feature."""
        return int(self._head_weight.shape[1])

    @cached_property
    def vocabulary(self) -> int:
        """Width of the logits."""
        return int(self._head_weight.shape[0])

    @property
    def _head_weight(self) -> Tensor:
        weight = self.head.weight
        assert isinstance(weight, Tensor)
        return weight

    @property
    def head(self) -> nn.Module:
        """The LM head: features to logits, without any scaling the model applies after it."""
        return self.model.get_output_embeddings()  # type: ignore[no-any-return]

    @cached_property
    def head_scaling(self) -> tuple[float, float | None]:
        """A factor on the LM head's output, and a soft cap; found by a forward of some tokens, once.

        Raises:
            ExecutorError: the model does something else.
        """
        count = min(16, self.vocabulary, self.context_limit or 16)
        outputs = self.features(torch.arange(count, device=self.device)[None])
        with torch.no_grad():
            return head_scaling(self.model.config, self.head(outputs.features), outputs.logits)

    @cached_property
    def _scored_as_is(self) -> bool:
        """Whether the model's logits are those that `scored` gives."""
        try:
            return bool(self.head_scaling)
        except ExecutorError:
            return False

    def scored(self, features: Tensor) -> Tensor:
        """The logits that the model gives features: (..., hidden) -> (..., vocabulary)."""
        found: Tensor = self.head(features)
        return self.after_head(found)

    def after_head(self, raw: Tensor) -> Tensor:
        """What the model does to its LM head's output, entry by entry."""
        factor, cap = self.head_scaling
        raw = raw if factor == 1 else raw * factor
        return raw if cap is None else cap * torch.tanh(raw / cap)

    @cached_property
    def context_limit(self) -> int | None:
        """See `architectures.context_limit`."""
        return context_limit(self.model.config)

    def check_length(self, length: int) -> None:
        """Refuse a sequence longer than the model's context.

        Raises:
            ExecutorError: names both lengths.
        """
        if self.context_limit is not None and length > self.context_limit:
            raise ExecutorError(f"{self.name}: {length} tokens exceed the model's context of {self.context_limit}")

    @cached_property
    def layout(self) -> Layout:
        """What a token leaves in the cache; found by a forward of one token, once.

        Raises:
            ExecutorError: layers differ, or the decoder's output is not what the LM head is given.
        """
        found = layout_of(self.model)
        self._features.drop()
        return found

    def cache_bytes(self, batch: int, capacity: int) -> int:
        """Memory that `allocate` needs; nothing is allocated."""
        return self.layout.bytes(batch, capacity)

    def allocate(self, batch: int, capacity: int) -> None:
        """Make room for `batch` sequences of `capacity` tokens, drafted ones included.

        Memory of a former cache is used again where it suffices, but `cache` is a new object: whoever holds the
        former one has lost it.

        Raises:
            ExecutorError: the device has not enough free memory.
        """
        held, self.cache = self.cache, None
        if held is not None:
            if held.batch == batch and held.capacity >= capacity and held.device == self.device:
                self.cache = held.succeed(clear=not self._keeping)
                return
            self._prefilled = {}
            held.release()
        needed, free = self.cache_bytes(batch, capacity), free_bytes(self.device)
        if free is not None and needed > free:
            raise ExecutorError(
                f"{self.name}: a cache for {batch} sequences of {capacity} tokens needs {needed / 2**30:.2f} GiB, "
                f"{self.device} has {free / 2**30:.2f} GiB free"
            )
        self.cache = TreeCache(self.layout, batch, capacity, self.device)

    def compile(self, **options: Any) -> None:
        """Compile the forward that verifies, once for each shape and view; `options` go to torch.compile.

        Raises:
            ExecutorError: FlexAttention on CPU, where inductor (torch 2.13) takes every layer's keys for the first's.
        """
        if self.attention == "flex" and self.device.type == "cpu":
            raise ExecutorError(f"{self.name}: FlexAttention is wrong when compiled for CPU: use packed attention")
        unpack_linears(self.model)
        keep_shapes()
        self._forward = torch.compile(self.model.forward, **{"fullgraph": True, "dynamic": False} | options)

    @property
    def keeps_prompts(self) -> bool:
        """Whether it is inside `keeping_prompts`: rows then idle behind their prompts."""
        return self._keeping

    @contextmanager
    def keeping_prompts(self) -> Iterator[None]:
        """Inside, a prompt that a row was filled with last is not computed again.

        For whoever times the steps of many ways to decode behind the same prompts: sequences only ever grow, so that
        a prompt lies in its row, whatever its request came to, until another one is put there, a run has no request
        for the row, or the memory is let go.
        """
        self._keeping = True
        try:
            yield
        finally:
            self._keeping, self._prefilled = False, {}

    def forget_prompts(self, rows: Sequence[int]) -> None:
        """These rows idle at position 0 and overwrite what is there: see `keeping_prompts`."""
        for row in rows:
            self._prefilled.pop(row, None)

    def prefill(
        self,
        rows: Sequence[int],
        prompts: Sequence[Sequence[int]],
        *,
        chunk: int = CHUNK,
        taps: Taps = (),
    ) -> list[Tensor]:
        """Fill cache rows with the prompts; per prompt its features, (len(prompt), hidden), see `verify`.

        Prompts may be empty (nothing is computed). Right-padded: what lies beyond a prompt's end is never seen.
        At most `chunk` tokens of each go through the model at once. No logits are computed.
        """
        assert self.cache is not None, "allocate() first"
        if not self._keeping:
            return self._prefill(rows, prompts, chunk, taps)
        texts = [list(prompt) for prompt in prompts]
        for row, prompt in zip(rows, texts, strict=True):
            if row not in self._prefilled or self._prefilled[row].prompt != prompt:
                self._prefilled[row] = _Prefilled(prompt)
        held = [self._prefilled[row] for row in rows]
        due = [i for i, one in enumerate(held) if taps not in one.features]
        filled = self._prefill([rows[i] for i in due], [texts[i] for i in due], chunk, taps) if due else []
        for i, features in zip(due, filled, strict=True):
            held[i].features[taps] = features
        return [one.features[taps] for one in held]

    @torch.no_grad()
    def _prefill(self, rows: Sequence[int], prompts: Sequence[Sequence[int]], chunk: int, taps: Taps) -> list[Tensor]:
        """See `prefill`."""
        assert self.cache is not None
        self._features.tap(self._decoder, taps or ())
        width = self.feature_width(taps)
        features = [torch.empty(len(p), width, dtype=self.dtype, device=self.device) for p in prompts]
        for start in range(0, max((len(p) for p in prompts), default=0), chunk):
            live = [i for i, prompt in enumerate(prompts) if len(prompt) > start]
            pieces = [prompts[i][start : start + chunk] for i in live]
            count = max(len(piece) for piece in pieces)
            tokens = uploaded([[*piece, *[0] * (count - len(piece))] for piece in pieces], self.device)
            view = min(-(-(start + count) // 8) * 8, self.cache.capacity)  # masks of odd width are copied on CUDA
            self.cache.fill([rows[i] for i in live], start, view)
            self._decoder(
                input_ids=tokens,
                attention_mask=self._chunk_mask(start, count, view, len(live)),
                position_ids=torch.arange(start, start + count, device=self.device).expand(len(live), -1),
                past_key_values=self.cache,
                use_cache=True,
            )
            found = self._features.take(taps)
            for i, piece, row in zip(live, pieces, found, strict=True):
                features[i][start : start + len(piece)] = row[: len(piece), :width]
        return features

    def _inside(self, positions: Tensor) -> Tensor:
        """Positions of nodes; those past the model's context, which no text can reach, are put at its end."""
        if self.context_limit is None or self.cache is None or self.cache.capacity <= self.context_limit:
            return positions
        return positions.clamp(max=self.context_limit - 1)

    def _chunk_mask(self, start: int, count: int, view: int, batch: int) -> Mask | dict[str, Mask] | None:
        """None for the first piece: without a mask the model is causal, by the fast path where it has one."""
        if start == 0:
            return None

        def mask(window: int | None) -> Mask:
            one = self._additive(chunk_seen(start, count, view, window, self.device))
            return one.expand(batch, -1, -1, -1)

        return self._masks(mask)

    @torch.no_grad()
    def verify(
        self,
        tokens: Tensor,
        lengths: Tensor,
        depths: Tensor,
        ancestors: Tensor,
        view: int,
        first: int = 0,
        taps: Taps = (),
    ) -> Outputs:
        """One forward over nodes of every sequence's tree, the root being node 0.

        Args:
            tokens: int64 (batch, fed), nodes `first`, `first` + 1, ...; those before are in the cache already.
            lengths: int64 (batch,), committed tokens in the cache.
            depths: int64 (b, fed), 0 for the root; b is 1 or batch.
            ancestors: bool (b, fed, first + fed), row is below or equal to column; parents before children.
            view: columns of the cache that are looked at; at least max(lengths) + first + fed. Best a multiple
                of 8, for "flex" one of 128.
            taps: layers whose inputs are wanted as features, see `tap`; () for the input of the LM head, None if
                nobody will look at features.
        """
        assert self.cache is not None, "allocate() first"
        assert view <= self.cache.capacity, "allocate() more"
        start = lengths[:, None]
        self.cache.place(start + self.cache.columns[first : first + tokens.shape[1]], view)

        def mask(window: int | None) -> Mask:
            if self.attention == "flex":
                return tree_blocks(lengths, depths, ancestors, view, window)
            if window is None:
                return self._tree_masks(lengths, ancestors, view)
            return self._additive(tree_seen(lengths, depths, ancestors, view, window))

        return self._call(
            self._forward,
            taps,
            input_ids=tokens,
            attention_mask=self._masks(mask),
            position_ids=self._inside(start + depths),
            past_key_values=self.cache,
            use_cache=True,
        )

    def features(
        self, tokens: Tensor, taps: Taps = (), *, learning: bool = False, rows: Tensor | None = None
    ) -> Outputs:
        """A plain causal forward without cache, tokens int64 (batch, length), for training and recording.

        Only when the target is `learning` itself does it keep what gradients need. Logits are those of the `rows`
        int64 (batch, n) of each sequence alone, if some are given.
        """
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand(len(tokens), -1)
        words = {"input_ids": tokens, "position_ids": positions, "use_cache": False}
        if rows is not None and self._scored_as_is:
            self._features.tap(self._decoder, taps or ())
            with torch.no_grad():
                last = self._decoder(**words)[0]
                return Outputs(self.scored(picked(last, rows)), self._features.take(taps))
        with torch.set_grad_enabled(learning and torch.is_grad_enabled()):
            found = self._call(self.model, taps, **words)
        return replace(found, logits=picked(found.logits, rows))

    def _masks(self, build: Callable[[int | None], Mask]) -> Mask | dict[str, Mask]:
        """One mask, or one for each kind of layer."""
        masks = {kind: build(window) for kind, window in self.windows.items()}
        return masks.get("", masks)

    def _additive(self, seen: Tensor) -> Tensor:
        """The mask that the attention in use wants."""
        return folded(additive(seen, self.dtype)[:, None], self._group)

    def _call(self, forward: Callable[..., Any], taps: Taps, **words: Any) -> Outputs:
        if taps:
            self._features.tap(self._decoder, taps)
        logits = forward(**words).logits
        return Outputs(logits, self._features.take(taps))
