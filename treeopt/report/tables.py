"""Tables on the terminal (rich), and the same figures as records for JSON."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from treeopt.estimate import Estimate
from treeopt.plan import Plan, PlanEntry
from treeopt.provenance import look
from treeopt.trace import BY_ANCHOR, PAST_END, Trace

TOPS = (1, 2, 4, 8)
PATHS_SHOWN = 12


def show_plan(plan: Plan, console: Console | None = None, *, checks: Mapping[int, str] | None = None) -> None:
    """Print a table for each batch size, what is known from live runs of its choice, then the conditions."""
    console = console or _console()
    for entry in plan.entries:
        console.print(_plan_table(entry))
        console.print(_verdict(entry), soft_wrap=True, markup=False)
        if checks and entry.batch in checks:
            console.print(checks[entry.batch], soft_wrap=True, markup=False)
        console.print()
    console.print(_conditions(plan), style="dim", soft_wrap=True, markup=False)


def _console() -> Console:
    """Standard output; wide enough for a table when it is no terminal."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=160)


def _plan_table(entry: PlanEntry) -> Table:
    table = Table(title=f"batch {entry.batch}", title_justify="left", title_style="bold")
    table.add_column("way of decoding")
    for name in ("nodes", "depth", "tau", "step ms", "tokens/s", "speedup"):
        table.add_column(name, justify="right")
    for choice in (entry.choice, *entry.compared):
        tree = choice.tree
        table.add_row(
            Text(choice.name),
            str(tree.nodes if tree else 0),
            str(tree.depth if tree else 0),
            _interval(choice.tau) if tree else "1",
            f"{choice.step_s * 1e3:.2f}",
            f"{choice.tokens_s(entry.batch):.0f}",
            _interval(choice.speedup) if tree else "1",
            style="bold green" if choice is entry.choice else None,
        )
    for name, reason in entry.skipped.items():
        table.add_row(Text(name), *[""] * 5, Text(f"not judged: {reason}"), style="dim")
    return table


def _verdict(entry: PlanEntry) -> str:
    choice, lines = entry.choice, []
    if choice.tree is None:
        lines.append("Do not speculate: no tree or chain tried is predicted to pay.")
    else:
        paths = [list(path) for path in choice.tree.paths[:PATHS_SHOWN]]
        more = "" if choice.tree.nodes <= PATHS_SHOWN else f" and {choice.tree.nodes - PATHS_SHOWN} more"
        lines.append(f"Tree {choice.tree.id}, levels {'/'.join(map(str, choice.tree.level_widths))}: {paths}{more}")
    if entry.gain is not None:
        lines.append(
            f"tau over the best chain: {entry.gain.value:+.3f} [{entry.gain.low:+.3f}, {entry.gain.high:+.3f}]"
            + ("" if entry.gain.low > 0 else ": within the noise, the chain may be as good")
        )
    lines.append(f"Proof: {entry.proof.statement}.")
    return "\n".join(lines)


def _conditions(plan: Plan) -> str:
    def show(*keys: str) -> str:
        return _shown(look(plan.meta, *keys))

    return (
        f"Predictions by replay on {show('search', 'requests_judged_on')} requests held out, trees chosen on "
        f"{show('search', 'requests_chosen_on')} others (seed {show('search', 'seed')}); 95 % intervals, clustered "
        f"by request, speedups with the profile's error.\n"
        f"Trace: {_models(look(plan.meta, 'trace'))}; {show('trace', 'verification')}, temperature "
        f"{show('trace', 'temperature')}; {show('trace', 'new_tokens')} new tokens a request.\n"
        f"Step times: {_models(look(plan.meta, 'cost'))} on {show('cost', 'device')} "
        f"({show('cost', 'provenance', 'processor')}), {show('cost', 'provenance', 'date')}."
    )


def _models(meta: Any) -> str:
    words = [_shown(look(meta, "target", key)) for key in ("name", "dtype")]
    words += [str(kind) for kind in (look(meta, "target", "quantization"),) if kind is not None]
    kind, heads = look(meta, "drafter", "kind"), look(meta, "drafter", "heads")
    if kind == "language-model":
        return f"target {' '.join(words)}, a language model as drafter"
    return f"target {' '.join(words)}, {'' if heads is None else f'{heads} '}{_shown(kind)} heads"


def _shown(value: Any) -> str:
    return "?" if value is None else str(value)


