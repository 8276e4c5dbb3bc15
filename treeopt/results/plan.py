"""Plans as tables: the answer for each batch size and what to run next, then a table for each, then the conditions."""

from collections.abc import Iterable, Mapping
from typing import Any

from treeopt.planning.baselines import CHAIN
from treeopt.planning.proof import NOT_PROVED, PROVED, SEARCHED
from treeopt.plans.plan import Choice, Plan, PlanEntry
from treeopt.results.blocks import ONE, Block, Blocks, Cell, Column, Line, Row, Table, conditions, number, ranged, word
from treeopt.results.plan_answers import answer, faster_lines, near_rule, next_lines, preferred, unanswered_lines
from treeopt.results.words import describe_measurement, describe_models, describe_rule, percent, shown
from treeopt.storage.provenance import look

PATHS_SHOWN = 12
LABELS = (SEARCHED, PROVED, NOT_PROVED)
UNLABELLED = "Proof"  # label for the statement of plans that earlier versions wrote


COLUMNS = (
    Column("configuration", align="left", key=True),
    Column("nodes", drop=3, meaning="Drafted tokens in the tree; the mean for dynamic trees."),
    Column("depth", drop=6, meaning="Drafted tokens on the longest path; the mean for dynamic trees."),
    Column("tau", drop=2, meaning="Tokens committed per step and sequence, bonus counted."),
    Column("step", "ms", drop=5, meaning="Time of one step: draft, verify, accept."),
    Column("tokens/s", drop=1, meaning="Tokens per second of the whole batch."),
    Column("speedup", meaning="Time per token of plain decoding over that of this configuration."),
    Column("behind", "%", drop=4, meaning="Tokens per second lost to the first row, paired by request."),
)


def plan_blocks(plan: Plan, *, checks: Mapping[int, str] | None = None, file: str | None = None) -> Blocks:
    """Return the answers, the next command, a table for each batch size, and the conditions.

    Args:
        plan: the plan.
        checks: by batch size, the sentence about a live run of the choice.
        file: the file that holds the plan; None if it is not written.
    """
    blocks: list[Block] = [Line("answer", answer(entry)) for entry in plan.entries]
    if plan.best is not None:
        blocks.append(Line("answer", preferred(plan, plan.entry(plan.best))))
    blocks += [Line("answer", text) for text in (*near_rule(plan), *faster_lines(plan))]
    unanswered = unanswered_lines(plan)
    blocks += [*next_lines(plan, file), *unanswered]
    first = {entry.choice.tree: entry.batch for entry in reversed(plan.entries) if entry.choice.tree is not None}
    for entry in plan.entries:
        before = None if entry.choice.tree is None else first[entry.choice.tree]
        blocks += [_table(entry), *(Line("note", text) for text in _notes(entry, before))]
        if checks and entry.batch in checks:
            blocks.append(Line("note", checks[entry.batch]))
    blocks += [Line("condition", text, detail=True) for text in _together(plan)]
    warnings = plan.warnings[1:] if unanswered else plan.warnings  # which begin with what is unanswered
    blocks += [Line("warning", f"{warning}.") for warning in warnings]
    return (*blocks, *_conditions(plan))


def _table(entry: PlanEntry) -> Table:
    choices = (entry.choice, *entry.compared)
    rows = tuple(Row(_cells(choice, entry), "chosen" if choice is entry.choice else "") for choice in choices)
    return Table(f"batch {entry.batch}", COLUMNS, rows)


def _cells(choice: Choice, entry: PlanEntry) -> tuple[Cell, ...]:
    return (
        word(choice.name),
        Cell(f"{choice.nodes:.3g}", float(choice.nodes)),
        Cell(f"{choice.depth:.3g}", float(choice.depth)),
        ONE if choice.plain else ranged(choice.tau),
        number(choice.step_s * 1e3, 2),
        number(choice.tokens_s(entry.batch)),
        ONE if choice.plain else ranged(choice.speedup),
        ranged(choice.behind, 1, scale=100),
    )


