"""The decoding loop: draft, verify, accept, commit, for a batch whose finished requests are replaced.

The host keeps the queue and reads one small tensor a step; on an accelerator it reads one step late, so that the
device never waits; only policies that stop by what was drafted make it wait, at each level.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from executor.decoding.batch_rows import Rows, Tokens
from executor.decoding.cuda_graphs import Graphs
from executor.decoding.step_results import Gathered, Generation, Step
from executor.decoding.tree_growth import AskingGrowth, DynamicGrowth, Growth, StaticGrowth
from executor.device.clock import Clock, Mark, elapsed_s
from executor.device.free_memory import free_bytes
from executor.drafters.drafter import Drafter
from executor.target.architectures import looks_at_positions
from executor.target.kv_cache import TreeCache
from executor.target.target_model import Target
from executor.target.tensor_parallel import processes
from executor.verification.acceptance_rules import Greedy, Rule
from executor.verification.replayed_acceptance import Imposed
from treeopt.errors import ExecutorError, UsageError
from treeopt.policies import DynamicTree, Policy
from treeopt.tree import EMPTY, Tree

BUCKETS = {"cpu": 16}  # the cache is looked at in multiples of so many tokens; every size is a graph elsewhere
BUCKET = 256

NewTokens = int | Sequence[int]


@dataclass
class _Row:
    """The host's view of a row: which request, how far it is, how many new tokens it may have, how much further
    steps on their way may take it, and where it stays when it idles.
    """

    request: int = -1
    length: int = 0
    limit: int = 0
    ahead: int = 0
    rest: int = 0
    tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Launched:
    """A step that the device has been given: the requests of its rows, where its outcome will stand, and its marks.

    Between `admitted` and `started` graphs are captured; `done` comes after the outcome. `away` are the marks between
    which the caller had the last step, if the device's clock ran on meanwhile.
    """

    requests: tuple[int, ...]
    outcome: Tensor
    away: tuple[Mark, Mark] | None
    begun: Mark
    admitted: Mark
    started: Mark
    drafted: Mark
    done: Mark

    def read(self) -> list[list[int]]:
        """The outcome; the step's one host read."""
        if isinstance(self.done, torch.cuda.Event):
            self.done.synchronize()
        found: list[list[int]] = self.outcome.tolist()
        return found

    @property
    def seconds(self) -> tuple[float, float, float]:
        """Of admitting, drafting, and all else; the step has been read."""
        away_s = 0.0 if self.away is None else elapsed_s(*self.away)
        admit_s, draft_s = elapsed_s(self.begun, self.admitted), elapsed_s(self.started, self.drafted)
        if self.admitted is not self.begun:
            admit_s -= away_s
        elif self.started is self.begun:
            draft_s -= away_s
        return admit_s, draft_s, elapsed_s(self.drafted, self.done)


