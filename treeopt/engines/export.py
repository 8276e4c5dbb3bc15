"""The parts that exports share: the result, planned entries, replacements of trees, notes, imposed acceptance.

Imposed acceptance is what engines offer for their own benchmarks: drafting and verification do their full work, and
only the number of accepted tokens is fixed beforehand. So the speed that a plan predicts can be measured with any
drafter, on any texts.
"""

import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from treeopt.constraints import Constraint, broken
from treeopt.errors import EngineError, PlanError, UsageError
from treeopt.planning.baselines import CHAIN
from treeopt.plans import Choice, Plan, PlanEntry
from treeopt.replay.static_tree import visit
from treeopt.storage.provenance import look, own_version
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

Nearest = Literal["chain", "triple"]

TARGET = "TARGET"  # stands in launch lines for a target that was not named
DIGITS = 6  # decimal places of imposed acceptance rates
DRAFTER = "DRAFTER"  # stands in launch lines for a drafter that was not named
LONGEST_MATCH = 3  # tokens that treeopt's prompt lookup matches at most, by default
NOTHING_MATCHES = "drafts nothing where nothing matches, treeopt's prompt lookup always drafts something"


@dataclass(frozen=True)
class Export:
    """An exported plan: text for an engine, launch options and notes.

    Attributes:
        text: content of a file, or words of a command line; nothing that the engine would not read.
        suffix: suffix of a file that holds the text.
        flags: launch options that make the engine use the text; empty when the text is these options, or when
            the engine has none.
        notes: replacements, assumptions and provenance that the text cannot hold, one sentence each.
        environment: environment variables that the engine also reads, in shell syntax; empty if there are none.
        launch: the whole command line that starts the engine with the plan, or lines of Python for an engine that is
            a library.
        file: path from which `launch` has the engine read the text; empty if `launch` holds the text.
    """

    text: str
    suffix: str
    flags: str = ""
    notes: tuple[str, ...] = ()
    environment: str = ""
    launch: str = ""
    file: str = ""

    @property
    def script(self) -> str:
        """The launch line, after a command that writes the file that it reads, if it reads one.

        >>> print(Export("{}", ".json", "", (), launch="serve --config tiers.json", file="tiers.json").script)
        cat > tiers.json <<'END'
        {}
        END
        serve --config tiers.json
        """
        if not self.file:
            return self.launch
        return f"cat > {shlex.quote(self.file)} <<'END'\n{self.text}\nEND\n{self.launch}"


@dataclass(frozen=True)
class Fit:
    """The tree that an engine runs at one batch size; None decodes plainly; `note` names what was replaced."""

    batch: int
    tree: Tree | None
    note: str | None = None

    @property
    def depth(self) -> int:
        """The drafted tokens on the longest path, 0 without speculation."""
        return self.tree.depth if self.tree else 0


def entries_of(plan: Plan, *, batch: int | None = None) -> tuple[PlanEntry, ...]:
    """Return the entries of a plan by rising batch size, or the one for `batch`.

    Raises:
        UsageError: a batch size that the plan does not hold.
        PlanError: a batch size that it holds twice.
    """
    entries = sorted(plan.entries, key=lambda entry: entry.batch)
    for before, after in pairwise(entries):
        if before.batch == after.batch:
            raise PlanError(f"the plan holds batch {after.batch} twice")
    chosen = tuple(entry for entry in entries if batch in (None, entry.batch))
    if not chosen:
        wanted = "any batch size" if batch is None else f"batch {batch}"
        raise UsageError(
            f"the plan does not hold {wanted}; it holds {batch_sizes(entries) or 'none'}: choose one of these with "
            "--batch, or search for it"
        )
    return chosen


