"""The best dynamic policy of a kind: fitted and chosen by replay on one trace, evaluated on another.

Proves nothing: a grid of settings of each kind is replayed along whole requests. `upper_bound` returns a
speed that no policy on the same candidates can exceed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from treeopt.errors import CostError, EngineError, TraceError
from treeopt.policies import OptTree, Policy, policy_text
from treeopt.policies.beam import Drafting, reach
from treeopt.policies.policy_kinds import Sweep, sweeps
from treeopt.policies.reranking import Calibration, Shortlists, shortlists
from treeopt.replay.dynamic_tree import Batches
from treeopt.replay.walk import walk_steps
from treeopt.searchers.step_prices import Prices, Timed, price_replay
from treeopt.traces.trace import Trace

CannotRun = Callable[[Policy, int], str | None]  # why an engine cannot run a policy at a batch size, None if it can


class Bench:
    """A part of the trace, with the shortlists that were made from it last."""

    def __init__(self, trace: Trace, prices: Prices, *, seed: int) -> None:
        """Order the requests by `seed`."""
        self.trace, self.prices = trace, prices
        self.batches = Batches(trace, batch=prices.batch, seed=seed)
        self._lists: dict[tuple[int, int, Calibration | None], Shortlists] = {}

    def lists(self, drafting: Drafting, nodes: int, calibration: Calibration | None) -> Shortlists:
        """Return shortlists of at least `nodes` nodes and the levels of `drafting`."""
        key = (drafting.beam, drafting.width, calibration)
        lists = self._lists.get(key)
        if lists is None or lists.log.shape[1] < drafting.depth or lists.log.shape[2] < nodes:
            lists = shortlists(self.trace, drafting, nodes=nodes, calibration=calibration)
            self._lists = {key: lists}  # only the last, because they are large
        return lists

    def replayed(self, policy: Policy) -> Timed:
        """Return the policy's counts and seconds; raises what `Batches.steps` and `timed` raise."""
        drafting = policy.drafting
        for beam, width, calibration in self._lists:
            usable = (width, calibration) == (drafting.width, policy.calibration)
            if isinstance(policy, OptTree) and policy.nodes <= drafting.beam < beam and usable:
                drafting = replace(drafting, beam=beam)  # a wider beam finds the same nodes
        lists = self.lists(drafting, policy.nodes, policy.calibration)
        return price_replay(self.trace, self.batches.steps(policy, lists), policy, self.prices)


ENGINE_BEAMS = (*range(1, 9), 10, 12, 16, 20, 32)  # nodes per level that are tried for an engine


@dataclass(frozen=True, eq=False)
class Judged:
    """The best policy of a kind, with its results on requests that it was not chosen on.

    Attributes:
        kind: a name of `treeopt.policies.policy_kinds.sweeps`.
        policy: its settings.
        held: its counts and seconds there, by request.
        tried: every policy that could be replayed, with its tokens per second on the requests it was chosen on.
        refused: settings -> reason, for those that could not be replayed.
    """

    kind: str
    policy: Policy
    held: Timed
    tried: tuple[tuple[Policy, float], ...]
    refused: Mapping[str, str]

    @property
    def rate(self) -> float:
        """Tokens per second and sequence on the requests that the policy was chosen on."""
        return dict(self.tried)[self.policy]