def _notes(entry: PlanEntry, first: int | None) -> list[str]:
    """Return what belongs to the table of a batch size: the tree, its gain over chains, the cost of rules.

    Args:
        entry: the choice for a batch size.
        first: first batch size with the same tree.
    """
    choice, lines = entry.choice, []
    if choice.grown is not None:
        settings = (_setting(key, value) for key, value in choice.grown.settings.items() if value is not None)
        lines.append(f"Dynamic tree, built at each step: {choice.grown.kind} with {', '.join(settings)}")
    elif choice.tree is not None and first != entry.batch:
        lines.append(f"Tree {choice.tree.id}, as at batch {first}")
    elif choice.tree is not None:
        paths = [list(path) for path in choice.tree.paths[:PATHS_SHOWN]]
        more = "" if choice.tree.nodes <= PATHS_SHOWN else f" and {choice.tree.nodes - PATHS_SHOWN} more"
        lines.append(f"Tree {choice.tree.id}, levels {'/'.join(map(str, choice.tree.level_widths))}: {paths}{more}")
    if entry.gain is not None:
        meaning = ": within the noise, the chain may be as good"
        if entry.gain.low > 0:
            meaning = ""
        elif entry.gain.high < 0:
            meaning = ": fewer tokens per step, in shorter steps"
        elif any(other.name == CHAIN and other.behind is not None and other.behind.low > 0 for other in entry.compared):
            meaning = ": as many tokens per step, in shorter steps"
        lines.append(
            f"tau over the best chain: {entry.gain.value:+.3f} [{entry.gain.low:+.3f}, {entry.gain.high:+.3f}]{meaning}"
        )
    for price in entry.prices:
        lines.append(f"{price.rule} ({price.source}) alone costs {percent(price.share)} % of tokens per second")
    return lines


def _setting(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return f"{name}={value:g}"


def _together(plan: Plan) -> list[str]:
    """Return the lines about several batch sizes or all of them."""
    lines = []
    if plan.switches:
        points = (f"to batch {s.large}'s at {s.up}, back to batch {s.small}'s at {s.down}" for s in plan.switches)
        lines.append(
            f"Switch as the batch size varies (in between keep the running configuration): {'; '.join(points)}"
        )
    if len(plan.entries) > 1:
        shapes = ", ".join(f"{batch} x {tokens}" for batch, tokens in plan.captures)
        lines.append(f"Verify forwards to capture (batch x tokens per sequence): {shapes}")
    return [*lines, *_not_compared(plan), *_proof(plan)]


def _not_compared(plan: Plan) -> list[str]:
    """Return a line for each baseline that could not be evaluated, with its batch sizes unless these are all."""
    lines = ((entry.batch, f"{name}: {why}") for entry in plan.entries for name, why in entry.skipped.items())
    return [f"Not compared{batches}: {line}" for line, batches in _once(lines, plan)]


def _proof(plan: Plan) -> list[str]:
    """Return the proof's lines, those of one label together, with their batch sizes unless these are all."""
    lines = ((entry.batch, line) for entry in plan.entries for line in entry.proof.statement.split("\n"))
    proof = []
    for line, batches in _once(lines, plan):
        label = next((label for label in LABELS if line.startswith(label)), "")
        if label:
            proof.append((LABELS.index(label), f"{label.removesuffix(': ')}{batches}: {line.removeprefix(label)}"))
        else:
            proof.append((len(LABELS), f"{UNLABELLED}{batches}: {line}."))
    return [line for _, line in sorted(proof, key=lambda ranked: ranked[0])]


def _once(lines: Iterable[tuple[int, str]], plan: Plan) -> list[tuple[str, str]]:
    """Return each line once with its batch sizes, such as ` (batch 1, 4)`; empty if it holds for all."""
    batches: dict[str, list[int]] = {}
    for batch, line in lines:
        batches.setdefault(line, []).append(batch)
    return [
        (line, "" if len(sizes) == len(plan.entries) else f" (batch {', '.join(map(str, sizes))})")
        for line, sizes in batches.items()
    ]


def _context(plan: Plan) -> str:
    context = look(plan.meta, "search", "context")
    return "" if context is None else f"; priced at {context} tokens of context"


def _conditions(plan: Plan) -> list[Line]:
    """Return the conditions of the predictions, one labelled line each."""

    def show(*keys: str) -> str:
        return shown(look(plan.meta, *keys))

    objective = look(plan.meta, "search", "objective")
    counted = ""
    if objective not in (None, "throughput"):
        counted = f"; tokens counted for {objective}, tau and tokens/s of the tables over all requests"
    dynamic = any(choice.grown for entry in plan.entries for choice in (entry.choice, *entry.compared))
    visible = [
        f"Predictions: by replay on {show('search', 'requests_judged_on')} requests held out, trees chosen on "
        f"{show('search', 'requests_chosen_on')} others (seed {show('search', 'seed')}){counted}.",
        "Intervals: 95 %, clustered by request; those of speedups include the error of step times.",
        f"Step times: {describe_measurement(look(plan.meta, 'cost'))}{_context(plan)}.",
        *(look(plan.meta, "missing") or ()),
    ]
    detail = [
        "% behind: tokens per second lost to the first line, paired by request.",
        *(["Dynamic trees: nodes and depth are means."] if dynamic else []),
        f"Trace: {describe_models(look(plan.meta, 'trace'))}; {describe_rule(look(plan.meta, 'trace'))}; "
        f"{show('trace', 'new_tokens')} new tokens per request.",
    ]
    return conditions(visible, detail)
