"""Read the values that Python assigns to names or passes to calls; nothing is run, and only literals are read."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from treeopt.errors import TreeError
from treeopt.tree_files.value_names import Names, numbered, related

MADE_OF = ("array", "asarray", "tensor", "list", "tuple", "str", "dumps")  # calls that hold the value they are given
CHANGES = ("append", "extend", "insert", "remove", "pop", "clear", "update")  # methods that change what they belong to
SYNTAX = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
Assigned = tuple[str, Any, int]  # name, value, line


def literal(text: str) -> Any:
    """Return the value of a Python literal; a string within it is not read.

    Raises:
        TreeError: the text is no literal.
    """
    try:
        return _literal(ast.parse(text.strip(), mode="eval").body)
    except SYNTAX as error:
        raise TreeError(f"not a literal such as [[0], [0, 0]]: {first_line(error)}") from error


def _literal(value: ast.expr) -> Any:
    """Return the value of a literal; ValueError if it is none, or a dictionary gives a key several values."""
    for part in ast.walk(value):
        pairs = zip(part.keys, part.values, strict=True) if isinstance(part, ast.Dict) else ()
        items = {(ast.dump(key), ast.dump(held)) for key, held in pairs if key is not None}
        if len({key for key, _ in items}) < len(items):
            raise ValueError("a key has several values: leave one")
    return ast.literal_eval(value)


def values_of_python(text: str) -> Any:
    """Return the literals that Python assigns to names, or the single literal that it consists of.

    Without any such name at the top, assignments within functions and arguments of calls are read too.

    Raises:
        TreeError: the text is not Python, or a single expression that is no literal.
    """
    module = _parsed(text)
    if len(module.body) == 1 and isinstance(module.body[0], ast.Expr):
        try:
            return literal(text)
        except TreeError:
            if not isinstance(module.body[0].value, ast.Call):
                raise
        if (given := _given(module.body[0].value)) is not module.body[0].value:
            try:
                return _literal(given)
            except SYNTAX as error:
                raise TreeError(f"not a literal such as [[0], [0, 0]]: {first_line(error)}") from error
    try:
        return _values(module)
    except RecursionError as error:
        raise TreeError("not read: Python nested too deep") from error


def is_python(text: str) -> bool:
    """Return True for text that is Python, but for a single string, which may hold anything."""
    try:
        body = _parsed(text).body
    except TreeError:
        return False
    alone = body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None
    return bool(body) and not isinstance(alone, ast.Constant)


def computed(text: str) -> str | None:
    """Return the place where Python computes a list from others; None if there is none.

    >>> computed("mc = [[0]] + [[1]]"), computed("limit = 3")
    ('line 1 computes mc', None)
    """
    try:
        body = _parsed(text).body
    except TreeError:
        return None
    for node in body:
        value = getattr(node, "value", None)
        if not isinstance(value, ast.BinOp | ast.BoolOp | ast.IfExp | ast.ListComp | ast.GeneratorExp | ast.Tuple):
            continue
        if not isinstance(node, ast.Expr) and any(isinstance(part, ast.List | ast.Tuple) for part in ast.walk(value)):
            names = [_chain(target) for target in getattr(node, "targets", [getattr(node, "target", None)])]
            return f"line {node.lineno} computes {next(iter(filter(None, names)), 'a list')}"
        if isinstance(node, ast.Expr) and isinstance(value, ast.BinOp):
            return f"line {node.lineno} computes a list"
    return None


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text.removeprefix("\ufeff"))
    except SYNTAX as error:
        raise TreeError(f"not Python: {first_line(error)}") from error


def _values(module: ast.Module) -> Names:
    """Return the literals by name, and which of them are changed later."""
    top = list(_assigned(module.body))
    sections = any(isinstance(node, ast.Expr) and _is_section(node.value) for node in module.body)  # of TOML
    pairs = [(name, value) for name, value, _ in top]
    values = numbered(pairs) if sections else Names(pairs)
    lists = [
        ("value", ast.literal_eval(node.value))
        for node in module.body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.List | ast.Tuple) and _is_literal(node.value)
    ]
    values.update(numbered(lists))
    if any(isinstance(value, list | tuple | str | Mapping) for value in values.values()):
        return Names(values, _changed(module.body))
    within = list(_assigned(ast.walk(module)))
    lines = {name: line for name, _, line in within}
    chains = [chain for node in ast.walk(module) for chain in _altered(node)]
    changed = {chain: line for chain in chains for name, line in lines.items() if related(chain, name)}
    return Names(values | numbered((name, value) for name, value, _ in within), changed)


def _is_section(value: ast.expr) -> bool:
    return isinstance(value, ast.List) and len(value.elts) == 1 and not _is_literal(value)


def _is_literal(value: ast.expr) -> bool:
    try:
        ast.literal_eval(value)
    except SYNTAX:
        return False
    return True


def _assigned(nodes: Any) -> Iterator[Assigned]:
    for node in nodes:
        targets: Sequence[ast.expr] = []
        value: ast.expr | None = None
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign):
            targets, value = [node.target], node.value
        elif isinstance(node, ast.keyword) and node.arg is not None:
            targets, value = [ast.Name(node.arg)], node.value
        elif isinstance(node, ast.Call) and _name(node.func) not in (*MADE_OF, *CHANGES):
            lists = [held for held in node.args if isinstance(held, ast.List)]
            targets, value = [node.func], lists[0] if lists else None
        names = [name for name in map(_name, targets) if name is not None]
        if value is None or not names:
            continue
        try:
            held = _literal(_given(value))
        except SYNTAX:
            continue
        yield from ((name, held, node.lineno) for name in names)


def _changed(body: Sequence[ast.stmt]) -> dict[str, int]:
    """Return the lines of assignments by the dotted names of what later statements change."""
    lines: dict[str, int] = {}
    changed: dict[str, int] = {}
    for node in body:
        assigned = {name: line for name, _, line in _assigned([node])}
        if assigned:
            lines |= assigned
            changed = {chain: line for chain, line in changed.items() if not any(related(chain, n) for n in assigned)}
            continue
        for chain in _changes(node):
            assigned_at = [line for name, line in lines.items() if related(chain, name)]
            if assigned_at:
                changed[chain] = assigned_at[-1]
    return changed


def _changes(node: ast.AST) -> Iterator[str]:
    """Yield the dotted names of what a statement changes or assigns, but for the names of a function's own."""
    yield from _altered(node)
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from filter(None, map(_chain, targets))
    own = _own_names(node) if isinstance(node, SCOPES) else set()
    for part in ast.iter_child_nodes(node):
        yield from (chain for chain in _changes(part) if chain.split(".")[0] not in own)


