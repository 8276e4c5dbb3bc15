"""The answers of a plan: the choice for each batch size, why a slower line was preferred, and what to run next."""

import shlex
from typing import Any

from treeopt.engines import ENGINES
from treeopt.engines.drafting_methods import (
    METHODS,
    OPTIONAL,
    WITHOUT_DEFAULT,
    engines_for,
    fitting_methods,
    needs_model,
)
from treeopt.plans.plan import Choice, Plan, PlanEntry
from treeopt.results.blocks import Line
from treeopt.results.words import interval, shape_words, shown
from treeopt.storage.provenance import look


def answer(entry: PlanEntry) -> str:
    """Return the choice for a batch size and its speed in one sentence."""
    choice, rate = entry.choice, f"{entry.choice.tokens_s(entry.batch):,.0f} tokens/s"
    if choice.plain:
        return f"Batch {entry.batch}: do not speculate: no tree or chain tried is predicted to be faster; {rate}."
    unsure = ", a difference within the noise" if choice.speedup.low <= 1 <= choice.speedup.high else ""
    speedup = f"{interval(choice.speedup)} times plain decoding{unsure}"
    return f"Batch {entry.batch}: {describe_choice(choice)}, {speedup}, {rate}."


def near_rule(plan: Plan) -> list[str]:
    """Return why a slower line was preferred, for each batch size where the rule of `near` bound."""
    faster, near = look(plan.meta, "search", "faster") or {}, look(plan.meta, "search", "near")
    lines = []
    for entry in plan.entries:
        best = faster.get(str(entry.batch))
        if best is not None and entry.choice.grown is None:
            same = best["nodes"] == entry.choice.nodes
            kind = "chain" if best["nodes"] == best["depth"] else "tree"
            other = f"{'another' if same else 'a'} {kind} of {best['nodes']:.0f}"
            lines.append(
                f"Batch {entry.batch}: {other} was {best['gain']:.1%} faster on the requests that trees were chosen "
                f"on; within {near:.0%}, where intervals overlap, the {'shallower' if same else 'smallest'} is "
                "preferred (--near)."
            )
    return lines


def faster_lines(plan: Plan) -> list[str]:
    """Return the line that is faster than the choice where no rule explains it: choices are made on other requests."""
    if look(plan.meta, "search", "rules") or look(plan.meta, "search", "objective") not in (None, "throughput"):
        return []
    explained, lines = look(plan.meta, "search", "faster") or {}, []
    for entry in plan.entries:
        running = [choice for choice in entry.compared if choice.grown is None or choice.grown.policy is not None]
        best = max(running, key=lambda choice: choice.tokens_s(entry.batch), default=entry.choice)
        gain = best.tokens_s(entry.batch) / entry.choice.tokens_s(entry.batch) - 1
        if gain > 0 and str(entry.batch) not in explained:
            lines.append(
                f"Batch {entry.batch}: {best.name} is {gain:.1%} faster on the requests held out; the choice was made "
                "on the others, which keeps its prediction fair."
            )
    return lines


def describe_choice(choice: Choice) -> str:
    """Return a configuration in words, such as `a chain of 3`."""
    if choice.grown is not None:
        return f"a dynamic tree ({choice.grown.kind}) of {choice.nodes:.3g} nodes on average"
    if choice.tree is None:
        return "no speculation"
    return f"a {shape_words(choice.tree.nodes, choice.tree.depth)}"


def preferred(plan: Plan, entry: PlanEntry) -> str:
    """Return the batch size that the objective prefers, with its speed, in one sentence."""
    objective, ceiling = (look(plan.meta, "search", key) for key in ("objective", "max_tpot_s"))
    most = "Most tokens per second" if objective == "throughput" else f"Best for {shown(objective)}"
    below = f" below {ceiling * 1e3:g} ms per token" if ceiling else ""
    return (
        f"{most}{below}: batch {entry.batch}, {entry.batch / entry.tpot_s:,.0f} tokens/s, "
        f"{entry.tpot_s * 1e3:.2f} ms per token and sequence."
    )


def next_lines(plan: Plan, file: str | None) -> list[Line]:
    """Return what to do with a plan that speculates: export it to its engine, or check it where no engine is known."""
    if all(entry.choice.plain for entry in plan.entries):
        return []
    keep = "" if file else "keep the plan with --output plan.json, and "
    engine = look(plan.meta, "search", "engine")
    if isinstance(engine, str) and engine in ENGINES:
        kind = look(plan.meta, "trace", "drafter", "kind")
        way = f"Next: {keep}write the configuration of {engine}{method_advice(engine, kind=kind)}:"
        return [Line("next", way, export_command(file, engine, kind=kind))]
    path = shlex.quote(file or "plan.json")
    command = f"treeopt validate --plan {path} --target TARGET --drafter DRAFTER --prompts PROMPTS"
    return [Line("next", f"Next: {keep}check it on your machine:", command)]


def unanswered_lines(plan: Plan) -> list[Line]:
    """Return which batch sizes have no answer, and what prices them."""
    outside = look(plan.meta, "search", "outside")
    if outside is None:
        return []
    way, command = str(outside["way"]), str(outside["command"])
    return [Line("next", f"No answer: {way}{':' if command else '.'}", command)]


def export_command(file: str | None, engine: str | None = None, *, kind: Any = None) -> str:
    """Return the command that writes a plan for an engine; words in capitals are for the user to replace.

    Args:
        file: the file of the plan.
        engine: a key of `treeopt.engines.ENGINES`; None where it is not known.
        kind: the kind of drafter, for which the engine may have a method.

    >>> export_command("my plan.json", "vllm", kind="eagle")
    "treeopt export 'my plan.json' --format vllm --method eagle --model DRAFTER"
    >>> export_command("plan.json", "openvino", kind="eagle3")
    'treeopt export plan.json --format openvino'
    """
    command = f"treeopt export {shlex.quote(file or 'plan.json')} --format {engine or 'ENGINE'}"
    if engine is None or engine not in METHODS:
        return command
    fitting = fitting_methods(engine, kind)
    if fitting and engine not in WITHOUT_DEFAULT:
        return command
    method = fitting[0] if fitting else None if engine in OPTIONAL else "METHOD"
    model = " --model DRAFTER" if needs_model(engine, method) else ""
    return f"{command}{'' if method is None else f' --method {method}'}{model}"


def method_advice(engine: str | None, *, kind: Any = None) -> str:
    """Return what to choose an engine's method of drafting from, as a clause; empty where the command names it.

    >>> method_advice("openvino", kind="medusa")
    ', which runs no medusa drafter (medusa does); METHOD is one of draft-model, eagle3, prompt-lookup'
    >>> method_advice("openvino", kind="eagle3")
    ''
    """
    if engine is None or engine not in METHODS or fitting_methods(engine, kind):
        return ""
    others = engines_for(kind)
    able = f" ({', '.join(others)} {'does' if len(others) == 1 else 'do'})" if others else ""
    named = {"ngram": "n-gram-count"}.get(kind, kind)  # engines call prompt lookup ngram
    unfit = "" if kind is None else f", which runs no {named} drafter{able}"
    choice = "" if engine in OPTIONAL else f"; METHOD is one of {', '.join(METHODS[engine])}"
    return f"{unfit}{choice}"
