"""Policies that choose their trees at run time, swept by replay: fitted and chosen on one trace, judged on another.

Proves nothing: of each kind a grid of settings is replayed along whole requests. `oracle.upper_bound` says what no
policy on the same candidates can exceed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from treeopt.cost_model import CostModel
from treeopt.defaults import NODES
from treeopt.errors import CostError, TraceError, UsageError
from treeopt.policies import Policy, named
from treeopt.policies.beam import Drafting, reach
from treeopt.searchers.dynamic_trees.settings_grid import GRIDS, Bench, Sweep
from treeopt.searchers.dynamic_trees.step_prices import Padding, Prices, Timed
from treeopt.statistics.clustered_estimate import Estimate
from treeopt.traces.trace import Trace

KINDS = tuple(GRIDS)


@dataclass(frozen=True, eq=False)
class Judged:
    """The best policy of a kind and what it is worth on requests that it was not chosen on.

    Attributes:
        kind: one of `KINDS`.
        policy: its settings.
        tau: tokens a step and sequence, bonus counted.
        tokens_s: tokens a second of each sequence; step times taken as they are.
        nodes: verified drafted nodes of a sequence and step, mean.
        levels: drafted levels of a step, mean.
        step_s: seconds of a step, mean.
        held: the counts that these come from, by request, for paired differences.
        tried: every policy that could be replayed, with its tokens a second on the requests it was chosen on.
        refused: settings -> reason, of those that could not.
    """

    kind: str
    policy: Policy
    tau: Estimate
    tokens_s: Estimate
    nodes: float
    levels: float
    step_s: float
    held: Timed
    tried: tuple[tuple[Policy, float], ...]
    refused: Mapping[str, str]


def best_policy(
    fit: Trace,
    held: Trace,
    cost: CostModel,
    *,
    kind: str,
    batch: int = 1,
    max_nodes: int = NODES,
    max_depth: int | None = None,
    context: int | None = None,
    padding: Padding = "none",
    seed: int = 0,
) -> Judged:
    """The policy of a kind with most replayed tokens a second on `fit`, judged on `held`.

    Where fewer expanded nodes may take less time, all settings are tried with narrower beams too, as far as the
    recording can tell what these would draft.

    Args:
        fit: requests that curves are fitted to and settings are chosen on.
        held: requests that the chosen policy is judged on.
        cost: seconds of steps.
        kind: one of `KINDS`.
        batch: sequences decoded together.
        max_nodes: drafted nodes of a sequence that are verified, at most.
        max_depth: levels drafted, at most; never more than were recorded.
        context: tokens a sequence in the cache; default what the cost model was made for.
        padding: how trees of different sizes become one forward.
        seed: of the order in which requests are decoded.

    Raises:
        UsageError: a setting without meaning.
        TraceError: no candidates, or none of the policies can be replayed on them and priced; says why the first.
    """
    if kind not in KINDS:
        raise UsageError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if max_nodes < 1 or (max_depth is not None and max_depth < 1):
        raise UsageError(f"max-nodes and max-depth must be at least 1, got {max_nodes} and {max_depth}")
    recorded = reach(fit)
    depth = recorded.depth if max_depth is None else min(max_depth, recorded.depth)
    prices = Prices(cost, batch, padding, context)
    bench = Bench(fit, prices, seed=seed)
    rates: dict[Policy, float] = {}
    refused: dict[str, str] = {}
    for beam in halves(recorded.beam) if prices.narrower_may_pay else [recorded.beam]:
        sweep = Sweep(bench, Drafting(depth, beam, recorded.width), max_nodes)
        GRIDS[kind](sweep)
        rates |= sweep.rates
        refused |= {name: str(error) for name, error in sweep.refused.items()}
    judge = Bench(held, prices, seed=seed)
    for policy in sorted(rates, key=rates.__getitem__, reverse=True):
        try:
            found = judge.replayed(policy)
        except (TraceError, CostError) as error:
            refused[named(policy)] = f"on the requests held out: {error}"
        else:
            return _judged(kind, policy, found, tuple(rates.items()), refused)
    raise TraceError(f"no {kind} policy can be replayed on these candidates: {next(iter(refused.values()))}")


def halves(beam: int) -> list[int]:
    """It, half of it, and so on.

    >>> halves(10)
    [10, 5, 2, 1]
    """
    return [beam, *halves(beam // 2)] if beam > 1 else [beam]


def _judged(
    kind: str, policy: Policy, held: Timed, tried: tuple[tuple[Policy, float], ...], refused: Mapping[str, str]
) -> Judged:
    steps = float(held.steps.sum())
    return Judged(
        kind,
        policy,
        held.tau,
        held.tokens_s,
        nodes=float(held.nodes.sum()) / steps,
        levels=float(held.levels.sum()) / steps,
        step_s=float(held.seconds.sum()) / steps,
        held=held,
        tried=tried,
        refused=refused,
    )
