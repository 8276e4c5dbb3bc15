"""The target: a causal language model with a key/value cache, which verifies the trees of a ragged batch.

`allocate` makes the cache, `prefill` reads prompts into it, `verify` is the forward over the nodes of every sequence's
tree. Architectures that cannot do this are listed in architectures.py; masks are in tree_attention_mask.py.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from executor.device import free_bytes, to_device
from executor.target.architectures import is_recurrent, query_group
from executor.target.causal_model import HEAD, CausalModel, Outputs, Taps, pick_rows
from executor.target.kv_cache import Layout, TreeCache, cache_argument, layout_of
from executor.target.packed_linears import unpack_linears
from executor.target.positions import windows
from executor.target.tree_attention_mask import ForwardMasks
from treeopt.errors import ExecutorError

if TYPE_CHECKING:
    from executor.kernels.fused_forward import FusedForward, Places


# Fills cache rows with prompts and returns their features, one tensor per prompt.
Prefill = Callable[[Sequence[int], Sequence[Sequence[int]]], list[Tensor]]


class ReusedPrompts:
    """The prompt that each row was filled with last. Outside `remember` nothing is stored.

    Sequences only ever grow, so a prompt lies in its row, whatever was decoded after it, until another prompt is put
    there, a run has no request for the row, or the memory is released.
    """

    def __init__(self) -> None:
        """Start without prompts."""
        self.active = False
        self._rows: dict[int, tuple[list[int], dict[Taps, Tensor]]] = {}  # the prompt, and its features by taps

    @contextmanager
    def remember(self) -> Iterator[None]:
        """Store prompts inside this context, and forget all of them at its end."""
        self.active = True
        try:
            yield
        finally:
            self.active = False
            self.clear()

    def clear(self) -> None:
        """Forget all prompts: the memory is released."""
        self._rows = {}

    def forget(self, rows: Sequence[int]) -> None:
        """Forget the prompts of these rows, which are overwritten."""
        for row in rows:
            self._rows.pop(row, None)

    def prefill(
        self, rows: Sequence[int], prompts: Sequence[Sequence[int]], taps: Taps, compute: Prefill
    ) -> list[Tensor]:
        """Return the features of the prompts; call `compute` only for prompts that their rows do not hold."""
        texts = [list(prompt) for prompt in prompts]
        for row, prompt in zip(rows, texts, strict=True):
            if row not in self._rows or self._rows[row][0] != prompt:
                self._rows[row] = prompt, {}
        by_taps = [self._rows[row][1] for row in rows]
        missing = [i for i, held in enumerate(by_taps) if taps not in held]
        computed = compute([rows[i] for i in missing], [texts[i] for i in missing]) if missing else []
        for i, features in zip(missing, computed, strict=True):
            by_taps[i][taps] = features
        return [held[taps] for held in by_taps]


KEPT_SHAPES = 1024  # that compiled code is kept for
CHUNK = 1024  # tokens of a prompt that go through the model at once


class Target(CausalModel):
    """The model whose output is wanted, with a key/value cache for `batch` sequences of up to `capacity` tokens.

    Attributes:
        recurrent: layers keep a state, which `rewind` computes again after a chain that was not accepted whole.
        cache: the cache, None before `allocate`.
        masks: makes the masks of its forwards.
        fused: kernels that verify on CUDA, see `fuse`; None: the model's own forward does.
        fused_reason: why the model has none; None if it has, or `fuse` was not called.
    """

    def __init__(self, model: PreTrainedModel, name: str = "", *, attention: str = "packed") -> None:
        """Wrap `model`, without a cache yet; see `CausalModel`."""
        super().__init__(model, name, attention=attention)
        self.recurrent = is_recurrent(model.config)
        group = query_group(model) if self.attention == "packed" else 1
        self.masks = ForwardMasks(windows(model), dtype=self.dtype, group=group)
        self.cache: TreeCache | None = None
        self._reused = ReusedPrompts()
        self._forward: Callable[..., Any] = model
        self._cache_name = cache_argument(model)
        self.fused: FusedForward | None = None
        self.fused_reason: str | None = None

    # --- the cache

    @cached_property
    def layout(self) -> Layout:
        """The shape of one token's keys and values; measured once, by a forward of one token.

        Raises:
            ExecutorError: no layer has keys, or the decoder's output is not the input of the LM head.
        """
        layout = layout_of(self.model)
        self._features.drop()
        return layout

    def cache_bytes(self, batch: int, capacity: int) -> int:
        """Return the memory that `allocate` needs; allocates nothing."""
        return self.layout.bytes(batch, capacity)

    def allocate(self, batch: int, capacity: int) -> None:
        """Make room for `batch` sequences of `capacity` tokens, drafted ones included.

        The memory of a former cache is reused where it suffices, but `cache` is a new object: whoever holds the former
        one has lost its memory.

        Raises:
            ExecutorError: the device has not enough free memory.
        """
        former, self.cache = self.cache, None
        if former is not None:
            if former.batch == batch and former.capacity >= capacity and former.device == self.device:
                self.cache = former.succeed(clear=not self._reused.active)
                return
            self._reused.clear()
            former.release()
        needed, free = self.cache_bytes(batch, capacity), free_bytes(self.device)
        if free is not None and needed > free:
            raise ExecutorError(
                f"{self.name}: a cache for {batch} sequences of {capacity} tokens needs {needed / 2**30:.2f} GiB, "
                f"{self.device} has {free / 2**30:.2f} GiB free"
            )
        self.cache = TreeCache(self.layout, batch, capacity, self.device)

    # --- prompts

    @property
    def keeps_prompts(self) -> bool:
        """True inside `keeping_prompts`: rows then idle after their prompts."""
        return self._reused.active

    @contextmanager
    def keeping_prompts(self) -> Iterator[None]:
        """Inside this context, do not compute a prompt again that its row was filled with last.

        Used to time the steps of many configurations after the same prompts; see `ReusedPrompts`. Recurrent layers
        compute it again: their state is that of the text decoded after it.
        """
        with nullcontext() if self.recurrent else self._reused.remember():
            yield

    def forget_prompts(self, rows: Sequence[int]) -> None:
        """Forget the prompts of these rows, which idle at position 0 and overwrite them; see `keeping_prompts`."""
        self._reused.forget(rows)

    def prefill(
        self,
        rows: Sequence[int],
        prompts: Sequence[Sequence[int]],
        *,
        chunk: int = CHUNK,
        taps: Taps = (),
    ) -> list[Tensor]:
        """Fill cache rows with the prompts; return the features of each prompt, (len(prompt), hidden), see `verify`.

        Prompts may be empty (nothing is computed). They are padded on the right: nothing beyond a prompt's end is ever
        seen. At most `chunk` tokens of each go through the model at once. No logits are computed.
        """
        assert self.cache is not None, "allocate() first"
        if not self._reused.active:
            return self._prefill(rows, prompts, chunk, taps)
        return self._reused.prefill(rows, prompts, taps, lambda some, texts: self._prefill(some, texts, chunk, taps))

    @torch.no_grad()
    def _prefill(self, rows: Sequence[int], prompts: Sequence[Sequence[int]], chunk: int, taps: Taps) -> list[Tensor]:
        """See `prefill`; computes every prompt."""
        assert self.cache is not None
        if self.recurrent:  # padding would go through the states: prompts of one length at a time
            self.cache.restart(rows)
            lengths = {len(prompt) for prompt in prompts}
            if len(lengths) > 1:
                found: dict[int, Tensor] = {}
                for length in lengths:
                    some = [i for i, prompt in enumerate(prompts) if len(prompt) == length]
                    texts = self._prefill([rows[i] for i in some], [prompts[i] for i in some], chunk, taps)
                    found |= zip(some, texts, strict=True)
                return [found[i] for i in range(len(prompts))]
        self._features.tap(self._decoder, taps or ())
        width = self.feature_width(taps)
        features = [torch.empty(len(p), width, dtype=self.dtype, device=self.device) for p in prompts]
        for start in range(0, max((len(p) for p in prompts), default=0), chunk):
            live = [i for i, prompt in enumerate(prompts) if len(prompt) > start]
            pieces = [prompts[i][start : start + chunk] for i in live]
            count = max(len(piece) for piece in pieces)
            tokens = to_device([[*piece, *[0] * (count - len(piece))] for piece in pieces], self.device)
            view = min(-(-(start + count) // 8) * 8, self.cache.capacity)  # masks of odd width are copied on CUDA
            self.cache.fill([rows[i] for i in live], start, view)
            mask = self.masks.chunk(start, count, view, len(live), self.device)
            self._decode(tokens, mask, torch.arange(start, start + count, device=self.device).expand(len(live), -1))
            for i, piece, row in zip(live, pieces, self._features.take(taps), strict=True):
                features[i][start : start + len(piece)] = row[: len(piece), :width]
        return features

    def _decode(self, tokens: Tensor, mask: Any, positions: Tensor) -> None:
        """Run the decoder over tokens of the rows that the cache is told; see `TreeCache.fill` and `place`."""
        assert self.cache is not None
        inputs = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions}
        self._decoder(**inputs, use_cache=True, **{cache_argument(self._decoder): self.cache})
        self.cache.write_back()

    # --- verification

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
        """Run one forward over nodes of every sequence's tree; node 0 is the root.

        Args:
            tokens: int64 (batch, fed), nodes `first`, `first` + 1, ...; nodes before `first` are in the cache already.
            lengths: int64 (batch,), committed tokens in the cache.
            depths: int64 (b, fed), 0 for the root; b is 1 or batch.
            ancestors: bool (b, fed, first + fed), row is below or equal to column; parents before children.
            view: columns of the cache that are read; at least max(lengths) + first + fed, best a multiple of 8.
            taps: layers whose inputs are returned as features; () for the input of the LM head, None if the features
                are not used.
        """
        assert self.cache is not None, "allocate() first"
        assert view <= self.cache.capacity, "allocate() more"
        if self.fused is not None and not self.fused.outdated:
            return self._fused_outputs(tokens, self.placed(lengths, depths, ancestors, view, first), taps)
        start = lengths[:, None]
        if self.recurrent and tokens.shape[1] > 1:
            self.cache.keep()
        self.cache.place(start + self.cache.columns[first : first + tokens.shape[1]], view)
        return self._run(
            self._forward,
            taps,
            input_ids=tokens,
            attention_mask=self.masks.tree(lengths, depths, ancestors, view),
            position_ids=self._inside(start + depths),
            use_cache=True,
            **{self._cache_name: self.cache},
        )

    def node_scores(self, tokens: Tensor, positions: Tensor, ancestors: Tensor, rows: Tensor) -> Tensor:
        """Score nodes by a forward without the cache, through which gradients flow: (batch, n, vocabulary).

        Args:
            tokens: int64 (batch, nodes), parents before children.
            positions: int64 (batch, nodes).
            ancestors: bool (batch, nodes, nodes), row is below or equal to column.
            rows: int64 (batch, n), the nodes that are scored.
        """
        places = positions if self.context_limit is None else positions.clamp(max=self.context_limit - 1)
        mask = self.masks.nodes(ancestors, next(self.model.parameters()).dtype)
        last = self._decoder(input_ids=tokens, attention_mask=mask, position_ids=places, use_cache=False)[0]
        self._features.drop()
        return self.scored(pick_rows(last, rows))

    @torch.no_grad()
    def rewind(self, tokens: Tensor, lengths: Tensor, counts: Tensor) -> None:
        """Bring the states of recurrent layers to the end of what was accepted of a chain; see `verify`.

        Sequences that did not accept the whole chain compute the accepted tokens again, from the states before it.
        This reads `counts` from the device.

        Args:
            tokens: int64 (batch, fed), the chains that were verified.
            lengths: int64 (batch,), committed tokens in the cache before the step.
            counts: int64 (batch,), tokens of each chain that are committed now.
        """
        assert self.cache is not None
        fed, by_count, view = tokens.shape[1], counts.tolist(), self.cache.view
        left = [row for row, count in enumerate(by_count) if count < fed]
        if fed == 1 or not left:
            return
        self.cache.rewind(to_device(left, self.device))
        done = 0
        for count in sorted({by_count[row] for row in left} - {0}):
            rows = to_device([row for row in left if by_count[row] >= count], self.device)
            start, columns = lengths[rows, None], self.cache.columns[done:count]
            self.cache.place(start + columns, view, rows)
            ancestors = torch.ones(1, count - done, count, dtype=torch.bool, device=self.device).tril(done)
            mask = self.masks.tree(lengths[rows], columns[None], ancestors, view)
            self._decode(tokens[rows, done:count], mask, self._inside(start + columns))
            done = count
        self._features.drop()

    def _fused_outputs(self, tokens: Tensor, places: "Places", taps: Taps) -> Outputs:
        """Return what the fused forward computes of the nodes; see `verify`."""
        assert self.fused is not None
        with torch.cuda.device_of(tokens):  # Triton launches on the current device
            last, inputs = self.fused(tokens, places)
            logits = self.after_head(self.fused.scores(last, self.head))
        chosen = [last if layer == HEAD else inputs[layer] for layer in taps or ()]
        return Outputs(logits, torch.cat(chosen, -1) if chosen else last)

    def placed(self, lengths: Tensor, depths: Tensor, ancestors: Tensor, view: int, first: int = 0) -> "Places":
        """Return where nodes stand, for the fused forward; for the arguments see `verify`."""
        from executor.kernels.fused_forward import Places
        from executor.kernels.rotary_store import Nodes

        assert self.cache is not None
        nodes = Nodes(lengths.contiguous(), depths.contiguous(), first)
        return Places(nodes, self.cache.stores, ancestors.contiguous(), view)

    def _inside(self, positions: Tensor) -> Tensor:
        """Move positions beyond the model's context, which no text can reach, to its end."""
        if self.context_limit is None or self.cache is None or self.cache.capacity <= self.context_limit:
            return positions
        return positions.clamp(max=self.context_limit - 1)

    def compile(self, **options: Any) -> None:
        """Compile the forward that verifies, once for each shape and view; `options` go to torch.compile.

        Raises:
            ExecutorError: recurrent layers.
        """
        if self.recurrent:
            raise ExecutorError(f"{self.name}: recurrent layers are not compiled: omit --compiled")
        unpack_linears(self.model)
        self.fused, self.fused_reason = None, "the model's forward is compiled"
        limits = torch._dynamo.config  # 8 shapes are compiled by default; a run has views of 256 tokens, and trees
        limits.recompile_limit = max(limits.recompile_limit, KEPT_SHAPES)
        limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, KEPT_SHAPES)
        self._forward = torch.compile(self.model.forward, **{"fullgraph": True, "dynamic": False} | options)