def _own_names(scope: ast.AST) -> set[str]:
    parts = list(ast.walk(scope))
    names = {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    names |= {part.arg for part in parts if isinstance(part, ast.arg)}
    return names - {name for part in parts if isinstance(part, ast.Global) for name in part.names}


def _altered(node: ast.AST) -> Iterator[str]:
    """Yield the dotted names of values of which a statement or a call changes a part."""
    targets: Sequence[ast.expr] = []
    if isinstance(node, ast.AugAssign):
        targets = [node.target]
    elif isinstance(node, ast.Delete):
        targets = node.targets
    elif isinstance(node, ast.Assign):
        targets = [held for held in node.targets if isinstance(held, ast.Subscript) and _name(held) is None]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
        targets = [node.func.value]
    yield from filter(None, map(_chain, targets))


def _chain(target: Any) -> str | None:
    """Return `config.choices` of `config["choices"][0]`: the names up to the first place in a list."""
    if isinstance(target, ast.Name):
        return target.id
    if not isinstance(target, ast.Attribute | ast.Subscript):
        return None
    before, last = _chain(target.value), _name(target)
    return before if last is None or before is None else f"{before}.{last}"


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


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without addresses."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r"malformed node or string.*<ast\.(\w+) object.*", r"\1 is not one", line)[:120]
