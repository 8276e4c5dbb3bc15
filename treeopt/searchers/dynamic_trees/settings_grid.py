"""The settings of a dynamic policy, replayed one by one on the fitted requests; each kind says which are tried."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from treeopt.errors import CostError, EngineError, TraceError, TreeoptError
from treeopt.policies import OptTree, Policy, policy_text
from treeopt.policies.beam import Drafting
from treeopt.policies.reranking import Calibration, Shortlists, shortlists
from treeopt.replay.dynamic_tree import Batches
from treeopt.searchers.dynamic_trees.step_prices import Prices, Timed, price_replay
from treeopt.traces.trace import Trace

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 63, 80, 96, 127, 160, 192, 255)
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


@dataclass
class Sweep:
    """The policies replayed so far on the fitted requests.

    Attributes:
        bench: the fitted requests.
        drafting: limits of drafting.
        max_nodes: largest number of nodes per sequence.
        cannot_run: policies with a reason are left out; None: all can run.
        rates: tokens per second of each policy.
        refused: settings -> error, for policies that could not be replayed.
    """

    bench: Bench
    drafting: Drafting
    max_nodes: int
    cannot_run: CannotRun | None = None
    rates: dict[Policy, float] = field(default_factory=dict)
    refused: dict[str, TreeoptError] = field(default_factory=dict)

    @property
    def trace(self) -> Trace:
        """The fitted requests."""
        return self.bench.trace

    @property
    def batch(self) -> int:
        """Sequences decoded together."""
        return self.bench.prices.batch

    @property
    def best(self) -> Policy:
        """The policy with the most tokens per second; there must be one."""
        return max(self.rates, key=self.rates.__getitem__)

    def sizes(self, depth: int) -> list[int]:
        """Return the numbers of nodes worth trying at a depth, up to and including the largest possible."""
        largest = min(self.max_nodes, replace(self.drafting, depth=depth).candidates)
        return [*(n for n in SIZES if n < largest), largest]

    def depths(self) -> range:
        """Return the numbers of levels to try."""
        return range(1, self.drafting.depth + 1)

    def prepare(self, calibration: Calibration | None = None) -> None:
        """Make the shortlists that all settings share."""
        self.bench.lists(self.drafting, min(self.max_nodes, self.drafting.candidates), calibration)

    def consider(self, policy: Policy) -> None:
        """Replay a policy, or record the error."""
        if policy in self.rates or policy_text(policy) in self.refused:
            return
        reason = None if self.cannot_run is None else self.cannot_run(policy, self.bench.prices.batch)
        if reason is not None:
            self.refused[policy_text(policy)] = EngineError(reason)
            return
        try:
            self.rates[policy] = self.bench.replayed(policy).rate
        except (TraceError, CostError) as error:
            self.refused[policy_text(policy)] = error

    def consider_stops(self, make: Callable[[int, int, float], Policy], stops: tuple[float, ...]) -> None:
        """Try policies `make(nodes, depth, stop)`: all without a stop, then vary two settings of the best at a time."""
        tried = {make(n, depth, stops[0]): (n, depth) for depth in self.depths() for n in self.sizes(depth)}
        before = None
        while True:
            for policy in tried:
                self.consider(policy)
            if not self.rates or self.best == before:
                return
            before = self.best
            nodes, depth = tried[before]
            for stop in stops:
                tried |= {make(n, depth, stop): (n, depth) for n in self.sizes(depth)}
                tried |= {make(nodes, d, stop): (nodes, d) for d in self.depths() if nodes in self.sizes(d)}
