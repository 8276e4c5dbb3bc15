"""The next command after a plan, which writes it for an engine, and the advice on its method of drafting."""

import shlex
from typing import Any

from treeopt.engines import ENGINES


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
    entry = None if engine is None else ENGINES[engine]
    if entry is None or not entry.choices:
        return command
    fitting = entry.fitting(kind)
    if fitting and entry.default_method == "drafter":
        return command
    method = fitting[0] if fitting else None if entry.default_method == "optional" else "METHOD"
    model = " --model DRAFTER" if entry.needs_model(method) else ""
    return f"{command}{'' if method is None else f' --method {method}'}{model}"


def method_advice(engine: str | None, *, kind: Any = None) -> str:
    """Return what to choose an engine's method of drafting from, as a clause; empty where the command names it.

    >>> method_advice("openvino", kind="medusa")
    ', which runs no medusa drafter (medusa does); METHOD is one of draft-model, eagle3, dflash, prompt-lookup'
    >>> method_advice("openvino", kind="eagle3")
    ''
    """
    entry = None if engine is None else ENGINES[engine]
    if entry is None or not entry.choices or entry.fitting(kind):
        return ""
    others = ENGINES.running(kind)
    able = f" ({', '.join(others)} {'does' if len(others) == 1 else 'do'})" if others else ""
    named = {"ngram": "n-gram-count"}.get(kind, kind)  # engines call prompt lookup ngram
    unfit = "" if kind is None else f", which runs no {named} drafter{able}"
    choice = "" if entry.default_method == "optional" else f"; METHOD is one of {', '.join(entry.choices)}"
    return f"{unfit}{choice}"
