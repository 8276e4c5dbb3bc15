"""Read the value that a text spells: JSON, literals and assignments of Python, YAML, or the brackets in any other text.

Nothing is run: Python is parsed, and only its literals are read. YAML needs PyYAML and is read by its safe loader.
"""

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from treeopt.errors import TreeError

LIMIT = 2**20  # most characters of YAML and of text around a bracket: PyYAML reads about 1 MB in some seconds
NESTED = 200  # levels of brackets: PyYAML's time grows with their square
FORMS = "write one such as [[0], [0, 0]], alone, as NAME = [...], or as a value in JSON or YAML"
NOT_READ = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError)
CHANGES = ("append", "extend", "insert", "remove", "pop", "clear", "update")  # methods that change what they belong to
NAMED = re.compile(r"([A-Za-z_][\w.-]{0,99})[\"']?[=:\s]+[\"']?$")  # the name before a bracket
OPERATOR = re.compile(r"\s*(?:[+*/%@]|-\s|(?:or|and|if)\b)")  # after a bracket that is a part of what is computed


class AmbiguousTreeError(TreeError):
    """A text that can be read, and does not say which list is meant."""


class Program(dict[str, Any]):
    """The literals of a Python text by name.

    Attributes:
        changed: names that the program changes or computes.
    """

    changed: frozenset[str] = frozenset()


def value_in_text(text: str, suffix: str = "", *, fits: Callable[[Any], bool] = lambda value: True) -> Any:
    """Return the value that a text spells, named values as a mapping.

    The form that the suffix names is tried first, then the others, because people paste what they have.

    >>> value_in_text("[(0,), (0, 0)]") == value_in_text("mc = [(0,), (0, 0)]")["mc"]
    True
    >>> value_in_text("run --medusa_choices='[[0], [0, 0]]'")
    {'medusa_choices': [[0], [0, 0]]}

    Args:
        text: any text.
        suffix: of the file that holds it, such as ".json"; empty if there is none.
        fits: tells wanted values: a text may be read in several forms, of which one is meant.

    Raises:
        TreeError: no form fits, and the first cannot be read at all; says why.
    """
    first = {".json": _json, ".py": _python, ".yaml": _yaml, ".yml": _yaml}.get(suffix, literal)
    forms = (_json, literal, _python, _yaml, _brackets)
    outcomes: dict[Callable[[str], Any], Any] = {}
    for form in forms if first is _python else dict.fromkeys((first, *forms)):
        try:
            value = form(text)
            value = value_in_text(value, fits=fits) if form is _json and isinstance(value, str) else value
        except AmbiguousTreeError:
            raise
        except TreeError as error:
            outcomes[form] = error
            continue
        if fits(value):
            return value
        outcomes[form] = value
    if any(value in ([], (), "[]", "()") for value in outcomes.values()):
        return []
    if not isinstance(outcomes[first], TreeError):
        return outcomes[first]
    if first is literal and text.lstrip()[:1] not in ("[", "(", "{"):
        raise TreeError(f"not a literal, and no list of rank paths in it: {FORMS}")
    raise outcomes[first]


def literal(text: str) -> Any:
    """Return the value of a Python literal; a string within it is not read.

    Raises:
        TreeError: the text is no literal.
    """
    try:
        return _literal(ast.parse(text.strip(), mode="eval").body)
    except NOT_READ as error:
        raise TreeError(f"not a literal ({_first_line(error)}): {FORMS}") from error


def named_values(value: Any, *, like: Callable[[Any], bool], deepest: int = 16) -> dict[str, Any]:
    """Return the values in nested mappings and lists that look as wanted, by dotted names.

    >>> named_values({"a": {"b": [3, {"c": 4}]}}, like=lambda item: item in (3, 4))
    {'a.b[0]': 3, 'a.b[1].c': 4}

    Args:
        value: mapping or list; a string in it that holds a JSON object is read as that.
        like: tells wanted values; what is within them is not looked at.
        deepest: levels that are looked at.
    """
    wanted: dict[str, Any] = {}
    seen: set[int] = set()  # YAML can name one value many times

    def look(item: Any, name: str, level: int) -> None:
        if name and like(item):
            wanted[name] = item
            return
        if isinstance(item, str) and item.lstrip().startswith("{"):
            try:
                item = _json(item)
            except TreeError:
                return
        if level == deepest or id(item) in seen:
            return
        if isinstance(item, Mapping | list | tuple):
            seen.add(id(item))
        if isinstance(item, Mapping):
            for key, inner in item.items():
                if isinstance(key, str):
                    look(inner, f"{name}.{key}" if name else key, level + 1)
        elif isinstance(item, list | tuple):
            for number, inner in enumerate(item):
                look(inner, f"{name}[{number}]", level + 1)

    look(value, "", 0)
    return wanted


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise TreeError(f"not JSON: {error}") from error


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return values by name; of several lists or objects under one name none is chosen.

    Raises:
        TreeError: names the key.
    """
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values and values[name] != value and (_may_be_a_tree(value) or _may_be_a_tree(values[name])):
            raise AmbiguousTreeError(f"it has several values of {name:.80}: leave one")
        values[name] = value
    return values


def _may_be_a_tree(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip()[:1] in ("[", "(", "{")
    return isinstance(value, dict) or (isinstance(value, list | tuple) and isinstance((*value, 0)[0], list | tuple))


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal; a dictionary gives each key one value."""
    for part in ast.walk(node):
        items = zip(part.keys, part.values, strict=True) if isinstance(part, ast.Dict) else ()
        _once((str(key.value), ast.literal_eval(value)) for key, value in items if isinstance(key, ast.Constant))
    return ast.literal_eval(node)


