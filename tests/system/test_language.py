"""The words that users read: docstrings and help texts open with a verb or a noun, and the glossary is kept."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from treeopt.cli import main

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [path for package in ("treeopt", "simulate", "executor") for path in sorted((ROOT / package).rglob("*.py"))]
PROSE = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]

OPENERS = re.compile(r"(Of|What|Whether|Those|As|So many|So few|So much)\b")
# Words that made sentences hard to read -> the word that the glossary has for them.
FORBIDDEN = {
    r"drawn anew|draws? anew|anew": "dynamic, or again",
    r"(go|goes|going|gone|went) on with": "resume",
    r"\btold\b|\btells of\b": "recorded, known, stated",
    r"\bso (many|few|much)\b": "the number's name",
    r"(tokens|steps|requests) a (second|step|request)": "per",
    r"\bnobody\b": "the actor",
    r"\bways? (of decoding|to decode)\b": "configuration",
    r"\blikewise\b": "the thing itself",
    r"\b(is|are) of (a|the|rules?|polic(y|ies)|trees|those|that)\b": "applies to, belongs to",
}


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def shown(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every string of more than one word that is no docstring; parts of an f-string are joined with `{}`."""
    documented = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    joined = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented | joined:
            text = node.value
        else:
            continue
        if " " in text.strip():
            yield node.lineno, text


def misused(text: str) -> list[str]:
    prose = re.sub(r"`[^`]*`", "", text)  # names of code and of fields stay
    return [f"{hit.group(0)!r} (say: {word})" for form, word in FORBIDDEN.items() if (hit := re.search(form, prose))]


def commands(group: click.Group, *words: str) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        yield " ".join((*words, name)), command
        if isinstance(command, click.Group):
            yield from commands(command, *words, name)


@pytest.mark.parametrize("package", ["treeopt", "simulate", "executor"])
def test_docstrings_open_with_a_verb_or_a_noun(package):
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in SOURCES
        if path.relative_to(ROOT).parts[0] == package
        for line, text in docstrings(ast.parse(path.read_text("utf-8")))
        if OPENERS.match(text)
    ]
    assert wrong == [], "\n".join(wrong)


def test_messages_open_with_a_verb_or_a_noun():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in SOURCES
        for line, text in shown(ast.parse(path.read_text("utf-8")))
        if OPENERS.match(text)
    ]
    assert wrong == [], "\n".join(wrong)


def test_help_texts_open_with_a_verb_or_a_noun():
    wrong = []
    for name, command in commands(main):
        texts = [command.help or "", *(getattr(option, "help", None) or "" for option in command.params)]
        wrong += [f"{name}: {text}" for text in texts if OPENERS.match(text)]
    assert wrong == [], "\n".join(wrong)


@pytest.mark.parametrize("package", ["treeopt", "simulate", "executor"])
def test_the_glossary_is_kept_in_what_users_read(package):
    wrong = []
    for path in SOURCES:
        if path.relative_to(ROOT).parts[0] == package:
            tree = ast.parse(path.read_text("utf-8"))
            for line, text in (*docstrings(tree), *shown(tree)):
                wrong += [f"{path.relative_to(ROOT)}:{line}: {word}" for word in misused(text)]
    assert wrong == [], "\n".join(wrong)


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.name)
def test_the_glossary_is_kept_in_prose(path):
    text = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
    wrong = [f"line {number}: {word}" for number, line in enumerate(text.splitlines(), 1) for word in misused(line)]
    assert wrong == [], "\n".join(wrong)


def test_a_misused_word_is_noticed():
    """The tests above can fail."""
    assert misused("trees that are drawn anew") == ["'drawn anew' (say: dynamic, or again)"]
    assert misused("tokens a second") != []
    assert misused("tokens per second") == []
    assert OPENERS.match("Of the page.")
    assert not OPENERS.match("Offset of the first candidate.")
    assert [text for _, text in shown(ast.parse('f"so {1} many words"'))] == ["so {} many words"]
