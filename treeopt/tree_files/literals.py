"""Read the value that a text spells: JSON, a Python literal, assignments, calls, options, commands, C++ or YAML.

Nothing is run: Python is parsed, and only its literals are read. YAML needs PyYAML and is read by its safe loader.
"""

import ast
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from treeopt.errors import TreeError

YAML_LIMIT = 2**20  # most characters: PyYAML reads about 1 MB in some seconds
COMMAND_LIMIT = 2**16  # most characters of a command line
NESTED = 200  # levels of brackets: PyYAML's time grows with their square
OPTION = re.compile(r"\s*--?([A-Za-z_][\w.-]*)(?:\s*=\s*|\s+)(.+)", re.DOTALL)
NAME = re.compile(r"[A-Za-z_][\w.]{0,99}")  # of an option or a variable
# Around pasted text: fences of Markdown, prompts of Python and shells, signs of a diff; quotes of word processors.
PASTED = re.compile(r"^(?:[ \t]*```\w*[ \t]*$|(?:>>>|\.\.\.|[$>+]) *)", re.MULTILINE)
QUOTES = str.maketrans({"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\u00a0": " "})
MADE_OF = ("array", "asarray", "tensor", "list", "tuple", "str", "dumps")  # calls that hold the value they are given
BRACES = re.compile(r"(?:[\w:<>\s.]*=)?\s*(\{[\d{},\s]*\})\s*;?\s*")
# Triton's configuration of TensorRT-LLM, and its fill_template: a name, and its choices in braces as a string.
TRITON = re.compile(
    r'''\b(\w{1,99})"?\s*(?::|value:\s*\{\s*string_value:)\s*"((?:\{[\d,\s]+\}[,\s]*)+)"''',
)
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
    forms = dict.fromkeys((first, _json, literal, _option, _python, _yaml))
    bare = PASTED.sub("", text).translate(QUOTES).strip()
    tries = [(form, text) for form in forms]
    tries += [(form, bare) for form in forms if bare != text.strip()] + [
        (_command, bare),
        (_braces, bare),
        (_triton, text),
    ]
    outcomes: list[Any] = []
    for form, spelling in tries:
        try:
            value = form(spelling)
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
    return {name: _json_or_literal(rest)}


def _json_or_literal(text: str) -> Any:
    try:
        return _json(text)
    except TreeError:
        return literal(text)


def _command(text: str) -> dict[str, Any]:
    """Return the values of a command's options and variables that are JSON or literals in brackets.

    Raises:
        TreeError: the text is no command with such a value.
    """
    if len(text) > COMMAND_LIMIT:
        raise TreeError(f"not read: a command of more than {COMMAND_LIMIT} characters")
    try:
        words = shlex.split(text.replace("\\\r\n", " "))
    except ValueError as error:
        raise TreeError(f"not a command: {error}") from error
    found: dict[str, Any] = {}
    for before, word in zip(["", *words], words, strict=False):
        name, equals, value = word.partition("=")
        name, value = (name, value) if equals and value[:1] in ("[", "(", "{") else (before, word)
        if value[:1] in ("[", "(", "{"):
            name = name.lstrip("-").replace("-", "_")
            found[name if NAME.fullmatch(name) else "value"] = _json_or_literal(value)
    if not found:
        raise TreeError("not a command with a value in brackets")
    return found


def _braces(text: str) -> Any:
    """Return the lists of C++, `{{0}, {1}, {0, 0}}`.

    Raises:
        TreeError: the text is none.
    """
    match = BRACES.fullmatch(text.strip("\"'")) if len(text) <= YAML_LIMIT else None
    if match is None:
        raise TreeError("not numbers in braces")
    return literal(match.group(1).replace("{", "[").replace("}", "]"))


def _triton(text: str) -> dict[str, Any]:
    """Return the choices in braces that a text gives names to.

    >>> _triton('parameters: { key: "eagle_choices" value: { string_value: "{0}, {1}, {0, 0}" } }')
    {'eagle_choices': ([0], [1], [0, 0])}

    Raises:
        TreeError: there are none.
    """
    found = {name: _braces(choices) for name, choices in TRITON.findall(text)} if len(text) <= YAML_LIMIT else {}
    if not found:
        raise TreeError("not names of numbers in braces")
    return found


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
        if (given := _given(module.body[0].value)) is not module.body[0].value:
            try:
                return ast.literal_eval(given)
            except SYNTAX as error:
                raise TreeError(f"not a literal such as [[0], [0, 0]]: {_first_line(error)}") from error
    top = dict(_assigned(module.body))
    if any(isinstance(value, list | tuple | str | Mapping) for value in top.values()):
        return top
    return {**top, **dict(_assigned(ast.walk(module)))}


def _assigned(nodes: Any) -> Iterator[tuple[str, Any]]:
    for node in nodes:
        targets: Sequence[ast.expr] = []
        value: ast.expr | None = None
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign):
            targets, value = [node.target], node.value
        elif isinstance(node, ast.keyword) and node.arg is not None:
            targets, value = [ast.Name(node.arg)], node.value
        elif isinstance(node, ast.Call) and _name(node.func) not in MADE_OF:
            lists = [held for held in node.args if isinstance(held, ast.List)]
            targets, value = [node.func], lists[0] if lists else None
        names = [name for name in map(_name, targets) if name is not None]
        if value is None or not names:
            continue
        try:
            held = ast.literal_eval(_given(value))
        except SYNTAX:
            continue
        yield from ((name, held) for name in names)


def _given(value: ast.expr) -> ast.expr:
    """Return what a call such as `np.array([[0], [1]])` is given; any other value as it is."""
    if isinstance(value, ast.Call) and len(value.args) == 1 and _name(value.func) in MADE_OF:
        return value.args[0]
    if isinstance(value, ast.Dict):
        return ast.Dict(value.keys, [_given(held) for held in value.values])
    return value


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
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r"malformed node or string.*<ast\.(\w+) object.*", r"\1 is not one", line)[:120]
