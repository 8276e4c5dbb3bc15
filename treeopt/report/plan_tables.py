"""Tables on the terminal (rich), and the same figures as records for JSON."""

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from treeopt.plans.plan import Plan, PlanEntry
from treeopt.replay.static_tree import accepted_lengths
from treeopt.statistics.clustered_estimate import Estimate
from treeopt.storage.provenance import look
from treeopt.traces.trace import OPTIONAL, PAST_END, Trace

PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}  # names are shown as they are
TOPS = (1, 2, 4, 8)
PATHS_SHOWN = 12


def show_plan(plan: Plan, console: Console | None = None, *, checks: Mapping[int, str] | None = None) -> None:
    """Print a table for each batch size, what is known from live runs of its choice, then the conditions."""
    console = console or terminal()
    for entry in plan.entries:
        console.print(_plan_table(entry))
        console.print(_verdict(entry), soft_wrap=True, markup=False)
        if checks and entry.batch in checks:
            console.print(checks[entry.batch], soft_wrap=True, markup=False)
        console.print()
    for line in _together(plan):
        console.print(line, soft_wrap=True, markup=False)
    console.print(_conditions(plan), style="dim", soft_wrap=True, markup=False)


def terminal(width: int = 160) -> Console:
    """Standard output; `width` columns, enough for a table, when it is no terminal."""
    console = Console(**PLAIN)
    return console if console.is_terminal else Console(**PLAIN, width=width)


def _plan_table(entry: PlanEntry) -> Table:
    table = Table(title=f"batch {entry.batch}", title_justify="left", title_style="bold")
    table.add_column("way of decoding")
    for name in ("nodes", "depth", "tau", "step ms", "tokens/s", "speedup", "% behind"):
        table.add_column(name, justify="right")
    for choice in (entry.choice, *entry.compared):
        table.add_row(
            Text(choice.name),
            f"{choice.nodes:.3g}",
            f"{choice.depth:.3g}",
            "1" if choice.plain else interval(choice.tau),
            f"{choice.step_s * 1e3:.2f}",
            f"{choice.tokens_s(entry.batch):.0f}",
            "1" if choice.plain else interval(choice.speedup),
            "" if choice.behind is None else _percent(choice.behind),
            style="bold green" if choice is entry.choice else None,
        )
    for name, reason in entry.skipped.items():
        table.add_row(Text(name), *[""] * 6, Text(f"not judged: {reason}"), style="dim")
    return table


def _verdict(entry: PlanEntry) -> str:
    choice, lines = entry.choice, []
    if choice.grown is not None:
        words = ", ".join(_setting(key, value) for key, value in choice.grown.settings.items() if value is not None)
        lines.append(f"Trees drawn anew at each step: {choice.grown.kind} with {words}; nodes and depth are means")
    elif choice.tree is None:
        lines.append("Do not speculate: no tree or chain tried is predicted to pay.")
    else:
        paths = [list(path) for path in choice.tree.paths[:PATHS_SHOWN]]
        more = "" if choice.tree.nodes <= PATHS_SHOWN else f" and {choice.tree.nodes - PATHS_SHOWN} more"
        lines.append(f"Tree {choice.tree.id}, levels {'/'.join(map(str, choice.tree.level_widths))}: {paths}{more}")
    if entry.gain is not None:
        words = ": within the noise, the chain may be as good"
        if entry.gain.low > 0:
            words = ""
        elif entry.gain.high < 0:
            words = ": fewer tokens a step, in shorter steps"
        lines.append(
            f"tau over the best chain: {entry.gain.value:+.3f} [{entry.gain.low:+.3f}, {entry.gain.high:+.3f}]{words}"
        )
    for price in entry.prices:
        lines.append(f"{price.rule} ({price.source}): costs {_percent(price.share)} % of tokens a second by itself")
    lines.append(f"Proof: {entry.proof.statement}.")
    return "\n".join(lines)


