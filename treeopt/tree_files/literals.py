"""Read the value that a text spells: JSON, a Python literal, Python assignments and calls, options, or YAML.

Nothing is run: Python is parsed, and only its literals are read. YAML needs PyYAML and is read by its safe loader.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from treeopt.errors import TreeError

YAML_LIMIT = 2**20  # most characters: PyYAML reads about 1 MB in some seconds
NESTED = 200  # levels of brackets: PyYAML's time grows with their square
OPTION = re.compile(r"\s*--?([A-Za-z_][\w.-]*)(?:\s*=\s*|\s+)(.+)", re.DOTALL)
SYNTAX = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError)


def value_in_text(text: str, suffix: str = "", *, fits: Callable[[Any], bool] = lambda value: True) -> Any:
    """Return the value that a text spells, named values as a mapping.

    The form that the suffix names is tried first, then all others, because people paste what they have.

    >>> value_in_text("[(0,), (0, 0)]") == value_in_text("mc = [(0,), (0, 0)]")["mc"]
    True
    >>> value_in_text("--medusa_choices=[[0], [0, 0]]")
    {'medusa_choices': [[0], [0, 0]]}

    Args:
        text: any text.
        suffix: of the file that holds it, such as ".json"; empty if there is none.
        fits: tells wanted values: a text may be read in several forms, of which one is meant.

    Raises:
        TreeError: no form fits, and the first cannot be read at all; says why.
    """
    first = {".json": _json, ".py": _python, ".yaml": _yaml, ".yml": _yaml}.get(suffix, literal)
    outcomes: list[Any] = []
    for form in dict.fromkeys((first, _json, literal, _option, _python, _yaml)):
        try:
            value = form(text)
        except TreeError as error:
            outcomes.append(error)
            continue
        if fits(value):
            return value
        outcomes.append(value)
    if isinstance(outcomes[0], TreeError):
        raise outcomes[0]
    return outcomes[0]


def literal(text: str) -> Any:
    """Return the value of a Python literal; a string within it is not read.

    Raises:
        TreeError: the text is no literal.
    """
    try:
        return ast.literal_eval(text.strip())
    except SYNTAX as error:
        raise TreeError(f"not a literal such as [[0], [0, 0]]: {_first_line(error)}") from error


def named_values(value: Any, *, like: Callable[[Any], bool], deepest: int = 16) -> dict[str, Any]:
    """Return the values in nested mappings and lists that look as wanted, by dotted names.

    >>> named_values({"a": {"b": [3, {"c": 4}]}}, like=lambda item: item in (3, 4))
    {'a.b[0]': 3, 'a.b[1].c': 4}

    Args:
        value: mapping or list; a string in it that holds a JSON object is read as that.
        like: tells wanted values; what is within them is not looked at.
        deepest: levels that are looked at.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()  # YAML can name one value many times

    def look(item: Any, name: str, level: int) -> None:
        if name and like(item):
            found[name] = item
            return
        if isinstance(item, str) and item.lstrip().startswith("{"):
            try:
                item = _json(item)
            except TreeError:
                return
        if level == deepest or id(item) in seen:
            return
        if isinstance(item, Mapping):
            seen.add(id(item))
            for key, inner in item.items():
                if isinstance(key, str):
                    look(inner, f"{name}.{key}" if name else key, level + 1)
        elif isinstance(item, list | tuple):
            seen.add(id(item))
            for number, inner in enumerate(item):
                look(inner, f"{name}[{number}]", level + 1)

    look(value, "", 0)
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TreeError(f"not JSON: {error}") from error


def _option(text: str) -> dict[str, Any]:
    """Return the value of an option as it is typed, `--medusa_choices="[[0]]"` or `-sc '{...}'`.

    Raises:
        TreeError: the text does not begin with an option that holds a value.
    """
    match = OPTION.fullmatch(text)
    if match is None:
        raise TreeError("not an option with a value")
    name, rest = match.group(1).replace("-", "_"), match.group(2).strip()
    if len(rest) > 1 and rest[0] == rest[-1] and rest[0] in "'\"":
        rest = rest[1:-1]
    try:
        return {name: _json(rest)}
    except TreeError:
        return {name: literal(rest)}


def _python(text: str) -> Any:
    """Return the literals that Python assigns to names, or the single literal that it consists of.

    Without any such name at the top, assignments within functions and arguments of calls are read too.
    """
    try:
        module = ast.parse(text.removeprefix("\ufeff"))
    except SYNTAX as error:
        raise TreeError(f"not Python: {_first_line(error)}") from error
    if len(module.body) == 1 and isinstance(module.body[0], ast.Expr):
        try:
            return literal(text)
        except TreeError:
            if not isinstance(module.body[0].value, ast.Call):
                raise
    top = dict(_assigned(module.body))
    if any(isinstance(value, list | tuple | str | Mapping) for value in top.values()):
        return top
    return {**top, **dict(_assigned(ast.walk(module)))}


def _assigned(nodes: Any) -> Iterator[tuple[str, Any]]:
    for node in nodes:
        targets: list[ast.expr] = []
        value: ast.expr | None = None
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign):
            targets, value = [node.target], node.value
        elif isinstance(node, ast.keyword) and node.arg is not None:
            targets, value = [ast.Name(node.arg)], node.value
        names = [name for name in map(_name, targets) if name is not None]
        if value is None or not names:
            continue
        try:
            held = ast.literal_eval(value)
        except SYNTAX:
            continue
        yield from ((name, held) for name in names)


def _name(target: ast.expr) -> str | None:
    """Return the last name of `choices`, `config.choices` or `config["choices"]`."""
    if isinstance(target, ast.Name):
        return target.id
    if isinstance(target, ast.Attribute):
        return target.attr
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return target.slice.value if isinstance(target.slice.value, str) else None
    return None


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise TreeError("not read: YAML needs PyYAML, pip install 'treeopt[yaml]'") from error
    if len(text) > YAML_LIMIT:
        raise TreeError(f"not read: YAML of more than {YAML_LIMIT} characters")
    if _deepest_bracket(text) > NESTED:
        raise TreeError(f"not read: YAML with brackets nested more than {NESTED} deep")
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise TreeError(f"not YAML: {_first_line(error)}") from error
    if not isinstance(value, Mapping | list):
        raise TreeError("not YAML of a mapping or a list")
    return value


def _deepest_bracket(text: str) -> int:
    """Return how deep brackets are nested, those within strings and comments counted too."""
    deepest = level = 0
    for bracket in re.findall(r"[\[{\]}]", text):
        level = level + 1 if bracket in "[{" else max(level - 1, 0)
        deepest = max(deepest, level)
    return deepest


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