def fit(
    entry: PlanEntry,
    *,
    engine: str,
    rules: Sequence[Constraint],
    nearest: Nearest | None,
    others: Iterable[str] = (),
) -> Fit:
    """Return the planned tree if the rules allow it, else the plan's best chain if `nearest` is "chain".

    Args:
        entry: planned entry of one batch size.
        engine: name and version, for messages.
        rules: rules of the engine.
        nearest: "chain" accepts the best chain; anything else raises an error.
        others: further alternatives that the error should mention.

    Raises:
        EngineError: the tree breaks a rule; names the nearest alternative that the engine can run.
    """
    tree = entry.choice.tree
    if entry.choice.plain or (tree is not None and tree.nodes == 0):
        return Fit(entry.batch, None)
    reason = "its tree is dynamic, built at each step" if tree is None else broken(tree, rules)
    if reason is None:
        return Fit(entry.batch, tree)
    chains = (c for c in entry.compared if c.name == CHAIN and c.tree and c.tree.nodes and not broken(c.tree, rules))
    chain = next(chains, None)
    if chain is not None and nearest == "chain":
        return Fit(entry.batch, chain.tree, _replacement_note(entry, chain))
    alternatives = [_describe_chain(chain, entry), *others]
    raise EngineError(
        f"{engine} cannot run {_choice_name(entry.choice)} (batch {entry.batch}, {entry.choice.nodes:.3g} nodes, depth "
        f"{entry.choice.depth:.3g}): {reason}; nearest: {'; '.join(alternatives)}"
    )


def batch_sizes(items: Iterable[PlanEntry | Fit]) -> str:
    """Return batch sizes for a message.

    >>> batch_sizes([Fit(1, None), Fit(8, None)])
    '1, 8'
    """
    return ", ".join(str(item.batch) for item in items)


def tiers(fits: Sequence[Fit]) -> list[tuple[int, int, int]]:
    """Return first and last batch size and chain length of each tier, equal neighbours merged; the first starts at 1.

    A batch uses the tier of the largest planned size that it reaches; below all planned sizes, that of the smallest.
    The last tier ends at the largest planned size.

    >>> chains = [Fit(2, Tree.chain(5)), Fit(8, Tree.chain(3)), Fit(16, Tree.chain(3)), Fit(64, None)]
    >>> tiers(chains)
    [(1, 7, 5), (8, 63, 3), (64, 64, 0)]
    """
    merged: list[tuple[int, int]] = []
    for at in fits:
        if not merged or merged[-1][1] != at.depth:
            merged.append((at.batch if merged else 1, at.depth))
    ends = [*(first - 1 for first, _ in merged[1:]), max(at.batch for at in fits)]
    return [(first, last, length) for (first, length), last in zip(merged, ends, strict=True)]


def coverage_note(fits: Sequence[Fit]) -> str:
    """Return a note about the batch sizes that were not planned.

    >>> coverage_note([Fit(1, Tree.chain(5)), Fit(8, None)])
    'planned for batch 1, 8; any other uses the plan of the largest of these that it reaches'
    """
    first = fits[0].batch
    if len(fits) == 1:
        return f"planned for batch {first} only; the engine uses it at every batch size"
    below = f", or of {first} below that" if first > 1 else ""
    return (
        f"planned for batch {batch_sizes(fits)}; any other uses the plan of the largest of these that it reaches{below}"
    )


def match_note(setting: str) -> str:
    """Return what to set for the longest match of a prompt lookup."""
    return f"{setting} {LONGEST_MATCH} is that of the drafter prompt-lookup; set it to N for prompt-lookup:N"


def drafter_notes(plan: Plan, *, engine: str, kinds: Collection[str]) -> list[str]:
    """Return a warning if the trees were chosen for a drafter that the engine will not run."""
    kind = look(plan.meta, "trace", "drafter", "kind")
    if kind in kinds:
        return []
    if kind is None:
        return [f"the plan does not name its drafter; its prediction holds only if {engine} runs the same one"]
    return [
        f"the plan was made for a drafter of kind {kind}, but {engine} runs {' or '.join(sorted(kinds))} here, so "
        "the prediction does not hold; search with a trace of that drafter"
    ]


