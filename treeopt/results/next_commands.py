"""The command that writes a plan for an engine, as results name it."""

import shlex
from typing import Any

from treeopt.engines.drafting_methods import (
    METHODS,
    OPTIONAL,
    WITHOUT_DEFAULT,
    engines_for,
    fitting_methods,
    needs_model,
)


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
