"""An entry of a plan: the chosen tree of a batch size beside all that it is compared with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from treeopt.cost_model import StepShape
from treeopt.errors import CostError, TraceError
from treeopt.planning.evaluator import PLAIN, Judge
from treeopt.plans.plan import Choice, Grown, PlanEntry, Price, Proof
from treeopt.policies import DynamicTree, Policy, settings
from treeopt.searchers.dynamic_trees.choose_policy import Judged, best_policy
from treeopt.searchers.dynamic_trees.oracle_bound import upper_bound
from treeopt.searchers.dynamic_trees.settings_grid import Bench
from treeopt.searchers.dynamic_trees.step_prices import Padding, Prices, Timed
from treeopt.statistics.clustered_estimate import paired_difference
from treeopt.tree import Tree

CHAIN = "best chain"
CHOSEN = "chosen tree"
STATIC = "best static tree"
BOUND = "bound on any policy"


@dataclass(frozen=True)
class Rivals:
    """What is compared with the chosen tree.

    Attributes:
        chains: of which the best is shown.
        trees: others, by name.
        policies: kinds of `treeopt.searchers.dynamic_trees.choose_policy`, each swept.
        padding: of the policies' trees, see `treeopt.searchers.dynamic_trees.step_prices`.
        max_nodes: of the policies' trees.
        max_depth: of the policies' trees.
        seed: of the order in which policies meet requests.
        take_policies: whether one may be chosen: rules and shapes are of static trees.
        near: share by which a policy must be faster on the fitted requests to be chosen.
    """

    chains: Sequence[Tree]
    trees: Mapping[str, Tree]
    policies: Sequence[str]
    padding: Padding
    max_nodes: int
    max_depth: int
    seed: int
    take_policies: bool
    near: float

    def entry(self, judge: Judge, batch: int, best: Tree | None, proof: Proof, prices: tuple[Price, ...]) -> PlanEntry:
        """The entry of a batch size.

        A policy takes the place of the tree where it is faster on the fitted requests, and neither rules nor a number
        of shapes are asked for, nor forwards of one shape by a policy that changes it. The best static way, plain
        decoding included, is then compared with it.
        """
        plain, own = _static(judge, PLAIN, None, batch), _static(judge, CHOSEN, best, batch)
        policies = [self._judged(judge, kind, batch) for kind in self.policies]
        able = [each for each in policies if self.take_policies and self._runs(each)]
        fastest = max(able, key=_fitted, default=None)
        ways, skipped = self._trees(judge, batch)
        ways = [plain, *ways]
        if fastest is not None and _fitted(fastest) > judge.rate(best, batch) / (1 - self.near):
            chosen = _swept(judge, fastest, batch)
            tried = f"{len(fastest.tried)} settings on the fitted requests"
            swept = f"policy {fastest.kind} is the fastest of {tried}, not proved"
            proof = replace(proof, statement=f"{swept}; of static trees, {proof.statement}")
            ways[1:1] = [replace(own, choice=replace(own.choice, name=STATIC))]
        else:
            fastest, chosen = None, plain if best is None else own
        ways += [_swept(judge, each, batch) for each in policies if each is not fastest]
        ways += [self._bound(judge, batch)] if policies else []
        compared = [
            replace(way.choice, behind=judge.loss(way.seconds, chosen.seconds)) for way in ways if way is not chosen
        ]
        chain = next((way for way in ways if way.choice.name == CHAIN), None)
        gain = None
        if chain is not None and not chosen.choice.plain and chain.choice.tree != chosen.choice.tree:
            gain = paired_difference((chosen.committed, chosen.steps), (chain.committed, chain.steps))
        return PlanEntry(batch, chosen.choice, gain, tuple(compared), skipped, proof, prices)

    def rate(self, judge: Judge, way: Tree | Policy | None, batch: int) -> float:
        """Tokens a second and sequence on the fitted requests; 0 where trace or cost model do not cover it."""
        try:
            if way is None or isinstance(way, Tree):
                return judge.rate(way, batch)
            prices = Prices(judge.cost, batch, self.padding, judge.context)
            return Bench(judge.fit, prices, seed=self.seed).replayed(way).rate
        except (TraceError, CostError):
            return 0.0

    def _trees(self, judge: Judge, batch: int) -> tuple[list["_Way"], dict[str, str]]:
        """The best chain and the trees by name, and why some of these cannot be judged."""
        found, skipped = [], {}
        if self.chains:
            found.append(_static(judge, CHAIN, max(self.chains, key=lambda tree: judge.rate(tree, batch)), batch))
        for name, tree in self.trees.items():
            try:
                found.append(_static(judge, name, tree, batch))
            except (TraceError, CostError) as error:  # too deep, too wide or too large for what was recorded
                skipped[name] = str(error)
        return found, skipped

    def _judged(self, judge: Judge, kind: str, batch: int) -> Judged:
        return best_policy(
            judge.fit,
            judge.held,
            judge.cost,
            kind=kind,
            batch=batch,
            max_nodes=self.max_nodes,
            max_depth=self.max_depth,
            context=judge.context,
            padding=self.padding,
            seed=self.seed,
        )

    def _runs(self, each: Judged) -> bool:
        return self.padding != "full" or isinstance(each.policy, DynamicTree)

    def _bound(self, judge: Judge, batch: int) -> "_Way":
        prices = Prices(judge.cost, batch, self.padding, judge.context)
        held = upper_bound(judge.held, prices, nodes=self.max_nodes, depth=self.max_depth)
        steps = float(held.steps.sum())
        grown = Grown(BOUND, {}, float(held.nodes.sum()) / steps, float(held.levels.sum()) / steps)
        return _grown(judge, held, grown, batch)


@dataclass(frozen=True, eq=False)
class _Way:
    """A way of decoding and what it counted on the requests held out, arrays (R,)."""

    choice: Choice
    seconds: NDArray[np.float64]
    committed: NDArray[np.int64]
    steps: NDArray[np.int64]


def _static(judge: Judge, name: str, tree: Tree | None, batch: int) -> _Way:
    committed = judge.held.lengths
    steps = committed if tree is None else judge.counts(tree).steps
    return _Way(judge.choice(name, tree, batch), judge.seconds(tree, batch), committed, steps)


def _swept(judge: Judge, each: Judged, batch: int) -> _Way:
    grown = Grown(each.kind, settings(each.policy), each.nodes, each.levels, each.policy)
    return _grown(judge, each.held, grown, batch)


def _grown(judge: Judge, held: Timed, grown: Grown, batch: int) -> _Way:
    usual = StepShape(
        batch,
        1 + max(1, round(grown.nodes)),
        (1,) * max(1, round(grown.depth)),
        judge.context,
        growth=None if grown.policy is None else grown.policy.growth,
    )
    speedup = held.tokens_s.times(judge.plain_s(batch), relative_error=judge.cost.error(usual))
    choice = Choice(grown.kind, None, held.tau, float(held.seconds.sum() / held.steps.sum()), speedup, grown)
    return _Way(choice, held.seconds, held.committed, held.steps)


def _fitted(each: Judged) -> float:
    """Tokens a second on the requests that the policy was chosen on."""
    return dict(each.tried)[each.policy]
