"""The baselines of a plan: best chain, published trees and dynamic policies beside the chosen tree, as a plan entry."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from treeopt.cost_model import StepShape
from treeopt.errors import CostError, EngineError, TraceError
from treeopt.planning.evaluator import PLAIN, Judge
from treeopt.planning.proofs import with_policy
from treeopt.planning.search_settings import SearchSettings
from treeopt.plans import Choice, Grown, PlanEntry, Price, Proof
from treeopt.policies import DynamicTree, Policy, settings
from treeopt.searchers.choose_policy import Bench, CannotRun, Judged, best_policy, upper_bound
from treeopt.searchers.step_prices import Prices, Timed
from treeopt.statistics import paired_difference
from treeopt.tree import Tree

CHAIN = "best chain"
CHOSEN = "chosen tree"
STATIC = "best static tree"
BOUND = "bound on any policy"
SMALLEST = DynamicTree(nodes=1, depth=1, beam=1)  # what an engine with dynamic trees runs wherever it runs any


@dataclass(frozen=True)
class Rivals:
    """The configurations that are compared with the chosen tree.

    Attributes:
        chains: chains, of which the best is shown.
        trees: other trees, by name.
        settings: the search's: kinds of policies, each swept, policies with given settings, padding, limits, seed.
        take_policies: True if a policy may be chosen; False with rules of an engine without dynamic trees, which apply
            only to static trees.
        cannot_run: returns why the engine cannot run a policy; None: any policy can run.
    """

    chains: Sequence[Tree]
    trees: Mapping[str, Tree]
    settings: SearchSettings
    take_policies: bool
    cannot_run: CannotRun | None = None

    def entry(self, judge: Judge, batch: int, best: Tree | None, proof: Proof, prices: tuple[Price, ...]) -> PlanEntry:
        """Return the plan entry of a batch size.

        A policy takes the place of the tree where it is faster on the fitted requests. It does not where
        the rules are those of an engine without dynamic trees, where forwards have one shape and the policy changes
        it, and where dynamic trees were timed and its kind was not. The best static configuration, plain decoding
        included, is then compared with it.
        """
        plain, static = _static(judge, PLAIN, None, batch), _static(judge, CHOSEN, best, batch)
        kinds = () if self.cannot_run is not None and self.cannot_run(SMALLEST, batch) else self.settings.policies
        policies = [self._judged(judge, kind, batch) for kind in kinds]
        any_shape = self.settings.padded != "full"
        timed = judge.cost.growths
        runs = [p for p in policies if any_shape or isinstance(p.policy, DynamicTree)]
        runs = [p for p in runs if not timed or p.policy.growth in timed]
        eligible = runs if self.take_policies else []
        fastest = max(eligible, key=_fitted_rate, default=None)
        trees, skipped = self._trees(judge, batch)
        if self.cannot_run is not None and kinds != self.settings.policies:
            skipped |= dict.fromkeys(self.settings.policies, str(self.cannot_run(SMALLEST, batch)))
        table = [plain, *trees]
        if fastest is not None and _fitted_rate(fastest) > judge.rate(best, batch) / (1 - self.settings.near):
            chosen = _swept(judge, fastest, batch)
            proof = with_policy(proof, kind=fastest.kind, tried=len(fastest.tried))
            table[1:1] = [replace(static, choice=replace(static.choice, name=STATIC))]
        else:
            fastest, chosen = None, plain if best is None else static
        table += [_swept(judge, policy, batch) for policy in policies if policy is not fastest]
        table += self._judge_policies(judge, batch, skipped)
        table += [self._bound(judge, batch)] if policies else []
        compared = [
            replace(row.choice, behind=judge.loss(row.seconds, chosen.seconds)) for row in table if row is not chosen
        ]
        chain = next((row for row in table if row.choice.name == CHAIN), None)
        gain = None
        if chain is not None and not chosen.choice.plain and chain.choice.tree != chosen.choice.tree:
            gain = paired_difference(
                (chosen.committed, chosen.steps), (chain.committed, chain.steps), judge.held.domain
            )
        return PlanEntry(batch, chosen.choice, gain, tuple(compared), skipped, proof, prices)

    def rate(self, judge: Judge, configuration: Tree | Policy | None, batch: int) -> float:
        """Return tokens per second and sequence on the fitted requests; 0 where trace or cost model do not cover it."""
        try:
            if configuration is None or isinstance(configuration, Tree):
                return judge.rate(configuration, batch)
            prices = Prices(judge.cost, batch, self.settings.padded, judge.context)
            return Bench(judge.fit, prices, seed=self.settings.seed).replayed(configuration).rate
        except (TraceError, CostError):
            return 0.0

    def _trees(self, judge: Judge, batch: int) -> tuple[list["_Row"], dict[str, str]]:
        """Return the best chain and the named trees, and by name the reason why a tree cannot be replayed or priced."""
        rows, skipped = [], {}
        if self.chains:
            rows.append(_static(judge, CHAIN, max(self.chains, key=lambda tree: judge.rate(tree, batch)), batch))
        for name, tree in self.trees.items():
            try:
                rows.append(_static(judge, name, tree, batch))
            except (TraceError, CostError) as error:  # too deep, too wide or too large for what was recorded
                skipped[name] = str(error)
        return rows, skipped

    def _judge_policies(self, judge: Judge, batch: int, skipped: dict[str, str]) -> list["_Row"]:
        """Return the given policies; adds to `skipped` the reason why one cannot be run, replayed or priced."""
        bench, rows = (
            Bench(judge.held, Prices(judge.cost, batch, self.settings.padded, judge.context), seed=self.settings.seed),
            [],
        )
        for policy in dict.fromkeys(self.settings.dynamic):
            name = ",".join(f"{setting}={value}" for setting, value in settings(policy).items() if value)
            reason = None if self.cannot_run is None else self.cannot_run(policy, batch)
            try:
                if reason is not None:
                    raise EngineError(reason)
                held = bench.replayed(policy)
            except (EngineError, TraceError, CostError) as error:
                skipped[name] = str(error)
                continue
            steps = float(held.steps.sum())
            nodes, levels = float(held.nodes.sum()) / steps, float(held.levels.sum()) / steps
            rows.append(_grown_choice(judge, held, Grown(name, settings(policy), nodes, levels, policy), batch))
        return rows

    def _judged(self, judge: Judge, kind: str, batch: int) -> Judged:
        return best_policy(
            judge.fit,
            judge.held,
            judge.cost,
            kind=kind,
            batch=batch,
            max_nodes=self.settings.nodes,
            max_depth=self.settings.depth,
            context=judge.context,
            padding=self.settings.padded,
            cannot_run=self.cannot_run,
            seed=self.settings.seed,
        )

    def _bound(self, judge: Judge, batch: int) -> "_Row":
        prices = Prices(judge.cost, batch, self.settings.padded, judge.context)
        bound = upper_bound(judge.held, prices, nodes=self.settings.nodes, depth=self.settings.depth)
        steps = float(bound.steps.sum())
        grown = Grown(BOUND, {}, float(bound.nodes.sum()) / steps, float(bound.levels.sum()) / steps)
        return _grown_choice(judge, bound, grown, batch)


@dataclass(frozen=True, eq=False)
class _Row:
    """A configuration and its counts on the requests held out, arrays (R,)."""

    choice: Choice
    seconds: NDArray[np.float64]
    committed: NDArray[np.int64]
    steps: NDArray[np.int64]


def _static(judge: Judge, name: str, tree: Tree | None, batch: int) -> _Row:
    committed = judge.held.lengths
    steps = committed if tree is None else judge.counts(tree).steps
    return _Row(judge.choice(name, tree, batch), judge.seconds(tree, batch), committed, steps)


def _swept(judge: Judge, best: Judged, batch: int) -> _Row:
    grown = Grown(best.kind, settings(best.policy), best.nodes, best.levels, best.policy)
    return _grown_choice(judge, best.held, grown, batch)


def _grown_choice(judge: Judge, held: Timed, grown: Grown, batch: int) -> _Row:
    usual = StepShape(
        batch,
        1 + max(1, round(grown.nodes)),
        (1,) * max(1, round(grown.depth)),
        judge.context,
        growth=None if grown.policy is None else grown.policy.growth,
    )
    speedup = held.tokens_s.times(judge.plain_s(batch), relative_error=judge.cost.error(usual))
    choice = Choice(grown.kind, None, held.tau, float(held.seconds.sum() / held.steps.sum()), speedup, grown)
    return _Row(choice, held.seconds, held.committed, held.steps)


def _fitted_rate(best: Judged) -> float:
    """Return tokens per second on the requests that the policy was chosen on."""
    return dict(best.tried)[best.policy]
