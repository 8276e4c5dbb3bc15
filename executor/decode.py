"""The decoding loop: draft, verify, accept, commit, for a batch whose finished requests are replaced.

The host keeps the queue and reads one small tensor a step; on an accelerator it reads one step late, so that the
device never waits.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from executor.acceptance import Greedy, Rule
from executor.cache import TreeCache
from executor.drafters.base import Drafter
from executor.growth import DynamicGrowth, Growth, StaticGrowth
from executor.rows import Rows, Tokens
from executor.target import Target
from treeopt.errors import ExecutorError, UsageError
from treeopt.policy import DynamicTree
from treeopt.tree import Tree

BUCKETS = {"cpu": 16}  # the cache is looked at in multiples of so many tokens; every size is a graph elsewhere
BUCKET = 256
PLAIN = Tree((), ())


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
        ended: whether each row's request ended with this step.
        draft_s: seconds of drafting, taking in the last step's outcome included.
        rest_s: seconds of verifying, accepting and committing, and of the host's bookkeeping.
        admit_s: seconds of prefilling the requests that joined before the step.

    Seconds are exact on CPU; on an accelerator they are those of the host unless the decoder is `timed`.
    """

    requests: tuple[int, ...]
    committed: tuple[tuple[int, ...], ...]
    accepted: tuple[int, ...]
    ended: tuple[bool, ...]
    draft_s: float
    rest_s: float
    admit_s: float

    @property
    def full(self) -> bool:
        """No row was idle."""
        return min(self.requests) >= 0


@dataclass
class _Row:
    """The host's view of a row: which request, how far it is, and how much further steps on their way may take it."""

    request: int = -1
    length: int = 0
    ahead: int = 0
    tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Launched:
    """A step that the device has been given: the requests of its rows, and where its outcome will stand."""

    requests: tuple[int, ...]
    outcome: Tensor
    ready: "torch.cuda.Event | None"
    draft_s: float
    verify_s: float
    admit_s: float

    def read(self) -> list[list[int]]:
        """The outcome; the step's one host read."""
        if self.ready is not None:
            self.ready.synchronize()
        found: list[list[int]] = self.outcome.tolist()
        return found


class Gathered:
    """Steps added up to requests and to counts; means are for whoever prints.

    Attributes:
        steps: steps of the batch.
        ended: requests that ended.
        histogram: drafted tokens kept -> how often a sequence kept so many in a step.
        committed: tokens of all sequences.
        draft_s: seconds of drafting; rest_s, admit_s likewise.
    """

    def __init__(self) -> None:
        """Nothing yet."""
        self.steps = self.ended = self.committed = 0
        self.histogram: Counter[int] = Counter()
        self.draft_s = self.rest_s = self.admit_s = 0.0
        self._open: dict[int, tuple[list[int], list[int]]] = {}

    def add(self, step: Step) -> list[tuple[int, Generation]]:
        """Count a step; the requests that ended with it, and what they emitted."""
        self.steps += 1
        self.draft_s += step.draft_s
        self.rest_s += step.rest_s
        self.admit_s += step.admit_s
        found = []
        for request, committed, kept, ended in zip(
            step.requests, step.committed, step.accepted, step.ended, strict=True
        ):
            if request < 0:
                continue
            tokens, accepted = self._open.setdefault(request, ([], []))
            tokens.extend(committed)
            accepted.append(kept)
            self.committed += len(committed)
            self.histogram[kept] += 1
            if ended:
                del self._open[request]
                self.ended += 1
                found.append((request, Generation(tuple(tokens), tuple(accepted))))
        return found

    @property
    def tau(self) -> float:
        """Tokens a step and sequence; nan before the first."""
        total = self.histogram.total()
        return self.committed / total if total else math.nan