class Decoder:
    """A target, a drafter and a tree, decoding `batch` requests at a time.

    With an empty tree it is a plain decoding loop and needs no drafter.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None = None,
        *,
        tree: Tree | Policy = EMPTY,
        batch: int = 1,
        rule: Rule | None = None,
        late: int | None = None,
        graphs: bool = False,
    ) -> None:
        """Prepare the tree.

        Args:
            target: the model whose output is wanted.
            drafter: what proposes.
            tree: a static tree, or the policy that draws one anew at each step.
            batch: requests decoded together.
            rule: of verification; default greedy.
            late: steps that the host reads late; default 0 on CPU, else 1.
            graphs: replay steps from CUDA graphs; see `Graphs`.

        Raises:
            UsageError: batch below 1; graphs without CUDA, of several processes, or of steps that ask the host.
            ExecutorError: a tree without drafter, deeper than the drafter can draft, or not for this rule.
        """
        if batch < 1:
            raise UsageError(f"batch must be at least 1, got {batch}")
        if tree.nodes and drafter is None:
            raise ExecutorError(f"a tree of {tree.nodes} nodes needs a drafter")
        if drafter is not None and tree.depth > drafter.max_depth:
            raise ExecutorError(f"the tree has depth {tree.depth}, the drafter drafts {drafter.max_depth} at most")
        if graphs and target.device.type != "cuda":
            raise UsageError(f"graphs are for CUDA devices, got {target.device.type}")
        for model in (target.model, getattr(drafter, "model", None)):  # a language model drafts with one of its own
            if graphs and model is not None and looks_at_positions(model):
                raise UsageError("dynamic rotary scaling looks at the lengths in each step: leave graphs out")
        if graphs and processes() > 1:
            raise UsageError("graphs of a model that several processes share are not supported: leave one of them out")
        self.target, self.tree, self.batch, self.graphs = target, tree, batch, graphs
        self.drafter = drafter if tree.nodes else None
        self.rule: Rule = Greedy() if rule is None else rule
        on_cpu = target.device.type == "cpu"
        self.late = (0 if on_cpu else 1) if late is None else late
        self.bucket = BUCKETS.get(target.device.type, BUCKET)
        self._replayed: Graphs | None = None
        self.growth = self._growth(tree, adaptive=on_cpu and not self.late)

    def _growth(self, tree: Tree | Policy, *, adaptive: bool) -> Growth:
        if isinstance(tree, Tree):
            if tree.nodes and max(tree.ranks) >= self.target.vocabulary:
                raise ExecutorError(f"the tree uses rank {max(tree.ranks)} of a vocabulary of {self.target.vocabulary}")
            self.rule.check(tree)
            return StaticGrowth(tree, self.target.device)
        if isinstance(self.rule, Imposed):
            raise ExecutorError("acceptance is imposed on static trees only")
        if self.rule.sampled_candidates:
            raise ExecutorError(
                "a dynamic tree keeps the candidates that look best, which biases a rule that samples them; "
                "use sample-and-match or point-mass"
            )
        if tree.drafting.width > self.target.vocabulary:
            raise ExecutorError(f"the tree wants {tree.drafting.width} children of {self.target.vocabulary} tokens")
        if isinstance(tree, DynamicTree):
            return DynamicGrowth(tree, self.target.device, adaptive=adaptive)
        if self.graphs:
            raise UsageError(
                f"{type(tree).__name__} asks the host after each level, which no CUDA graph can: leave graphs out"
            )
        return AskingGrowth(tree, self.target.device)

    def generate(
        self, prompts: Sequence[Tokens], *, new_tokens: NewTokens, stop: Sequence[int] = ()
    ) -> list[Generation]:
        """Continue every prompt by up to `new_tokens`; see `steps`."""
        gathered = Gathered()
        found = {
            request: generation
            for step in self.steps(prompts, new_tokens=new_tokens, stop=stop)
            for request, generation in gathered.add(step)
        }
        return [found[request] for request in range(len(prompts))]

    def steps(self, prompts: Sequence[Tokens], *, new_tokens: NewTokens, stop: Sequence[int] = ()) -> Iterator[Step]:
        """Decode all prompts, in order of arrival, and yield every step; what cannot be is refused when called.

        Args:
            prompts: token ids of each request, at least one each.
            new_tokens: limit of every request, or of each.
            stop: tokens that end a request.

        Raises:
            UsageError: an empty prompt, tokens outside the vocabulary, a limit below 1, or not one for each request.
            ExecutorError: a request does not fit the model's context, or the caches do not fit the device.
        """
        rows = self._begin(prompts, new_tokens)
        return self._steps(rows, self.target.cache, prompts, _each(new_tokens, len(prompts)), stop)

    def _steps(
        self, rows: Rows, cache: TreeCache | None, prompts: Sequence[Tokens], limits: list[int], stop: Sequence[int]
    ) -> Iterator[Step]:
        waiting = deque(_Waiting(*one) for one in zip(range(len(prompts)), prompts, limits, strict=True))
        hosts = [_Row() for _ in range(self.batch)]
        launched: deque[_Launched] = deque()
        known = _Known(self.growth.depth + 1, False)
        clock, last, away = Clock(self.target.device), None, None
        unseen_s = 0.0  # of steps that nobody is told of
        while True:
            if self.target.cache is not cache:
                raise ExecutorError(
                    "another decoder took the target's cache: run one after the other, or load it twice"
                )
            # A device that runs behind the host begins a step when it is done with the last one, even if it then waits.
            begun = last if last is not None and clock.queued else clock.mark()
            joined = _admit(rows, hosts, waiting)
            busy = any(host.request >= 0 for host in hosts)
            if busy:
                launched.append(self._launch(rows, hosts, known, clock, away, begun, clock.mark() if joined else begun))
                last, away = launched[-1].done, None
            elif not launched:
                return
            if busy and len(launched) <= self.late:
                continue
            step = launched.popleft()
            arrived = time.perf_counter()
            outcome = step.read()
            if self.late == 0:
                known = _Known(1 + max(count for count, *_ in outcome), all(fed >= 0 for _, fed, *_ in outcome))
            requests, committed, accepted = _settle(hosts, step, outcome, stop)
            ended = tuple(host.request < 0 <= request for host, request in zip(hosts, requests, strict=True))
            rows.leave({i: hosts[i].rest for i, over in enumerate(ended) if over})
            admit_s, draft_s, rest_s = step.seconds
            if not clock.queued:
                rest_s += time.perf_counter() - arrived
            if max(requests) < 0:  # all its rows had ended
                unseen_s += admit_s + draft_s + rest_s
                continue
            paused = clock.mark() if clock.queued else None
            yield Step(requests, committed, accepted, ended, draft_s, rest_s, admit_s + unseen_s)
            unseen_s, away = 0.0, None if paused is None else (paused, clock.mark())

    def memory(self, prompts: Sequence[Tokens], *, new_tokens: NewTokens) -> str:
        """What the caches of a run will take, in words; raises as `steps` does."""
        _, capacity = self._checked(prompts, new_tokens)
        target = self.target.cache_bytes(self.batch, capacity)
        drafter = self._cache_bytes(capacity) - target
        return (
            f"caches for {self.batch} x {capacity} tokens: {target / 2**20:.1f} MiB target, "
            f"{drafter / 2**20:.1f} MiB drafter"
        )

    @property
    def graph_bytes(self) -> int:
        """Device memory that the last run's graphs held."""
        return 0 if self._replayed is None else self._replayed.bytes

    def _begin(self, prompts: Sequence[Tokens], new_tokens: NewTokens) -> Rows:
        length, capacity = self._checked(prompts, new_tokens)
        if self.target.cache is None:  # later runs use memory again; each cache is then checked alone
            needed, free = self._cache_bytes(capacity), free_bytes(self.target.device)
            if free is not None and needed > free:
                raise ExecutorError(
                    f"caches for {self.batch} sequences of {capacity} tokens need {needed / 2**30:.2f} GiB, "
                    f"{self.target.device} has {free / 2**30:.2f} GiB free"
                )
        self._replayed = None  # the last run's graphs hold memory
        rows = Rows(self.target, self.drafter, self.growth, self.rule, self.batch, length, capacity)
        self._replayed = Graphs(rows) if self.graphs else None
        return rows

    def _checked(self, prompts: Sequence[Tokens], new_tokens: NewTokens) -> tuple[int, int]:
        """Positions that a sequence may reach, and entries of its cache; what cannot be continued is refused."""
        limits = _each(new_tokens, len(prompts))
        for number, prompt in enumerate(prompts):
            if len(prompt) == 0:
                raise UsageError(f"prompt {number} is empty: decoding starts from a token")
            if not 0 <= min(prompt) <= max(prompt) < self.target.vocabulary:
                raise UsageError(f"prompt {number} holds tokens outside the vocabulary of {self.target.vocabulary}")
        length = max((len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True)), default=1)
        self.target.check_length(length)
        # The last step may pass the limit by a whole path, and so may every step that the host has not read yet.
        beyond = self.growth.depth + self.late * (self.growth.depth + 1)
        return length, self._rounded(length + beyond + self.growth.room)

    def _cache_bytes(self, capacity: int) -> int:
        """Memory of the target's cache and the drafter's."""
        drafter = 0 if self.drafter is None else self.drafter.cache_bytes(self.batch, capacity)
        return self.target.cache_bytes(self.batch, capacity) + drafter

    def _rounded(self, columns: int) -> int:
        return -(-columns // self.bucket) * self.bucket

    def _launch(
        self,
        rows: Rows,
        hosts: "list[_Row]",
        known: "_Known",
        clock: Clock,
        away: tuple[Mark, Mark] | None,
        begun: Mark,
        admitted: Mark,
    ) -> "_Launched":
        """Give the device a step; what the host knows of the last one only saves work."""
        requests = tuple(host.request for host in hosts)
        self.target.forget_prompts([row for row, host in enumerate(hosts) if host.request < 0 and not host.rest])
        view = self._rounded(max(host.length + host.ahead for host in hosts) + self.growth.room)
        started = admitted
        if self._replayed is None:
            draft = rows.draft(view=view, steps=known.steps, all_fed=known.all_fed)
            drafted = clock.mark()
            rows.verify(draft, view=view)
        else:
            if self._replayed.prepare(view=view):
                started = clock.mark()
            self._replayed.draft(view=view)
            drafted = clock.mark()
            self._replayed.verify(view=view)
        for host in hosts:
            host.ahead += (self.growth.depth + 1) * (host.request >= 0)
        outcome = rows.outcome
        if clock.queued:
            outcome = torch.empty(outcome.shape, dtype=outcome.dtype, pin_memory=True)
            outcome.copy_(rows.outcome, non_blocking=True)
        elif self.late:
            outcome = outcome.clone()
        return _Launched(requests, outcome, away, begun, admitted, started, drafted, clock.mark())


@dataclass(frozen=True)
class _Known:
    """What the host knows of the last step: no sequence committed more than `steps` tokens; see `Drafter.extend`."""

    steps: int
    all_fed: bool


@dataclass(frozen=True)
class _Waiting:
    """A request without a row."""

    request: int
    prompt: Tokens
    limit: int


def _each(new_tokens: NewTokens, requests: int) -> list[int]:
    """The limit of each request."""
    limits = [new_tokens] * max(1, requests) if isinstance(new_tokens, int) else list(new_tokens)
    if min(limits, default=1) < 1:
        raise UsageError(f"new tokens must be at least 1, got {min(limits)}")
    if isinstance(new_tokens, int):
        return limits[:requests]
    if len(limits) != requests:
        raise UsageError(f"new tokens must be given for each of {requests} requests, got {len(limits)} numbers")
    return limits


def _admit(rows: Rows, hosts: list[_Row], waiting: "deque[_Waiting]") -> bool:
    """Give idle rows to waiting requests; whether there were both."""
    joined: dict[int, _Waiting] = {}
    for i, host in enumerate(hosts):
        if host.request < 0 and waiting:
            joined[i] = one = waiting.popleft()
            filled = len(one.prompt) - 1
            hosts[i] = _Row(one.request, filled, one.limit, rest=filled * rows.target.keeps_prompts)
    if joined:
        rows.admit(list(joined), [one.prompt for one in joined.values()], [one.request for one in joined.values()])
    return bool(joined)


def _settle(
    hosts: list[_Row], step: _Launched, outcome: list[list[int]], stop: Sequence[int]
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
            tokens = tuple(path[: count + 1])[: host.limit - len(host.tokens)]
            ends = next((i for i, token in enumerate(tokens) if token in stop), None)
            tokens = tokens if ends is None else tokens[: ends + 1]
            host.tokens.extend(tokens)
            if ends is not None or len(host.tokens) >= host.limit:
                host.request, host.length, host.ahead = -1, host.rest, 0
        requests.append(request)
        committed.append(tokens)
        kept.append(min(count, len(tokens)))
    return tuple(requests), tuple(committed), tuple(kept)