def origin(fits: Iterable[Fit]) -> dict[str, Any]:
    """Return provenance: the version that wrote an export, and its trees by batch size (null: no speculation)."""
    trees = {str(at.batch): at.tree.id if at.tree else None for at in fits}
    return {"version": own_version(), "trees": trees}


def origin_note(fits: Iterable[Fit]) -> str:
    """Return provenance as a sentence, for formats without room for it."""
    record = origin(fits)
    trees = ", ".join(f"batch {batch}: {tree or 'no speculation'}" for batch, tree in record["trees"].items())
    return f"treeopt {record['version']}, trees {trees}"


def kept_rates(tree: Tree, trace: Trace) -> list[float]:
    """Return how often a step of the tree's walk accepts at least 1, 2, ... drafted tokens of an endless text.

    The rates never rise. Each is a product of how often the next token is accepted where it is reached and the text
    continues; the engine itself cuts steps at the end of a text. This is exact if acceptance does not depend on the
    distance to the end.

    Raises:
        TraceError: the trace does not cover the tree.
    """
    walk = visit(tree, trace)
    left = trace.lengths[walk.request] - trace.position[walk.anchors]
    rates = [1.0]
    for depth in range(1, tree.depth + 1):
        reached = (walk.accepted >= depth - 1) & (left >= depth)
        rates.append(rates[-1] * float((walk.accepted[reached] >= depth).mean()) if reached.any() else 0.0)
    return [round(rate, DIGITS) for rate in rates[1:]]


def imposed_notes(entries: Iterable[PlanEntry], fits: Iterable[Fit], trace: Trace, rates: list[float]) -> list[str]:
    """Return notes on what to measure and what the plan predicts for it, if all batch sizes run parts of one chain."""
    length = round(float(trace.lengths.mean()))
    notes = [
        f"acceptance is imposed, so texts are meaningless: ignore end-of-text and generate {length} tokens "
        "per request, the trace's average, because the end of a request cuts its last step",
        "compare the time per output token after the first with that without speculation, at a constant number of "
        "running requests: the plan's speedup is that of steps, without prefill and draining",
    ]
    for entry, at in zip(entries, fits, strict=True):
        if at.tree is None:
            continue
        choice = next(choice for choice in (entry.choice, *entry.compared) if choice.tree == at.tree)
        committed = f"batch {at.batch}: uncut steps commit {1 + sum(rates[: at.depth]):.3f} tokens on average"
        if at.depth < len(rates):
            walked = 1 + sum(kept_rates(at.tree, trace))
            committed += f" ({walked:.3f} along the trace: rates are those of the chain of {len(rates)})"
        speedup = f"speedup {choice.speedup.value:.2f} [{choice.speedup.low:.2f}, {choice.speedup.high:.2f}]"
        notes.append(f"{committed}; the plan predicts tau {choice.tau.value:.2f} and {speedup}")
    return notes


def _describe_chain(chain: Choice | None, entry: PlanEntry) -> str:
    if chain is None or chain.tree is None:
        return "no chain that the plan compared"
    return (
        f"chain of {chain.tree.depth} (`chain`), predicted speedup {chain.speedup.value:.2f} "
        f"instead of {entry.choice.speedup.value:.2f}"
    )


def _replacement_note(entry: PlanEntry, chain: Choice) -> str:
    slower = ", slower than no speculation" if chain.speedup.value < 1 else ""
    planned = f"{_choice_name(entry.choice)} ({entry.choice.nodes:.3g} nodes)"
    return f"batch {entry.batch}: {planned} was replaced by a {_describe_chain(chain, entry)}{slower}"


def _choice_name(choice: Choice) -> str:
    return f"policy {choice.grown.kind}" if choice.grown else f"tree {choice.tree.id}" if choice.tree else choice.name
