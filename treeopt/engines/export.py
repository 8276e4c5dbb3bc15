"""What exporters share: their result, the entries asked for, what stands in for a tree; no engine."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NoReturn

from treeopt.constraints import Constraint, broken
from treeopt.errors import EngineError, PlanError, UsageError
from treeopt.planning.baselines import CHAIN
from treeopt.plans.plan import Choice, Plan, PlanEntry
from treeopt.storage.provenance import look, own_version
from treeopt.tree import Tree

Nearest = Literal["chain", "triple"]


@dataclass(frozen=True)
class EngineRules:
    """Which static trees an engine can run.

    Attributes:
        engine: name and version, for messages.
        rules: all of which a tree must keep.
    """

    engine: str
    rules: tuple[Constraint, ...]


@dataclass(frozen=True)
class Export:
    """What an engine is handed.

    Attributes:
        text: a file's content, or words of a command line; nothing that the engine would not read.
        suffix: of a file that holds the text.
        flags: launch options that make the engine use the text; empty when the text is these options, or when
            the engine has none.
        notes: what the text cannot say, one sentence each: replacements, assumptions, provenance.
        environment: variables that the engine reads besides, as a shell sets them; empty where there are none.
    """

    text: str
    suffix: str
    flags: str
    notes: tuple[str, ...]
    environment: str = ""


@dataclass(frozen=True)
class Fit:
    """The tree that an engine runs at one batch size; None decodes plainly, `note` says what was replaced."""

    batch: int
    tree: Tree | None
    note: str | None = None

    @property
    def depth(self) -> int:
        """Drafted tokens on the longest path, 0 without speculation."""
        return self.tree.depth if self.tree else 0


def entries_of(plan: Plan, *, batch: int | None = None) -> tuple[PlanEntry, ...]:
    """The entries of a plan by rising batch size, or the one that is asked for.

    Raises:
        UsageError: a batch size that the plan does not hold.
        PlanError: a batch size that it holds twice.
    """
    entries = sorted(plan.entries, key=lambda entry: entry.batch)
    for before, here in pairwise(entries):
        if before.batch == here.batch:
            raise PlanError(f"the plan holds batch {here.batch} twice")
    chosen = tuple(entry for entry in entries if batch in (None, entry.batch))
    if not chosen:
        asked = "any batch size" if batch is None else f"batch {batch}"
        raise UsageError(f"the plan does not hold {asked}; it holds {listed(entries) or 'none'}")
    return chosen


def entry_of(plan: Plan, *, batch: int | None, engine: str) -> PlanEntry:
    """The one entry that is asked for, or the only one.

    Raises:
        UsageError: several, and none asked for.
    """
    entries = entries_of(plan, batch=batch)
    if len(entries) > 1:
        raise UsageError(f"{engine} takes one topology: choose one batch size of {listed(entries)}")
    return entries[0]


def fit(
    entry: PlanEntry,
    *,
    engine: str,
    rules: Sequence[Constraint],
    nearest: Nearest | None,
    others: Iterable[str] = (),
) -> Fit:
    """The planned tree where the rules allow it, else the plan's best chain where the caller asked for it.

    Args:
        entry: of one batch size.
        engine: name and version, for messages.
        rules: what the engine can express.
        nearest: "chain" accepts the best chain; anything else refuses.
        others: further ways that a refusal should mention.

    Raises:
        EngineError: the tree breaks a rule; names the nearest that the engine can run.
    """
    tree = entry.choice.tree
    if entry.choice.plain or (tree is not None and tree.nodes == 0):
        return Fit(entry.batch, None)
    reason = "its trees are drawn anew at each step" if tree is None else broken(tree, rules)
    if reason is None:
        return Fit(entry.batch, tree)
    chain = _best_chain(entry, rules)
    if chain is not None and nearest == "chain":
        return Fit(entry.batch, chain.tree, _replaced(entry, chain))
    ways = [_chain_words(chain, entry), *others]
    raise EngineError(
        f"{engine} cannot run {_named(entry.choice)} (batch {entry.batch}, {entry.choice.nodes:.3g} nodes, depth "
        f"{entry.choice.depth:.3g}): {reason}; nearest: {'; '.join(ways)}"
    )


def refuse_plain(engine: str, batches: Iterable[int]) -> NoReturn:
    """Refuse to write down a speculation that the plan advises against."""
    where = ", ".join(map(str, batches))
    raise EngineError(
        f"{engine}: the plan says not to speculate at batch {where}; nearest: leave speculative decoding off"
    )


def listed(items: Iterable[PlanEntry | Fit]) -> str:
    """Batch sizes for a message.

    >>> listed([Fit(1, None), Fit(8, None)])
    '1, 8'
    """
    return ", ".join(str(item.batch) for item in items)


def tiers(fits: Sequence[Fit]) -> list[tuple[int, int]]:
    """(first batch size, chain length) of each tier, equal neighbours merged; the first tier starts at 1.

    A batch takes the tier of the largest planned size that it reaches, below all of them the smallest's.

    >>> chains = [Fit(2, Tree.chain(5)), Fit(8, Tree.chain(3)), Fit(16, Tree.chain(3)), Fit(64, None)]
    >>> tiers(chains)
    [(1, 5), (8, 3), (64, 0)]
    """
    merged: list[tuple[int, int]] = []
    for at in fits:
        if not merged or merged[-1][1] != at.depth:
            merged.append((at.batch if merged else 1, at.depth))
    return merged


def coverage_note(fits: Sequence[Fit]) -> str:
    """What happens at the batch sizes that were not planned.

    >>> coverage_note([Fit(1, Tree.chain(5)), Fit(8, None)])
    'planned for batch 1, 8; any other takes the largest of these that it reaches'
    """
    first = fits[0].batch
    if len(fits) == 1:
        return f"planned for batch {first} alone; the engine uses it at every batch size"
    below = f", below {first} that of {first}" if first > 1 else ""
    return f"planned for batch {listed(fits)}; any other takes the largest of these that it reaches{below}"


def drafter_notes(plan: Plan, *, engine: str, kinds: Collection[str]) -> list[str]:
    """A warning when the trees were chosen for a drafter that the engine will not run."""
    kind = look(plan.meta, "trace", "drafter", "kind")
    if kind in kinds:
        return []
    if kind is None:
        return [f"the plan does not name its drafter; its prediction holds if {engine} runs the same one"]
    return [
        f"the plan was made for a drafter of kind {kind}, {engine} runs {' or '.join(sorted(kinds))} here: "
        f"another topology may be best there and the prediction does not hold"
    ]


def origin(fits: Iterable[Fit]) -> dict[str, Any]:
    """Provenance: who wrote an export, from which trees by batch size (null: no speculation)."""
    trees = {str(at.batch): at.tree.id if at.tree else None for at in fits}
    return {"version": own_version(), "trees": trees}


def origin_note(fits: Iterable[Fit]) -> str:
    """Provenance as a sentence, for formats without room for it."""
    record = origin(fits)
    trees = ", ".join(f"batch {batch}: {tree or 'no speculation'}" for batch, tree in record["trees"].items())
    return f"treeopt {record['version']}, trees {trees}"


def _best_chain(entry: PlanEntry, rules: Sequence[Constraint]) -> Choice | None:
    for choice in entry.compared:
        if choice.name == CHAIN and choice.tree is not None and choice.tree.nodes > 0:
            return choice if broken(choice.tree, rules) is None else None
    return None


def _chain_words(chain: Choice | None, entry: PlanEntry) -> str:
    if chain is None or chain.tree is None:
        return "no chain that the plan compared"
    return (
        f"chain of {chain.tree.depth} (`chain`), predicted speedup {chain.speedup.value:.2f} "
        f"instead of {entry.choice.speedup.value:.2f}"
    )


def _replaced(entry: PlanEntry, chain: Choice) -> str:
    slower = ", slower than no speculation" if chain.speedup.value < 1 else ""
    gone = f"{_named(entry.choice)} ({entry.choice.nodes:.3g} nodes)"
    return f"batch {entry.batch}: {gone} gave way to a {_chain_words(chain, entry)}{slower}"


def _named(choice: Choice) -> str:
    return f"policy {choice.grown.kind}" if choice.grown else f"tree {choice.tree.id}" if choice.tree else choice.name
