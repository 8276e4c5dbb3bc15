"""Registries of kinds: entries of a folder, of other packages, and those added for a while."""

import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

from treeopt import registry
from treeopt.errors import UsageError
from treeopt.registry import Registry


@dataclass(frozen=True)
class Colour:
    name: str


@pytest.fixture
def colours(tmp_path, monkeypatch) -> Registry[Colour]:
    folder = tmp_path / "colours"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "helper.py").write_text("")
    (folder / "red.py").write_text("from collections import namedtuple\nENTRY = namedtuple('C', 'name')('red')\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield Registry("colour", "colours", group="treeopt.colours")
    for name in [name for name in sys.modules if name.partition(".")[0] == "colours"]:
        del sys.modules[name]


def test_entries_are_the_modules_of_a_folder_that_define_one(colours):
    assert list(colours) == ["red"]
    assert colours["red"].name == "red"


def test_an_entry_is_added_and_removed_again(colours):
    with colours.registered(Colour("blue")):
        assert list(colours) == ["blue", "red"]
    assert list(colours) == ["red"]


def test_entry_points_are_scanned_only_for_a_name_that_is_not_known(colours, monkeypatch):
    scans = []

    def points(group):
        scans.append(group)
        return [EntryPoint("green", "green_colours:ENTRY", group)]

    monkeypatch.setattr(registry, "entry_points", points)
    monkeypatch.setattr(EntryPoint, "load", lambda self: Colour(self.name))
    assert "red" in colours
    assert scans == []
    assert colours["green"] == Colour("green")
    assert scans == ["treeopt.colours"]


def test_an_unknown_name_is_refused_with_the_names_that_are_known(colours):
    with pytest.raises(UsageError, match=r"^colour must be one of red; got 'mauve'$"):
        colours["mauve"]


@pytest.mark.parametrize("value", ["absent_module:ENTRY", "math:nope", "math:pi"])
def test_a_broken_entry_point_is_one_line_and_only_where_its_name_is_asked_for(colours, monkeypatch, value):
    points = [EntryPoint("grue", value, "treeopt.colours")]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    with pytest.raises(UsageError, match=rf"^colour grue: {value}, an entry point of treeopt.colours, .*; repair .*"):
        colours["grue"]
    with pytest.raises(UsageError, match=r"^colour must be one of red; got 'mauve'$"):
        colours["mauve"]