class Decoder:
    """A target, a drafter and a tree, decoding `batch` requests at a time.

    With an empty tree it is a plain decoding loop and needs no drafter.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None = None,
        *,
        tree: Tree | DynamicTree = PLAIN,
        batch: int = 1,
        rule: Rule | None = None,
        timed: bool = False,
        late: int | None = None,
    ) -> None:
        """Prepare the tree.

        Args:
            target: the model whose output is wanted.
            drafter: what proposes.
            tree: a static tree, or the settings of dynamic ones.
            batch: requests decoded together.
            rule: of verification; default greedy.
            timed: seconds of each step are wanted: the host waits for the device at every reading.
            late: steps that the host reads late; default 0 on CPU or when timed, else 1.

        Raises:
            UsageError: batch below 1.
            ExecutorError: a tree without drafter, deeper than the drafter can draft, or not for this rule.
        """
        if batch < 1:
            raise UsageError(f"batch must be at least 1, got {batch}")
        if tree.nodes and drafter is None:
            raise ExecutorError(f"a tree of {tree.nodes} nodes needs a drafter")
        if drafter is not None and tree.depth > drafter.max_depth:
            raise ExecutorError(f"the tree has depth {tree.depth}, the drafter drafts {drafter.max_depth} at most")
        self.target, self.tree, self.batch, self.timed = target, tree, batch, timed
        self.drafter = drafter if tree.nodes else None
        self.rule: Rule = Greedy() if rule is None else rule
        on_cpu = target.device.type == "cpu"
        self.late = (0 if on_cpu or timed else 1) if late is None else late
        self.bucket = BUCKETS.get(target.device.type, BUCKET)
        self.growth = self._growth(tree, adaptive=on_cpu and not self.late)

    def _growth(self, tree: Tree | DynamicTree, *, adaptive: bool) -> Growth:
        if isinstance(tree, Tree):
            if tree.nodes and max(tree.ranks) >= self.target.vocabulary:
                raise ExecutorError(f"the tree uses rank {max(tree.ranks)} of a vocabulary of {self.target.vocabulary}")
            self.rule.check(tree)
            return StaticGrowth(tree, self.target.device)
        if self.rule.sampled_candidates:
            raise ExecutorError(
                "a dynamic tree keeps the candidates that look best, which biases a rule that samples them; "
                "use sample-and-match or point-mass"
            )
        if tree.children > self.target.vocabulary:
            raise ExecutorError(f"the tree wants {tree.children} children of {self.target.vocabulary} tokens")
        return DynamicGrowth(tree, adaptive=adaptive)

    def generate(self, prompts: Sequence[Tokens], *, new_tokens: int, stop: Sequence[int] = ()) -> list[Generation]:
        """Continue every prompt by up to `new_tokens`; see `steps`."""
        gathered = Gathered()
        found = {
            request: generation
            for step in self.steps(prompts, new_tokens=new_tokens, stop=stop)
            for request, generation in gathered.add(step)
        }
        return [found[request] for request in range(len(prompts))]

    def steps(self, prompts: Sequence[Tokens], *, new_tokens: int, stop: Sequence[int] = ()) -> Iterator[Step]:
        """Decode all prompts, in order of arrival, and yield every step; what cannot be is refused when called.

        Args:
            prompts: token ids of each request, at least one each.
            new_tokens: limit of each request.
            stop: tokens that end a request.

        Raises:
            UsageError: an empty prompt, tokens outside the vocabulary, or a limit below 1.
            ExecutorError: a request does not fit the model's context, or the caches do not fit the device.
        """
        rows = self._begin(prompts, new_tokens)
        return self._steps(rows, self.target.cache, prompts, new_tokens, stop)

    def _steps(
        self, rows: Rows, cache: TreeCache | None, prompts: Sequence[Tokens], new_tokens: int, stop: Sequence[int]
    ) -> Iterator[Step]:
        waiting = deque(enumerate(prompts))
        hosts = [_Row() for _ in range(self.batch)]
        launched: deque[_Launched] = deque()
        known = _Known(self.growth.depth + 1, False)
        while True:
            if self.target.cache is not cache:
                raise ExecutorError(
                    "another decoder took the target's cache: run one after the other, or load it twice"
                )
            started = self._now()
            _admit(rows, hosts, waiting)
            busy = any(host.request >= 0 for host in hosts)
            if busy:
                launched.append(self._launch(rows, hosts, known, started))
            elif not launched:
                return
            if busy and len(launched) <= self.late:
                continue
            step = launched.popleft()
            arrived = self._now()
            outcome = step.read()
            if self.late == 0:
                known = _Known(1 + max(count for count, *_ in outcome), all(fed >= 0 for _, fed, *_ in outcome))
            requests, committed, accepted = _settle(hosts, step, outcome, new_tokens, stop)
            ended = tuple(host.request < 0 <= request for host, request in zip(hosts, requests, strict=True))
            rows.leave([i for i, over in enumerate(ended) if over])
            if max(requests) >= 0:  # else all its rows had ended
                rest_s = step.verify_s + self._now() - arrived
                yield Step(requests, committed, accepted, ended, step.draft_s, rest_s, step.admit_s)

    def memory(self, prompts: Sequence[Tokens], *, new_tokens: int) -> str:
        """What the caches of a run will take, in words; raises as `steps` does."""
        _, capacity = self._checked(prompts, new_tokens)
        target = self.target.cache_bytes(self.batch, capacity) / 2**20
        drafter = 0.0 if self.drafter is None else self.drafter.cache_bytes(self.batch, capacity) / 2**20
        return f"caches for {self.batch} x {capacity} tokens: {target:.1f} MiB target, {drafter:.1f} MiB drafter"

    def _now(self) -> float:
        if self.timed and self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)
        return time.perf_counter()

    def _begin(self, prompts: Sequence[Tokens], new_tokens: int) -> Rows:
        length, capacity = self._checked(prompts, new_tokens)
        return Rows(self.target, self.drafter, self.growth, self.rule, self.batch, length, capacity)

    def _checked(self, prompts: Sequence[Tokens], new_tokens: int) -> tuple[int, int]:
        """See `_room`; prompts that cannot be continued are refused."""
        if new_tokens < 1:
            raise UsageError(f"new tokens must be at least 1, got {new_tokens}")
        for number, prompt in enumerate(prompts):
            if len(prompt) == 0:
                raise UsageError(f"prompt {number} is empty: decoding starts from a token")
            if not 0 <= min(prompt) <= max(prompt) < self.target.vocabulary:
                raise UsageError(f"prompt {number} holds tokens outside the vocabulary of {self.target.vocabulary}")
        length, capacity = self._room(prompts, new_tokens)
        self.target.check_length(length)
        return length, capacity

    def _room(self, prompts: Sequence[Tokens], new_tokens: int) -> tuple[int, int]:
        """Positions that a sequence may reach, and entries of its cache."""
        # The last step may pass the limit by a whole path, and so may every step that the host has not read yet.
        length = max((len(prompt) for prompt in prompts), default=1) + new_tokens + self.growth.depth
        length += self.late * (self.growth.depth + 1)
        return length, self._rounded(length + self.growth.room)

    def _rounded(self, columns: int) -> int:
        return -(-columns // self.bucket) * self.bucket

    def _launch(self, rows: Rows, hosts: "list[_Row]", known: "_Known", started: float) -> "_Launched":
        """Give the device a step; what the host knows of the last one only saves work."""
        requests = tuple(host.request for host in hosts)
        view = self._rounded(max(host.length + host.ahead for host in hosts) + self.growth.room)
        admitted = self._now()
        draft = rows.draft(view=view, steps=known.steps, all_fed=known.all_fed)
        drafted = self._now()
        rows.verify(draft, view=view)
        for host in hosts:
            host.ahead += (self.growth.depth + 1) * (host.request >= 0)
        outcome, ready = rows.outcome, None
        if outcome.device.type == "cuda":
            outcome = torch.empty(outcome.shape, dtype=outcome.dtype, pin_memory=True)
            outcome.copy_(rows.outcome, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record()
        elif self.late:
            outcome = outcome.clone()
        return _Launched(requests, outcome, ready, drafted - admitted, self._now() - drafted, admitted - started)


@dataclass(frozen=True)
class _Known:
    """What the host knows of the last step: no sequence committed more than `steps` tokens; see `Drafter.extend`."""

    steps: int
    all_fed: bool


def _admit(rows: Rows, hosts: list[_Row], waiting: "deque[tuple[int, Tokens]]") -> None:
    """Give idle rows to waiting requests."""
    joined: dict[int, Tokens] = {}
    for i, host in enumerate(hosts):
        if host.request < 0 and waiting:
            request, joined[i] = waiting.popleft()
            hosts[i] = _Row(request, len(joined[i]) - 1)
    if joined:
        rows.admit(list(joined), list(joined.values()))


def _settle(
    hosts: list[_Row], step: _Launched, outcome: list[list[int]], new_tokens: int, stop: Sequence[int]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Requests, committed and accepted of a step: cut what lies past each request's end, free rows that ended."""
    requests: list[int] = []
    committed: list[tuple[int, ...]] = []
    kept: list[int] = []
    for host, request, (count, _, *path) in zip(hosts, step.requests, outcome, strict=True):
        tokens: tuple[int, ...] = ()
        if request < 0 or request != host.request:  # idle, or its end was read after this step had begun
            request = -1
        else:
            host.length += count + 1
            host.ahead -= len(path)
            tokens = tuple(path[: count + 1])[: new_tokens - len(host.tokens)]
            ends = next((i for i, token in enumerate(tokens) if token in stop), None)
            tokens = tokens if ends is None else tokens[: ends + 1]
            host.tokens.extend(tokens)
            if ends is not None or len(host.tokens) >= new_tokens:
                host.request, host.length, host.ahead = -1, 0, 0
        requests.append(request)
        committed.append(tokens)
        kept.append(min(count, len(tokens)))
    return tuple(requests), tuple(committed), tuple(kept)
