"""The decoding loop: draft, verify, accept, commit, for a batch whose finished requests are replaced."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from executor.acceptance import Rule, follow, greedy
from executor.drafters.base import Drafter
from executor.target import Target
from executor.topology import Topology
from treeopt.errors import ExecutorError, UsageError
from treeopt.tree import Tree

BUCKET = 256  # the cache is looked at in multiples of this many tokens

Tokens = Sequence[int]


@dataclass(frozen=True)
class Generation:
    """What one request emitted.

    Attributes:
        tokens: the new tokens, up to the limit or the first stop token (included).
        accepted: drafted tokens kept in each step (those beyond the end of the text not counted).
    """

    tokens: tuple[int, ...]
    accepted: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """One step of the batch.

    Attributes:
        requests: the request of each row, -1 for an idle one.
        committed: tokens that each row emitted; idle rows none.
        accepted: drafted tokens that each row kept; idle rows 0.
        draft_s: seconds of drafting.
        rest_s: seconds of verifying, accepting and committing, and of the host's bookkeeping.
        admit_s: seconds of prefilling the requests that joined before the step.
    """

    requests: tuple[int, ...]
    committed: tuple[tuple[int, ...], ...]
    accepted: tuple[int, ...]
    draft_s: float
    rest_s: float
    admit_s: float

    @property
    def full(self) -> bool:
        """No row was idle."""
        return min(self.requests) >= 0


@dataclass
class _Row:
    """The host's view of a row: which request, how far it is."""

    request: int = -1
    length: int = 0
    tokens: list[int] = field(default_factory=list)


