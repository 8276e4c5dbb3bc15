"""The baselines of a plan: best chain, published trees and dynamic policies beside the chosen tree, as a plan entry."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from treeopt.cost_model import StepShape
from treeopt.errors import CostError, EngineError, TraceError
from treeopt.planning.evaluator import PLAIN, Judge
from treeopt.planning.proof_sentences import with_policy
from treeopt.planning.search_settings import SearchSettings
from treeopt.plans import Choice, Grown, PlanEntry, Price, Proof
from treeopt.policies import DynamicTree, Policy, settings
from treeopt.searchers.choose_policy import Bench, CannotRun, best_policy, upper_bound
from treeopt.searchers.step_prices import Prices, Timed
from treeopt.statistics import paired_difference
from treeopt.traces.trace import Trace
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
        prices_of, wanted = self._prices(judge, batch), self.settings
        policies = [
            best_policy(
                judge.fit,
                judge.held,
                prices_of,
                kind=kind,
                max_nodes=wanted.nodes,
                max_depth=wanted.depth,
                cannot_run=self.cannot_run,
                seed=wanted.seed,
            )
            for kind in kinds
        ]
        any_shape = self.settings.padded != "full"
        timed = judge.cost.growths
        runs = [p for p in policies if any_shape or isinstance(p.policy, DynamicTree)]
        runs = [p for p in runs if not timed or p.policy.growth in timed]
        eligible = runs if self.take_policies else []
        fastest = max(eligible, key=lambda one: one.rate, default=None)
        trees, skipped = self._trees(judge, batch)
        if self.cannot_run is not None and kinds != self.settings.policies:
            skipped |= dict.fromkeys(self.settings.policies, str(self.cannot_run(SMALLEST, batch)))
        table = [plain, *trees]
        if fastest is not None and fastest.rate > judge.rate(best, batch) / (1 - self.settings.near):
            chosen = _grown_row(judge, fastest.held, fastest.kind, fastest.policy, batch)
            proof = with_policy(proof, kind=fastest.kind, tried=len(fastest.tried))
            table[1:1] = [replace(static, choice=replace(static.choice, name=STATIC))]
        else:
            fastest, chosen = None, plain if best is None else static
        table += [_grown_row(judge, p.held, p.kind, p.policy, batch) for p in policies if p is not fastest]
        table += self._judge_policies(judge, batch, skipped)
        if policies:
            bound = upper_bound(judge.held, prices_of, nodes=wanted.nodes, depth=wanted.depth)
            table.append(_grown_row(judge, bound, BOUND, None, batch))
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
            return self._bench(judge.fit, judge, batch).replayed(configuration).rate
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
        bench, rows = self._bench(judge.held, judge, batch), []
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
            rows.append(_grown_row(judge, held, name, policy, batch))
        return rows

    def _prices(self, judge: Judge, batch: int) -> Prices:
        return Prices(judge.cost, batch, self.settings.padded, judge.context)

    def _bench(self, part: Trace, judge: Judge, batch: int) -> Bench:
        return Bench(part, self._prices(judge, batch), seed=self.settings.seed)


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


def _grown_row(judge: Judge, held: Timed, name: str, policy: Policy | None, batch: int) -> _Row:
    words = {} if policy is None else settings(policy)
    grown = Grown(name, words, held.per_step(held.nodes), held.per_step(held.levels), policy)
    usual = StepShape(
        batch,
        1 + max(1, round(grown.nodes)),
        (1,) * max(1, round(grown.depth)),
        judge.context,
        growth=None if policy is None else policy.growth,
    )
    speedup = held.tokens_s.times(judge.plain_s(batch), relative_error=judge.cost.error(usual))
    choice = Choice(name, None, held.tau, held.per_step(held.seconds), speedup, grown)
    return _Row(choice, held.seconds, held.committed, held.steps)
