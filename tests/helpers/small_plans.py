"""Small plans for tests of exports, and what a plan means at each batch size."""

from dataclasses import replace
from typing import Any

from treeopt.engines import ENGINES
from treeopt.engines.export import Export
from treeopt.planning.baselines import CHAIN
from treeopt.plans import Choice, Grown, Plan, PlanEntry, Proof
from treeopt.policies import DynamicTree, OptTree
from treeopt.statistics import Estimate
from treeopt.tree import Tree

EAGLE3: dict[str, Any] = {"method": "eagle3", "model": "someone/eagle3"}
BUSHY = Tree.from_paths([(0, 0, 0, 0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (3,), (0, 0, 1), (1, 1), (0, 0, 2)])
MEDUSA_DRAFTER = {"kind": "medusa", "heads": 4}


def choice(name: str, tree: Tree | None, speedup: float = 1.0) -> Choice:
    return Choice(name, tree, Estimate(2.0, 1.9, 2.1), 0.01, Estimate(speedup, speedup - 0.1, speedup + 0.1))


def entry(batch: int, tree: Tree | None, *, chain: int | None = 3, chain_speedup: float = 1.4) -> PlanEntry:
    compared = [choice("no speculation", None)]
    if chain is not None:
        compared.append(choice(CHAIN, Tree.chain(chain), chain_speedup))
    chosen = choice("chosen tree" if tree else "no speculation", tree, 1.6)
    return PlanEntry(batch, chosen, None, tuple(compared), {}, Proof("tokens", optimal=False, statement="none"))


def plan_of(*entries: PlanEntry, drafter: dict[str, Any] | None = None) -> Plan:
    return Plan(entries, {"trace": {"drafter": drafter} if drafter else {}})


GOLDEN = plan_of(entry(1, Tree.chain(5)), entry(8, Tree.chain(3)), entry(32, Tree.chain(1)), entry(64, None))


def planned(plan: Plan, batch: int) -> int:
    """The length of the largest planned size that a batch reaches, else of the smallest, as documented."""
    sizes = sorted(each.batch for each in plan.entries)
    size = max((at for at in sizes if at <= batch), default=sizes[0])
    tree = next(each.choice.tree for each in plan.entries if each.batch == size)
    return tree.nodes if tree else 0


def speculates(plan: Plan) -> bool:
    return any(each.choice.tree for each in plan.entries)


OPT_TREE = OptTree(nodes=15, depth=5, threshold=0.1)


def grown(batch: int, policy: DynamicTree | OptTree) -> PlanEntry:
    kind = "eagle2" if isinstance(policy, DynamicTree) else "opt-tree"
    tree = Grown(kind, {}, nodes=7.5, depth=3.0, policy=policy)
    return replace(entry(batch, None), choice=replace(choice("eagle2", None, 1.8), grown=tree))


def exported(engine: str, plan: Plan = GOLDEN, **options: Any) -> Export:
    return ENGINES[engine].export(plan, **options)