class Decoder:
    """A target, a drafter and a tree, decoding `batch` requests at a time.

    With an empty tree it is a plain decoding loop and needs no drafter. Seconds are exact on CPU; on an
    accelerator `timed=True` waits for the device at every reading.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None = None,
        *,
        tree: Tree = Tree((), ()),  # noqa: B008 - immutable
        batch: int = 1,
        rule: Rule = greedy,
        timed: bool = False,
    ) -> None:
        """Prepare the tree.

        Raises:
            UsageError: batch below 1.
            ExecutorError: a tree without drafter, or deeper than the drafter can draft.
        """
        if batch < 1:
            raise UsageError(f"batch must be at least 1, got {batch}")
        if tree.nodes and drafter is None:
            raise ExecutorError(f"a tree of {tree.nodes} nodes needs a drafter")
        if drafter is not None and tree.depth > drafter.max_depth:
            raise ExecutorError(f"the tree has depth {tree.depth}, the drafter drafts {drafter.max_depth} at most")
        if tree.nodes and max(tree.ranks) >= target.vocabulary:
            raise ExecutorError(f"the tree uses rank {max(tree.ranks)} of a vocabulary of {target.vocabulary}")
        self.target, self.tree, self.batch, self.rule, self.timed = target, tree, batch, rule, timed
        self.drafter = drafter if tree.nodes else None
        self.topology = Topology.of(tree, target.device)

    def generate(self, prompts: Sequence[Tokens], *, new_tokens: int, stop: Sequence[int] = ()) -> list[Generation]:
        """Continue every prompt by up to `new_tokens`; see `steps`."""
        tokens: list[list[int]] = [[] for _ in prompts]
        accepted: list[list[int]] = [[] for _ in prompts]
        for step in self.steps(prompts, new_tokens=new_tokens, stop=stop):
            for request, committed, kept in zip(step.requests, step.committed, step.accepted, strict=True):
                if request >= 0:
                    tokens[request].extend(committed)
                    accepted[request].append(kept)
        return [Generation(tuple(t), tuple(a)) for t, a in zip(tokens, accepted, strict=True)]

    def steps(self, prompts: Sequence[Tokens], *, new_tokens: int, stop: Sequence[int] = ()) -> Iterator[Step]:
        """Decode all prompts, in order of arrival, and yield every step.

        Args:
            prompts: token ids of each request, at least one each.
            new_tokens: limit of each request.
            stop: tokens that end a request.

        Raises:
            UsageError: an empty prompt, tokens outside the vocabulary, or a limit below 1.
            ExecutorError: a request does not fit the model's context; raised before any work.
        """
        self._allocate(prompts, new_tokens)
        cache = self.target.cache
        waiting = deque(enumerate(prompts))
        rows = [_Row() for _ in range(self.batch)]
        while True:
            if self.target.cache is not cache:
                raise ExecutorError(
                    "another decoder took the target's cache: run one after the other, or load it twice"
                )
            started = self._now()
            self._admit(rows, waiting)
            if all(row.request < 0 for row in rows):
                return
            admitted = self._now()
            tokens = self._draft()
            drafted = self._now()
            accepted, emitted = self._verify_and_commit(tokens, rows)
            step = _settle(rows, accepted, emitted, new_tokens, stop)
            yield Step(*step, drafted - admitted, self._now() - drafted, admitted - started)

    def _now(self) -> float:
        if self.timed and self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)
        return time.perf_counter()

    def _allocate(self, prompts: Sequence[Tokens], new_tokens: int) -> None:
        if new_tokens < 1:
            raise UsageError(f"new tokens must be at least 1, got {new_tokens}")
        for number, prompt in enumerate(prompts):
            if len(prompt) == 0:
                raise UsageError(f"prompt {number} is empty: decoding starts from a token")
            if not 0 <= min(prompt) <= max(prompt) < self.target.vocabulary:
                raise UsageError(f"prompt {number} holds tokens outside the vocabulary of {self.target.vocabulary}")
        longest = max((len(prompt) for prompt in prompts), default=1)
        self.target.check_length(longest + new_tokens + self.tree.depth)
        needed = longest + new_tokens + self.tree.nodes + 1
        self.target.allocate(self.batch, -(-needed // BUCKET) * BUCKET)
        device = self.target.device
        self._lengths = torch.zeros(self.batch, dtype=torch.long, device=device)
        self._root = torch.zeros(self.batch, dtype=torch.long, device=device)
        self._active = torch.zeros(self.batch, dtype=torch.bool, device=device)
        if self.drafter is not None:
            self._state = self.drafter.begin(self.target, self.batch, self.tree.depth)

    def _admit(self, rows: list[_Row], waiting: "deque[tuple[int, Tokens]]") -> None:
        """Give idle rows to waiting requests: everything but a prompt's last token goes into the cache."""
        idle = [i for i, row in enumerate(rows) if row.request < 0]
        joined: list[tuple[int, Tokens]] = []
        for i in idle:
            if waiting:
                request, prompt = waiting.popleft()
                rows[i] = _Row(request, len(prompt) - 1)
                joined.append((i, prompt))
            self._active[i] = rows[i].request >= 0
            self._lengths[i] = rows[i].length
        if not joined:
            return
        features = self.target.prefill([i for i, _ in joined], [prompt[:-1] for _, prompt in joined])
        for i, prompt in joined:
            self._root[i] = prompt[-1]
        if self.drafter is not None:
            self.drafter.reset(self._state, torch.tensor([i for i, _ in joined], device=self._root.device))
            self.drafter.extend(self._state, *self._prefilled(joined, features))

    def _prefilled(self, joined: list[tuple[int, Tokens]], features: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        longest = max(len(f) for f in features)
        tokens = self._root.new_zeros(self.batch, longest)
        padded = features[0].new_zeros(self.batch, longest, self.target.hidden)
        counts = self._root.new_zeros(self.batch)
        for (i, prompt), feature in zip(joined, features, strict=True):
            tokens[i, : len(feature)] = torch.as_tensor(prompt[1:], device=tokens.device)
            padded[i, : len(feature)] = feature
            counts[i] = len(feature)
        return tokens, padded, counts

    def _draft(self) -> Tensor:
        """The tree's tokens, int64 (batch, nodes + 1), the root first."""
        tokens = self._root[:, None].repeat(1, self.tree.nodes + 1)
        if self.drafter is None:
            return tokens
        for level in self.topology.levels:
            scores = self.drafter.level(self._state, tokens[:, level.expanded])
            best = scores.topk(level.width, dim=-1).indices
            slot = level.slot if scores.shape[1] > 1 else torch.zeros_like(level.slot)
            tokens[:, level.nodes] = best[:, slot, level.rank]
        self.drafter.drop(self._state)
        return tokens

    def _verify_and_commit(self, tokens: Tensor, rows: list[_Row]) -> tuple[list[int], list[list[int]]]:
        """One forward of the target; moves the cache, the roots and the drafter's state on."""
        longest = max(row.length for row in rows)
        view = -(-(longest + tokens.shape[1]) // BUCKET) * BUCKET
        topology = self.topology
        outputs = self.target.verify(tokens, self._lengths, topology.depth, topology.ancestors, view)
        accepted = follow(tokens, self.rule(outputs.logits), topology)
        moved = torch.where(self._active, accepted.count + 1, 0)
        assert self.target.cache is not None
        if topology.levels:
            self.target.cache.compact(self._lengths, accepted.path)
        if self.drafter is not None:
            nodes = accepted.path[:, :, None].expand(-1, -1, self.target.hidden)
            self.drafter.extend(self._state, accepted.emitted, outputs.features.gather(1, nodes), moved)
        self._lengths += moved
        last = accepted.emitted.gather(1, accepted.count[:, None])[:, 0]
        self._root = torch.where(self._active, last, self._root)
        read = torch.cat([accepted.count[:, None], accepted.emitted], 1).tolist()  # the step's one host read
        return [row[0] for row in read], [row[1 : row[0] + 2] for row in read]


def _settle(
    rows: list[_Row], accepted: list[int], emitted: list[list[int]], new_tokens: int, stop: Sequence[int]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Cut what lies past each request's end, and free the rows of requests that ended."""
    requests: list[int] = []
    committed: list[tuple[int, ...]] = []
    kept: list[int] = []
    for row, count, tokens in zip(rows, accepted, emitted, strict=True):
        requests.append(row.request)
        if row.request < 0:
            committed.append(())
            kept.append(0)
            continue
        row.length += len(tokens)
        tokens = tokens[: new_tokens - len(row.tokens)]
        ends = next((i for i, token in enumerate(tokens) if token in stop), None)
        tokens = tokens if ends is None else tokens[: ends + 1]
        row.tokens.extend(tokens)
        committed.append(tuple(tokens))
        kept.append(min(count, len(tokens)))
        if ends is not None or len(row.tokens) >= new_tokens:
            row.request, row.length = -1, 0
    return tuple(requests), tuple(committed), tuple(kept)