def _text(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _python(text: str) -> Any:
    """Return the literals that Python assigns to names or passes to calls, wherever they stand."""
    try:
        module = ast.parse(text.removeprefix("\ufeff"))
        pairs = []
        changed: set[str] = set()
        for node in ast.walk(module):
            names, value = _assigned(node)
            if isinstance(value, ast.Call) and value.args:  # such as np.array([[0], [1]])
                value = value.args[0]
            if value is not None:
                try:
                    pairs += [(name, _literal(value)) for name in names[-1:]]
                except NOT_READ:
                    changed |= set(names[-1:]) if isinstance(node, ast.Assign | ast.AnnAssign) else set()
            changed |= set(_changed(node))
    except NOT_READ as error:
        raise TreeError(f"not Python: {_first_line(error)}") from error
    program = Program(_once(pairs))
    program.changed = frozenset(changed)
    return program


def _assigned(node: ast.AST) -> tuple[list[str], ast.expr | None]:
    """Return the names that a statement or an argument gives a value, and the value."""
    if isinstance(node, ast.Assign):
        return _names(node.targets[0]), node.value
    if isinstance(node, ast.AnnAssign):
        return _names(node.target), node.value
    if isinstance(node, ast.keyword) and node.arg is not None:
        return [node.arg], node.value
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not _changed(node.value):
        return _names(node.value.func), node.value
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.List | ast.Tuple):
        return ["value"], node.value
    return [], None


def _changed(node: ast.AST) -> list[str]:
    """Return the names of a value of which a statement or a call changes a part."""
    if isinstance(node, ast.AugAssign):
        return _names(node.target)
    if isinstance(node, ast.Delete):
        return [name for target in node.targets for name in _names(target)]
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript) and not _text(node.targets[0].slice):
        return _names(node.targets[0])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
        return _names(node.func.value)
    return []


def _names(target: ast.expr) -> list[str]:
    """Return `config` and `choices` of `config.choices`, and of `config["choices"]`."""
    if isinstance(target, ast.Name):
        return [target.id]
    if isinstance(target, ast.Attribute):
        return [*_names(target.value), target.attr]
    if isinstance(target, ast.Subscript):
        key = target.slice
        return _names(target.value) + ([str(key.value)] if isinstance(key, ast.Constant) and _text(key) else [])
    return []


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise TreeError("not read: YAML needs PyYAML, pip install 'treeopt[yaml]'") from error
    if len(text) > LIMIT:
        raise TreeError(f"not read: YAML of more than {LIMIT} characters")
    if max((depth for depth, _, _ in _pairs(text)), default=0) > NESTED:
        raise TreeError(f"not read: YAML with brackets nested more than {NESTED} deep")

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [
                (key.value, held) for key, held in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"
            ]
            _once((key, held.value if isinstance(held, yaml.ScalarNode) else [[id(held)]]) for key, held in keys)
            return super().construct_mapping(node, deep=deep)

    try:
        value = Loader(text).get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise TreeError(f"not YAML: {_first_line(error)}") from error
    if not isinstance(value, Mapping | list):
        raise TreeError("not YAML of a mapping or a list")
    return value


def _brackets(text: str) -> dict[str, Any]:
    """Return the lists and objects that stand in a text that is no Python, by the name before each.

    >>> _brackets("medusa: [[0], [1]], and so on")
    {'medusa': [[0], [1]]}
    """
    if len(text) > LIMIT or _is_python(text):
        raise TreeError(f"no list of rank paths was found: {FORMS}")
    pairs = sorted(_pairs(text), key=lambda pair: pair[1])
    if any(depth > NESTED for depth, _, _ in pairs):
        raise TreeError(f"not read: brackets nested more than {NESTED} deep")
    values = []
    end = 0
    for _, start, after in pairs:
        if start < end:
            continue
        spelled = text[start:after]
        try:
            value = _json(spelled) if text[start] == "{" else literal(spelled)
        except TreeError:
            end = end if text[start] == "{" else after  # look within braces that are a program's
            continue
        end = after
        if OPERATOR.match(text, after):
            raise AmbiguousTreeError(f"a list of rank paths is computed: {FORMS}")
        name = NAMED.search(text, max(start - 120, 0), start)
        values.append((name[1].lstrip("-").replace("-", "_") if name else "value", value))
    return _once(pair for pair in values if pair[1])


def _is_python(text: str) -> bool:
    """Return True for text that is Python, but for an option, and a single string, which may hold anything."""
    if text.lstrip().startswith("-"):
        return False
    try:
        body = ast.parse(text.removeprefix("\ufeff")).body
    except NOT_READ:
        return False
    return not (len(body) == 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant))


def _pairs(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield depth, start and end of brackets that close each other; those that nothing closes end with the text."""
    opened: list[int] = []
    for match in re.finditer(r"[\[{(\])}]", text):
        if match[0] in "[{(":
            opened.append(match.start())
        elif opened:
            yield len(opened), opened.pop(), match.end()
    yield from ((depth, start, len(text)) for depth, start in enumerate(opened, 1))


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without addresses."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    line = re.sub(r"malformed node or string.*<ast\.(\w+) object.*", r"\1 is no literal", line)
    return line.replace("<unknown>, ", "")[:120]