def best_policy(
    fit: Trace,
    held: Trace,
    prices: Prices,
    *,
    kind: str,
    max_nodes: int,
    max_depth: int | None = None,
    cannot_run: CannotRun | None = None,
    seed: int = 0,
) -> Judged:
    """Return the policy of a kind with the most replayed tokens per second on `fit`, evaluated on `held`.

    Where fewer expanded nodes may take less time, all settings are also tried with narrower beams, as far as the
    recording determines what these would draft.

    Args:
        fit: requests that curves are fitted to and settings are chosen on.
        held: requests that the chosen policy is evaluated on.
        prices: prices of steps.
        kind: a name of `treeopt.policies.policy_kinds.sweeps`.
        max_nodes: largest number of drafted nodes that are verified per sequence.
        max_depth: largest number of drafted levels; never more than were recorded.
        cannot_run: returns why an engine cannot run a policy at a batch size; engines consider as many children per
            node as they expand nodes on a level, so such settings are tried, with narrower beams, too. None: any
            policy can run.
        seed: seed of the order in which requests are decoded.

    Raises:
        TraceError: no candidates, or no policy can be replayed on them and priced; names the reason of the first.
    """
    recorded = reach(fit)
    depth = recorded.depth if max_depth is None else min(max_depth, recorded.depth)
    bench = Bench(fit, prices, seed=seed)

    def rate(policy: Policy) -> float:
        if cannot_run is not None and (reason := cannot_run(policy, prices.batch)) is not None:
            raise EngineError(reason)
        return bench.replayed(policy).rate

    rates: dict[Policy, float] = {}
    refused: dict[str, str] = {}
    if cannot_run is not None:
        beams = [beam for beam in ENGINE_BEAMS if beam <= min(recorded.beam, recorded.width)]
    else:
        narrower_may_pay = not prices.cost.separable or bool(prices.cost.growths)
        beams = halves(recorded.beam) if narrower_may_pay else [recorded.beam]
    for beam in beams:
        width = recorded.width if cannot_run is None else beam
        sweep = Sweep(fit, Drafting(depth, beam, width), max_nodes, rate, bench.lists)
        sweeps()[kind](sweep)
        rates |= sweep.rates
        refused |= {name: str(error) for name, error in sweep.refused.items()}
    judge = Bench(held, prices, seed=seed)
    for policy in sorted(rates, key=rates.__getitem__, reverse=True):
        try:
            result = judge.replayed(policy)
        except (TraceError, CostError) as error:
            refused[policy_text(policy)] = f"on the requests held out: {error}"
        else:
            return Judged(kind, policy, result, tuple(rates.items()), refused)
    raise TraceError(f"no {kind} policy can be replayed on these candidates: {next(iter(refused.values()))}")


def halves(beam: int) -> list[int]:
    """Return the beam, half of it, and so on down to 1.

    >>> halves(10)
    [10, 5, 2, 1]
    """
    return [beam, *halves(beam // 2)] if beam > 1 else [beam]


def upper_bound(trace: Trace, prices: Prices, *, nodes: int, depth: int) -> Timed:
    """Return the fewest seconds of each request if only true candidates are verified.

    At each anchor a chain of 0, 1, ... true candidates may be verified, as far as they were recorded. It costs what the
    cheapest step that is large enough costs: at least as many levels and nodes as the chain has tokens. Where trees are
    packed (padding `none`), a row may use the nodes of the whole batch. No policy on these candidates is faster on any
    request, provided that wider levels cost no less.

    Args:
        trace: trace with candidates.
        prices: prices of steps.
        nodes: largest number of nodes per sequence.
        depth: largest number of levels.

    Raises:
        TraceError: the trace holds no candidates.
        CostError: steps that the cost model does not cover.
    """
    if trace.candidates is None:
        raise TraceError(
            "a bound on dynamic policies needs recorded candidates, the trace has none: record it with `treeopt "
            "trace collect --candidates`"
        )
    anchor = np.repeat(np.arange(trace.anchors), np.diff(trace.candidates.offset))
    reach = np.bincount(anchor[trace.candidates.hit], minlength=trace.anchors)
    price = _prices(prices, nodes, depth)
    seconds = np.full(trace.anchors + 1, np.inf)  # from each anchor to the end of its request
    accepted = np.zeros(trace.anchors, dtype=np.int64)
    for back in range(1, int(trace.lengths.max()) + 1):
        anchors = np.flatnonzero(trace.left == back)
        for tokens, step in enumerate(price[:back]):
            ahead = seconds[anchors + tokens + 1] if tokens + 1 < back else 0.0
            total = np.where(reach[anchors] >= tokens, step + ahead, np.inf)
            better = total < seconds[anchors]
            seconds[anchors[better]], accepted[anchors[better]] = total[better], tokens
    steps = walk_steps(accepted, trace)
    drafted = np.bincount(steps.request, steps.accepted, minlength=trace.requests).astype(np.int64)
    return Timed(
        committed=trace.lengths,
        steps=np.bincount(steps.request, minlength=trace.requests),
        seconds=seconds[trace.starts],
        nodes=drafted,
        levels=drafted,
    )


def _prices(prices: Prices, nodes: int, depth: int) -> NDArray[np.float64]:
    """Return seconds of steps for chains of 0, 1, ... tokens, if the other rows of the batch accept none."""
    chain = Drafting(depth, 1, 1)
    plain = prices.cost.plain_s(batch=prices.batch, context=prices.context)
    seconds = [min(plain, float(prices.table(chain, nodes, committed=1).min()))]
    for tokens in range(1, min(nodes, depth) + 1):
        room = -(-tokens // prices.batch) if prices.padding == "none" else tokens
        table = prices.table(chain, nodes, committed=1 + tokens / prices.batch)
        seconds.append(float(table[tokens - 1 :, room - 1 :].min()))
    return np.array(seconds)