def _interval(estimate: Estimate, digits: int = 2) -> str:
    return f"{estimate.value:.{digits}f} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def describe(trace: Trace) -> dict[str, Any]:
    """What a trace holds, as JSON values; acceptance by depth is over all anchors, given nothing."""
    tops = []
    for depth in range(trace.depth):
        rank = trace.rank[:, depth]
        known = rank[rank != PAST_END]
        tops.append([round(float(((known >= 0) & (known < top)).mean()), 4) if len(known) else None for top in TOPS])
    lengths = trace.stops - trace.starts
    return {
        "anchors": trace.anchors,
        "requests": trace.requests,
        "depth": trace.depth,
        "width": trace.width,
        "tokens_a_request": {
            "min": int(lengths.min()),
            "mean": float(lengths.mean()),
            "max": int(lengths.max()),
        },
        "optional": [n for n in (*BY_ANCHOR, "candidates", "domain") if getattr(trace, n) is not None],
        "domains": len(trace.domain_names),
        "top_1_2_4_8_by_depth": tops,
        "distinct_rank_paths": len(np.unique(trace.rank, axis=0)),
        "meta": dict(trace.meta),
    }


def show_trace(trace: Trace, console: Console | None = None) -> None:
    """Print what a trace holds."""
    console = console or _console()
    facts = describe(trace)
    meta = facts["meta"]
    console.print(
        f"{facts['anchors']} anchors of {facts['requests']} requests "
        f"({facts['tokens_a_request']['min']} to {facts['tokens_a_request']['max']} tokens), "
        f"depth {facts['depth']}, width {facts['width']}"
        + (f", {facts['domains']} domains" if facts["domains"] else "")
    )
    verification, temperature, seed = (_shown(look(meta, key)) for key in ("verification", "temperature", "seed"))
    console.print(
        f"{_models(meta)}; {verification}, temperature {temperature}, seed {seed}", soft_wrap=True, markup=False
    )
    written, prompts = (look(meta, "repeated_4grams", part) for part in ("written", "prompts"))
    if isinstance(written, float) and isinstance(prompts, float):
        console.print(
            f"repeated 4-grams: {written:.1%} of what the target wrote, {prompts:.1%} of the prompts. "
            "A loop flatters every drafter: mistrust a large difference.",
            soft_wrap=True,
        )
    console.print("true token among the drafter's best, over all positions (tau needs a replay):")
    table = Table()
    table.add_column("depth")
    for top in TOPS:
        table.add_column(f"top {top}", justify="right")
    for depth, shares in enumerate(facts["top_1_2_4_8_by_depth"], 1):
        table.add_row(str(depth), *("" if share is None else f"{share:.3f}" for share in shares))
    console.print(table)


def show_validation(record: Mapping[str, Any], console: Console | None = None) -> None:
    """Print predicted beside measured; `record` is what `treeopt validate` writes."""
    console = console or _console()
    meta = record["meta"]
    table = Table(title="predicted | measured", title_justify="left", title_style="bold")
    for name in ("batch", "tree", "nodes"):
        table.add_column(name, justify="left" if name == "tree" else "right")
    for name in ("tau", "step ms", "speedup"):
        table.add_column(f"{name}\npredicted", justify="right")
        table.add_column("\nmeasured", justify="right")
    table.add_column("error", justify="right")
    table.add_column("end to\nend", justify="right")
    for cell in record["cells"]:
        p, m = cell["predicted"], cell["measured"]
        table.add_row(
            str(cell["batch"]),
            Text(cell["name"]),
            str(len(cell["tree"]["paths"])),
            *(_interval(Estimate(**side["tau"])) for side in (p, m)),
            *(f"{side['step_s'] * 1e3:.2f}" for side in (p, m)),
            *(_interval(Estimate(**side["speedup"])) for side in (p, m)),
            f"{cell['error']:+.1%}",
            f"{cell['end_to_end']:.2f}",
        )
    console.print(table)
    console.print(
        f"Error of the predicted speedup: mean {record['mean_error']:.1%}, largest {record['max_error']:.1%}.\n"
        f"{meta['prompts']} prompts besides the trace's, {meta['new_tokens']} new tokens each, in "
        f"{meta['blocks']} blocks of shuffled order; {_models(meta)} on {meta['device']} "
        f"({meta['provenance']['processor']}), {meta['provenance']['date']}. Medians of steps with all rows busy; "
        "end to end counts prefill and draining too. 95 % intervals.",
        style="dim",
        markup=False,
        soft_wrap=True,
    )