def _setting(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return f"{name}={value:g}"


def _together(plan: Plan) -> list[str]:
    """What holds for several batch sizes, and what to beware of; an empty line last where there is anything."""
    lines = []
    if plan.best is not None:
        lines.append(_preferred(plan, next(entry for entry in plan.entries if entry.batch == plan.best)))
    for switch in plan.switches:
        back = f"back at {switch.down}"
        lines.append(
            f"From batch {switch.small}'s way to batch {switch.large}'s: change at {switch.up}, {back}, between them "
            "keep what runs"
        )
    if len(plan.entries) > 1:
        shapes = ", ".join(f"{batch} x {tokens}" for batch, tokens in plan.captures)
        lines.append(f"Verify forwards to capture (batch x tokens a sequence): {shapes}")
    lines += [f"Warning: {warning}." for warning in plan.warnings]
    return [*lines, ""] if lines else []


def _preferred(plan: Plan, entry: PlanEntry) -> str:
    objective, ceiling = (look(plan.meta, "search", key) for key in ("objective", "max_tpot_s"))
    what = "Most tokens a second" if objective == "throughput" else f"Best for {_shown(objective)}"
    below = f" below {ceiling * 1e3:g} ms a token" if ceiling else ""
    return (
        f"{what}{below}: batch {entry.batch}, {entry.batch / entry.tpot_s:.0f} tokens/s, "
        f"{entry.tpot_s * 1e3:.2f} ms a token and sequence"
    )


def _conditions(plan: Plan) -> str:
    def show(*keys: str) -> str:
        return _shown(look(plan.meta, *keys))

    objective = look(plan.meta, "search", "objective")
    counted = ""
    if objective not in (None, "throughput"):
        counted = f" and tokens counted for {objective}, tau and tokens/s of the tables over all requests"
    return (
        f"Predictions by replay on {show('search', 'requests_judged_on')} requests held out, trees chosen on "
        f"{show('search', 'requests_chosen_on')} others (seed {show('search', 'seed')}); 95 % intervals, clustered "
        f"by request, speedups with the step times' error{counted}. % behind: tokens a second lost to the first line, "
        f"paired by request.\n"
        f"Trace: {models_told(look(plan.meta, 'trace'))}; {rule_told(look(plan.meta, 'trace'))}; "
        f"{show('trace', 'new_tokens')} new tokens a request.\n"
        f"Step times: {measured_told(look(plan.meta, 'cost'))}."
    )


def models_told(meta: Any) -> str:
    """Target and drafter of a trace or profile, or what a trace was imported from, as its provenance says."""
    kind, heads = look(meta, "drafter", "kind"), look(meta, "drafter", "heads")
    if kind == "language-model":
        drafter = "a language model as drafter"  # its `heads` are the levels that it goes to
    else:
        drafter = f"{_shown(kind)} as drafter" if heads is None else f"{heads} {_shown(kind)} heads"
    source, engine = look(meta, "imported"), look(meta, "imported", "engine")
    if source is not None and look(meta, "target") is None:
        what = f"{_shown(look(source, 'format'))}{'' if engine is None else f' of {engine}'}"
        return f"imported: {what}, {_shown(look(source, 'file'))}{'' if kind is None else f', {drafter}'}"
    words = [_shown(look(meta, "target", key)) for key in ("name", "dtype")]
    words += [str(kind) for kind in (look(meta, "target", "quantization"),) if kind is not None]
    return f"target {' '.join(words)}, {drafter}"


def rule_told(meta: Any) -> str:
    """How the tokens of a trace were chosen, as its provenance says.

    >>> rule_told({"verification": "greedy", "temperature": 0.0}), rule_told({})
    ('greedy, temperature 0.0', 'rule and temperature not told')
    """
    rule, temperature = look(meta, "verification"), look(meta, "temperature")
    if rule is None and temperature is None:
        return "rule and temperature not told"
    return f"{_shown(rule)}, temperature {_shown(temperature)}"


def measured_told(meta: Any) -> str:
    """Models, device and day of a profile or validation, as its provenance says; or that nothing was measured."""
    if look(meta, "predicted") is not None:
        device, kind, name = (_shown(look(meta, *k)) for k in (("device",), ("drafter", "kind"), ("target", "name")))
        return f"predicted for {device} from its data sheet and sizes of {name}, drafter {kind}; nothing was measured"
    processor, date = (look(meta, "provenance", key) for key in ("processor", "date"))
    graphs = ", CUDA graphs" if look(meta, "graphs") else ""
    carried = look(meta, "transfer", "to")
    to = "" if carried is None else f", carried over to {carried}"
    made = "" if look(meta, "imported") is not None else f"{graphs} ({_shown(processor)}), {_shown(date)}"
    return f"{models_told(meta)} on {_shown(look(meta, 'device'))}{made}{to}"


def _shown(value: Any) -> str:
    return "?" if value is None else str(value)


def interval(estimate: Estimate, digits: int = 2) -> str:
    """A value and its interval.

    >>> interval(Estimate(1.5, 1.25, 1.75))
    '1.50 [1.25, 1.75]'
    """
    return f"{estimate.value:.{digits}f} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def _percent(share: Estimate) -> str:
    return interval(Estimate(*(100 * part for part in astuple(share))), digits=1)


def describe(trace: Trace) -> dict[str, Any]:
    """What a trace holds, as JSON values; acceptance by depth is over all anchors, given nothing."""
    tops = []
    for depth in range(trace.depth):
        rank = trace.rank[:, depth]
        known = rank[rank != PAST_END]
        tops.append([round(float(((known >= 0) & (known < top)).mean()), 4) if len(known) else None for top in TOPS])
    return {
        "anchors": trace.anchors,
        "requests": trace.requests,
        "depth": trace.depth,
        "width": trace.width,
        "tokens_a_request": _spread(trace.lengths),
        **({} if trace.prompt_tokens is None else {"tokens_a_prompt": _spread(trace.prompt_tokens)}),
        "optional": [name for name in OPTIONAL if getattr(trace, name) is not None],
        "domains": len(trace.domain_names),
        "top_1_2_4_8_by_depth": tops,
        **({} if trace.tree is None else {"kept_by_depth": _kept_by_depth(trace)}),
        "distinct_rank_paths": len(np.unique(trace.rank, axis=0)),
        "meta": dict(trace.meta),
    }


def _spread(tokens: NDArray[Any]) -> dict[str, float]:
    return {"min": int(tokens.min()), "mean": float(tokens.mean()), "max": int(tokens.max())}


def _kept_by_depth(trace: Trace) -> list[float]:
    """Share of the positions with room for so many tokens at which the whole tree would keep as many or more."""
    assert trace.tree is not None
    kept = accepted_lengths(trace.tree, trace)
    return [
        round(float((kept[trace.left >= depth] >= depth).mean()), 4)
        for depth in range(1, trace.tree.depth + 1)
        if (trace.left >= depth).any()
    ]


def show_trace(trace: Trace, console: Console | None = None) -> None:
    """Print what a trace holds."""
    console = console or terminal()
    facts = describe(trace)
    meta, prompts = facts["meta"], ""
    if trace.prompt_tokens is not None:
        prompts = f" after prompts of {trace.prompt_tokens.min()} to {trace.prompt_tokens.max()}"
    console.print(
        f"{facts['anchors']} anchors of {facts['requests']} requests "
        f"({facts['tokens_a_request']['min']} to {facts['tokens_a_request']['max']} tokens{prompts}), "
        f"depth {facts['depth']}, width {facts['width']}"
        + (f", {facts['domains']} domains" if facts["domains"] else "")
    )
    how = {"": look(meta, "verification"), "temperature ": look(meta, "temperature"), "seed ": look(meta, "seed")}
    if look(meta, "imported") is not None:
        how = {name: value for name, value in how.items() if value is not None}
    settings = ", ".join(f"{name}{_shown(value)}" for name, value in how.items())
    console.print(f"{models_told(meta)}{settings and '; '}{settings}", soft_wrap=True, markup=False)
    written, given = (look(meta, "repeated_4grams", part) for part in ("written", "prompts"))
    if isinstance(written, float) and isinstance(given, float):
        console.print(
            f"repeated 4-grams: {written:.1%} of what the target wrote, {given:.1%} of the prompts",
            soft_wrap=True,
        )
    true = "true" if trace.tree is None else "written"
    console.print(f"{true} token among the drafter's best, over all positions (tau needs a replay):")
    table = Table()
    table.add_column("depth")
    for top in TOPS:
        table.add_column(f"top {top}", justify="right")
    kept = facts.get("kept_by_depth", [])
    if kept:
        table.add_column(f"kept by the recorded tree of {len(meta['tree'])}", justify="right")
    for depth, shares in enumerate(facts["top_1_2_4_8_by_depth"], 1):
        shown = [*shares, *([kept[depth - 1] if depth <= len(kept) else None] if kept else [])]
        table.add_row(str(depth), *("" if share is None else f"{share:.3f}" for share in shown))
    console.print(table)
