"""The decoding loop: draft, verify, accept, commit, for a batch whose finished requests are replaced.

The loop is `Decoder._decode`. The host keeps the queue of requests and reads one small tensor per step. On an
accelerator it reads one step late, so that the device never waits; only policies that stop by what was drafted make it
wait, at each level.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from executor.decoding.batch_rows import Rows, Tokens
from executor.decoding.cuda_graphs import ADVICE, Graphs
from executor.decoding.request_queue import Gathered, Generation, RequestQueue, Step, limit_each
from executor.decoding.request_queue import NewTokens as NewTokens
from executor.decoding.tree_growth import AskingGrowth, DynamicGrowth, Growth, StaticGrowth
from executor.device import Clock, Mark, elapsed_s, fits_device, free_bytes
from executor.drafters.base.drafter import Drafter, history_of
from executor.target.architectures import check_chain
from executor.target.kv_cache import TreeCache
from executor.target.positions import looks_at_positions
from executor.target.target_model import Target
from executor.target.tensor_parallel import processes
from executor.verification.acceptance_rules import Greedy, Rule
from executor.verification.replayed_acceptance import Imposed
from treeopt.errors import ExecutorError, UsageError
from treeopt.policies import DynamicTree, Policy
from treeopt.tree import EMPTY, Tree


@dataclass(frozen=True)
class LaunchedStep:
    """A step that the device has been given, and its marks on the device's time line.

    Attributes:
        requests: the requests of its rows.
        outcome: where its outcome will stand.
        away: marks between which the caller had the last step, if the device's clock ran on meanwhile.
        begun: the step begins; requests are admitted, and CUDA graphs are captured.
        started: drafting begins; the same mark as `begun` if there was nothing of both.
        drafted: the trees are drafted.
        done: the outcome is written.
    """

    requests: tuple[int, ...]
    outcome: Tensor
    away: tuple[Mark, Mark] | None
    begun: Mark
    started: Mark
    drafted: Mark
    done: Mark

    @property
    def seconds(self) -> tuple[float, float, float]:
        """Seconds before drafting, of drafting, and of all else; the step must have been read."""
        away_s = 0.0 if self.away is None else elapsed_s(*self.away)
        admit_s, draft_s = elapsed_s(self.begun, self.started), elapsed_s(self.started, self.drafted)
        if self.started is self.begun:
            draft_s -= away_s
        else:
            admit_s -= away_s
        return admit_s, draft_s, elapsed_s(self.drafted, self.done)

    def read(self) -> list[list[int]]:
        """Return the outcome, a list per row; the one time in a step that the host reads from the device."""
        if isinstance(self.done, torch.cuda.Event):
            self.done.synchronize()
        outcome: list[list[int]] = self.outcome.tolist()
        return outcome


class StepTimer:
    """The time line of a run: steps begin where the last one ended, and pauses with the caller count nowhere."""

    def __init__(self, clock: Clock) -> None:
        """Begin with no step done."""
        self.clock = clock
        self._last_done: Mark | None = None
        self._paused: Mark | None = None
        self._away: tuple[Mark, Mark] | None = None

    def begin(self) -> Mark:
        """Mark the beginning of a step.

        A device that runs after the host begins a step when it is done with the last one, even if it then waits.
        """
        if self._last_done is not None and self.clock.queued:
            return self._last_done
        return self.clock.mark()

    def finish(self) -> tuple[tuple[Mark, Mark] | None, Mark]:
        """Mark the end of a step; return the marks between which the caller was away, and the end."""
        away, self._away, self._last_done = self._away, None, self.clock.mark()
        return away, self._last_done

    def pause(self) -> None:
        """Mark that the caller is given a step."""
        self._paused = self.clock.mark() if self.clock.queued else None

    def resume(self) -> None:
        """Mark that the caller asks for the next step."""
        self._away = None if self._paused is None else (self._paused, self.clock.mark())


def copy_to_host(outcome: Tensor, read: list[Tensor], *, queued: bool, late: bool) -> Tensor:
    """Return the outcome where it survives the next step; on a device with a queue the copy does not wait.

    Args:
        outcome: int64 (batch, depth + 4), overwritten by the next step.
        read: earlier copies that were read: their memory is used again.
        queued: the device runs after the host.
        late: the outcome is read after the next step was launched.
    """
    if queued:
        pinned = read.pop() if read else torch.empty(outcome.shape, dtype=outcome.dtype, pin_memory=True)
        pinned.copy_(outcome, non_blocking=True)
        return pinned
    return outcome.clone() if late else outcome


SMALLER = f"take a smaller batch, shorter texts or a smaller tree, or {ADVICE}"
BUCKETS = {"cpu": 16}  # views of the cache are multiples of this many tokens; of graphs each is twice the last
BUCKET = 256


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
        trim: bool = True,
    ) -> None:
        """Prepare the tree.

        Args:
            target: the model whose output is wanted.
            drafter: what proposes.
            tree: a static tree, or the policy of a dynamic one.
            batch: requests decoded together.
            rule: of verification; default greedy.
            late: steps that the host reads late; default 0 on CPU, else 1.
            graphs: replay steps from CUDA graphs; see `Graphs`.
            trim: on CPU, verify only the levels that a drafter which abstains has proposed; False: always whole trees.

        Raises:
            UsageError: batch below 1; graphs without CUDA, of several processes, or of steps that ask the host.
            ExecutorError: a tree without drafter, deeper than the drafter can draft, or not for this rule or target; a
                drafter that abstains with a rule or policy that needs probabilities of all candidates.
        """
        if batch < 1:
            raise UsageError(f"batch must be at least 1, got {batch}")
        if tree.nodes and drafter is None:
            raise ExecutorError(f"a tree of {tree.nodes} nodes needs a drafter")
        if drafter is not None and tree.depth > drafter.max_depth:
            raise ExecutorError(f"the tree has depth {tree.depth}, the drafter drafts {drafter.max_depth} at most")
        check_chain(target.model.config, tree)
        if graphs:
            _check_graphs(target, drafter, tree)
        self.target, self.tree, self.batch, self.graphs = target, tree, batch, graphs
        self.drafter = drafter if tree.nodes else None
        self._history = history_of(self.drafter, batch)
        self.rule: Rule = Greedy() if rule is None else rule
        on_cpu = target.device.type == "cpu"
        self.late = (0 if on_cpu or self._history is not None else 1) if late is None else late
        self.bucket = BUCKETS.get(target.device.type, BUCKET)
        self._graphs: Graphs | None = None
        self._read: list[Tensor] = []
        adaptive = on_cpu and not self.late
        self.growth = self._growth(tree, adaptive=adaptive, trim=adaptive and trim)

    def _growth(self, tree: Tree | Policy, *, adaptive: bool, trim: bool = False) -> Growth:
        """Return how trees are drafted; raise what the constructor raises about the tree and the rule."""
        if self.drafter is not None and self.drafter.abstains:
            check_abstaining(self.drafter.kind, self.rule, dynamic=not isinstance(tree, Tree))
        if isinstance(tree, Tree):
            if tree.nodes and max(tree.ranks) >= self.target.vocabulary:
                raise ExecutorError(f"the tree uses rank {max(tree.ranks)} of a vocabulary of {self.target.vocabulary}")
            self.rule.check(tree)
            return StaticGrowth(tree, self.target.device, trim=trim and not isinstance(self.rule, Imposed))
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
        return AskingGrowth(tree, self.target.device)

    def generate(
        self, prompts: Sequence[Tokens], *, new_tokens: NewTokens, stop: Sequence[int] = ()
    ) -> list[Generation]:
        """Continue every prompt by up to `new_tokens`; see `steps`."""
        gathered = Gathered()
        generations = {
            request: generation
            for step in self.steps(prompts, new_tokens=new_tokens, stop=stop)
            for request, generation in gathered.add(step)
        }
        return [generations[request] for request in range(len(prompts))]

    def steps(self, prompts: Sequence[Tokens], *, new_tokens: NewTokens, stop: Sequence[int] = ()) -> Iterator[Step]:
        """Decode all prompts, in order of arrival, and yield every step; errors are raised by the call itself.

        Args:
            prompts: token ids of each request, at least one each.
            new_tokens: limit of every request, or one limit for each.
            stop: tokens that end a request.

        Raises:
            UsageError: an empty prompt, tokens outside the vocabulary, a limit below 1, or not one for each request.
            ExecutorError: a request does not fit the model's context, or the run does not fit the device.
        """
        rows = self._begin(prompts, new_tokens)
        limits = limit_each(new_tokens, len(prompts))
        queue = RequestQueue(prompts, limits, batch=self.batch, stop=stop, path_tokens=self.growth.depth + 1)
        return self._decode(rows, queue, self.target.cache)

    def _decode(self, rows: Rows, queue: RequestQueue, cache: TreeCache | None) -> Iterator[Step]:
        with fits_device(SMALLER):
            yield from self._loop(rows, queue, cache)

    def _loop(self, rows: Rows, queue: RequestQueue, cache: TreeCache | None) -> Iterator[Step]:
        """Run the loop until all requests have ended.

        Each turn gives the device a step (draft, verify, accept, commit; see `_launch`), then reads the outcome of the
        step launched `late` turns ago and hands its tokens to the requests.
        """
        clock = Clock(self.target.device)
        timer, launched = StepTimer(clock), deque[LaunchedStep]()
        known: dict[str, Any] = {"steps": self.growth.depth + 1, "all_fed": False}  # of the last step, see `Rows.draft`
        unseen_s = 0.0  # of steps that the caller does not get: all their rows had ended
        while True:
            if self.target.cache is not cache:
                raise ExecutorError(
                    "another decoder took the target's cache: run one after the other, or load it twice"
                )
            begun = timer.begin()
            joined = queue.admit(rows)
            if queue.busy:
                launched.append(self._launch(rows, queue, known, timer, begun, clock.mark() if joined else begun))
                if len(launched) <= self.late:
                    continue
            elif not launched:
                return
            step = launched.popleft()
            arrived = time.perf_counter()
            outcome = step.read()
            if clock.queued:
                self._read.append(step.outcome)
            if self.late == 0:
                known["steps"] = 1 + max(count for count, *_ in outcome)
                known["all_fed"] = all(fed >= 0 for _, fed, *_ in outcome)
            emitted = queue.settle(step.requests, outcome)
            rows.leave(queue.idle_lengths(emitted.ended))
            if self._history is not None and emitted.ended[0]:
                self._history.write(queue.output(0))
            admit_s, draft_s, rest_s = step.seconds
            if not clock.queued:
                rest_s += time.perf_counter() - arrived
            if max(emitted.requests) < 0:
                unseen_s += admit_s + draft_s + rest_s
                continue
            timer.pause()
            yield replace(emitted, draft_s=draft_s, rest_s=rest_s, admit_s=admit_s + unseen_s)
            timer.resume()
            unseen_s = 0.0

    def _launch(
        self, rows: Rows, queue: RequestQueue, known: dict[str, Any], timer: StepTimer, begun: Mark, started: Mark
    ) -> LaunchedStep:
        """Give the device one step: draft, verify, accept, commit. What is known of the last one only saves work."""
        requests = queue.requests
        self.target.forget_prompts(queue.empty_rows)
        view = self._rounded(queue.longest + self.growth.room)
        if self._graphs is None:
            draft = rows.draft(view=view, **known)
            drafted = timer.clock.mark()
            outputs = rows.verify(draft, view=view)
            rows.settle(draft, outputs)
        else:
            view = min(self.bucket << (view // self.bucket - 1).bit_length(), rows.capacity)
            if self._graphs.prepare(view=view):
                started = timer.clock.mark()
            self._graphs.draft(view=view)
            drafted = timer.clock.mark()
            self._graphs.verify(view=view)
        queue.launch()
        outcome = copy_to_host(rows.outcome, self._read, queued=timer.clock.queued, late=self.late > 0)
        away, done = timer.finish()
        return LaunchedStep(requests, outcome, away, begun, started, drafted, done)

    def memory(self, prompts: Sequence[Tokens], *, new_tokens: NewTokens) -> str:
        """Return a sentence with the memory of the caches of such a run; raise as `steps` does."""
        _, capacity = self._checked_lengths(prompts, new_tokens)
        target = self.target.cache_bytes(self.batch, capacity)
        drafter = self._cache_bytes(capacity) - target
        return (
            f"caches for {self.batch} x {capacity} tokens: {target / 2**20:.1f} MiB target, "
            f"{drafter / 2**20:.1f} MiB drafter"
        )

    @property
    def graph_bytes(self) -> int:
        """Device memory of the last run's graphs."""
        return 0 if self._graphs is None else self._graphs.bytes

    @property
    def capture_s(self) -> float:
        """Seconds of capturing the last run's graphs."""
        return 0.0 if self._graphs is None else self._graphs.seconds

    @fits_device(SMALLER)
    def _begin(self, prompts: Sequence[Tokens], new_tokens: NewTokens) -> Rows:
        """Allocate the caches of a run; all rows are idle."""
        length, capacity = self._checked_lengths(prompts, new_tokens)
        if self.target.cache is None:  # later runs use memory again; each cache is then checked alone
            needed, free = self._cache_bytes(capacity), free_bytes(self.target.device)
            if free is not None and needed > free:
                raise ExecutorError(
                    f"caches for {self.batch} sequences of {capacity} tokens need {needed / 2**30:.2f} GiB, "
                    f"{self.target.device} has {free / 2**30:.2f} GiB free"
                )
        self._graphs, self._read = None, []  # the last run's graphs hold memory
        rows = Rows(self.target, self.drafter, self.growth, self.rule, self.batch, length, capacity)
        self._graphs = Graphs(rows) if self.graphs else None
        return rows

    def _checked_lengths(self, prompts: Sequence[Tokens], new_tokens: NewTokens) -> tuple[int, int]:
        """Return the positions that a sequence may reach, and the entries of its cache; raise as `steps` does."""
        limits = limit_each(new_tokens, len(prompts))
        for number, prompt in enumerate(prompts):
            if len(prompt) == 0:
                raise UsageError(f"prompt {number} is empty: decoding needs at least one token")
            if not 0 <= min(prompt) <= max(prompt) < self.target.vocabulary:
                raise UsageError(f"prompt {number} holds tokens outside the vocabulary of {self.target.vocabulary}")
        length = max((len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True)), default=1)
        self.target.check_length(length)
        # The last step may pass the limit by a whole path, and so may every step that the host has not read yet.
        beyond = self.growth.depth + self.late * (self.growth.depth + 1)
        return length, self._rounded(length + beyond + self.growth.room)

    def _cache_bytes(self, capacity: int) -> int:
        """Return the memory of the target's cache and the drafter's."""
        drafter = 0 if self.drafter is None else self.drafter.cache_bytes(self.batch, capacity)
        return self.target.cache_bytes(self.batch, capacity) + drafter

    def _rounded(self, columns: int) -> int:
        return -(-columns // self.bucket) * self.bucket


def check_abstaining(kind: str, rule: Rule, *, dynamic: bool) -> None:
    """Refuse what needs probabilities, for a drafter that proposes one token or nothing.

    Raises:
        ExecutorError: a dynamic tree, or a rule that draws candidates.
    """
    if dynamic:
        raise ExecutorError(f"{kind} proposes one chain or nothing, a dynamic tree needs probabilities: use a chain")
    if rule.sampled_candidates or rule.needs_scores:
        raise ExecutorError(f"{kind} proposes a token without a probability: use rule sample-and-match or point-mass")


def graphs_refusal(target: Target, drafter: Drafter | None, tree: Tree | Policy) -> str | None:
    """Return why steps of these cannot be CUDA graphs, after trying to capture a small one; None: they can."""
    try:
        decoder = Decoder(target, drafter, tree=tree, graphs=True)
        rows = decoder._begin([[0]], 1)
        Graphs(rows).prepare(view=rows.capacity, strict=True)
    except (ExecutorError, UsageError) as error:
        return str(error).removesuffix(f": {ADVICE}")
    finally:
        target.cache = None
    return None


def _check_graphs(target: Target, drafter: Drafter | None, tree: Tree | Policy) -> None:
    """Raise UsageError if steps of these cannot be CUDA graphs, as far as types and configurations tell."""
    if target.device.type != "cuda":
        raise UsageError(f"graphs are for CUDA devices, got {target.device.type}: {ADVICE}")
    for model in (target.model, getattr(drafter, "model", None)):  # a language model drafts with a model of its own
        if model is not None and looks_at_positions(model):
            raise UsageError(f"dynamic rotary scaling reads the lengths in each step, CUDA graphs cannot: {ADVICE}")
    if target.recurrent:
        kind = target.model.config.model_type
        raise UsageError(f"{kind} models compute states again by the host's counts, CUDA graphs cannot: {ADVICE}")
    if processes() > 1:
        raise UsageError(f"CUDA graphs of a model that several processes share are not supported: {ADVICE}")
    if not isinstance(tree, Tree | DynamicTree):
        raise UsageError(f"{type(tree).__name__} asks the host after each level, CUDA graphs cannot: {ADVICE}")
