"""Read the value that a text spells: JSON, a Python literal, assignments, calls, options, commands, C++ or YAML.

Nothing is run: Python is parsed, and only its literals are read. YAML needs PyYAML and is read by its safe loader.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from treeopt.errors import TreeError
from treeopt.tree_files.python_values import computed, first_line, is_python, literal, values_of_python
from treeopt.tree_files.value_names import numbered

YAML_LIMIT = 2**20  # most characters: PyYAML reads about 1 MB in some seconds
COMMAND_LIMIT = 2**16  # most characters of a command line
NESTED = 200  # levels of brackets: PyYAML's time grows with their square
OPTION = re.compile(r"\s*--?([A-Za-z_][\w.-]*)(?:\s*=\s*|\s+)(.+)", re.DOTALL)
NAME = re.compile(r"[A-Za-z_][\w.]{0,99}")  # of an option or a variable
# Around pasted text: fences of Markdown, prompts of Python and shells, signs of a diff; quotes of word processors.
PASTED = re.compile(r"^(?:[ \t]*```\w*[ \t]*$|(?:>>>|\.\.\.|[$>+]) *)", re.MULTILINE)
QUOTES = str.maketrans({"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\u00a0": " "})
BRACES = re.compile(r"(?:[\w:<>\s.]*=)?\s*(\{[\d{},\s]*\})\s*;?\s*")
EMPTY: tuple[Any, ...] = ([], (), "[]", "()")  # the list of no paths, and texts of it
# Triton's configuration of TensorRT-LLM, and its fill_template: a name, and its choices in braces as a string.
TRITON = re.compile(
    r'''\b(\w{1,99})"?\s*(?::|value:\s*\{\s*string_value:)\s*"((?:\{[\d,\s]+\}[,\s]*)+)"''',
)


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
    first = {".json": _json, ".py": values_of_python, ".yaml": _yaml, ".yml": _yaml}.get(suffix, literal)
    forms = dict.fromkeys((first, _json, literal, _option, values_of_python, _yaml))
    bare = PASTED.sub("", text).translate(QUOTES).strip()
    tries = [(form, text) for form in forms]
    tries += [(form, bare) for form in forms if bare != text.strip()]
    tries += [(_command, bare)] if not is_python(bare) else []  # a program's lists are not a command's
    tries += [(_braces, bare), (_triton, text)]
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
    if any(value in EMPTY for value in outcomes[:-2]):  # `{}` is no list of C++
        return []
    if (place := computed(bare)) is not None:
        raise TreeError(f"not a literal such as [[0], [0, 0]]: {place}: write the whole list")
    if isinstance(outcomes[0], TreeError):
        raise outcomes[0]
    return outcomes[0]


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
        return json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise TreeError(f"not JSON: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    held = dict(pairs)
    return held if len(held) == len(pairs) else numbered(pairs)


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
    found: list[tuple[str, Any]] = []
    for earlier, before, word in zip(["", "", *words], ["", *words], words, strict=False):
        name, equals, value = word.partition("=")
        if not equals or value[:1] not in ("[", "(", "{"):
            name, value = earlier if before == "=" else before, word
        if value[:1] in ("[", "(", "{"):
            name = name.lstrip("-").rstrip(":").replace("-", "_")
            found.append((name if NAME.fullmatch(name) else "value", _json_or_literal(value)))
    if not found:
        raise TreeError("not a command with a value in brackets")
    return numbered(found)


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
    pairs = TRITON.findall(text) if len(text) <= YAML_LIMIT else []
    found = numbered((name, _braces(choices)) for name, choices in pairs)
    if not found:
        raise TreeError("not names of numbers in braces")
    return found


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
        values = [value for value in yaml.load_all(text, Loader=_loader()) if value is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise TreeError(f"not YAML: {first_line(error)}") from error
    if not values or not all(isinstance(value, Mapping | list) for value in values):
        raise TreeError("not YAML of a mapping or a list")
    if len(values) == 1:
        return values[0]
    return numbered(
        pair for value in values for pair in (value.items() if isinstance(value, Mapping) else [("value", value)])
    )


def _loader() -> Any:
    """Return PyYAML's safe loader, with a number before a key that a mapping repeats."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
            if len(set(names)) == len(names):
                return super().construct_mapping(node, deep=deep)
            return numbered(
                (self.construct_object(key), self.construct_object(held, deep=True)) for key, held in node.value
            )

    return Loader


def _deepest_bracket(text: str) -> int:
    """Return how deep brackets are nested, those within strings and comments counted too."""
    deepest = level = 0
    for bracket in re.findall(r"[\[{\]}]", text):
        level = level + 1 if bracket in "[{" else max(level - 1, 0)
        deepest = max(deepest, level)
    return deepest
