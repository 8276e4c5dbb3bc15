"""Registries of kinds: entries of a folder, of other packages, and those added for a while."""

import sys
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest

from simulate.drafter_kinds import DRAFTERS, DrafterKind
from simulate.whatif.whatif_settings import WhatIfSettings
from treeopt import registry
from treeopt.cli.options.value_types import EntryName
from treeopt.errors import UsageError
from treeopt.registry import Registry
from treeopt.results.kinds import RESULTS, kind_of_schema


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


def test_entries_are_the_modules_of_a_folder_and_those_added_for_a_while(colours):
    assert list(colours) == ["red"]
    assert colours["red"].name == "red"
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


def offered(monkeypatch, **entries):
    """Let an installed package offer these entries, by group."""
    points = {group: EntryPoint(entry.name, "elsewhere:ENTRY", group) for group, entry in entries.items()}
    loaded = {entry.name: entry for entry in entries.values()}
    monkeypatch.setattr(registry, "entry_points", lambda group: [points[group]] if group in points else [])
    monkeypatch.setattr(EntryPoint, "load", lambda self: loaded[self.name])


def test_an_option_takes_the_name_of_another_packages_entry(monkeypatch):
    offered(monkeypatch, **{"treeopt.drafters": DrafterKind("parrot", "Parrot")})
    with DRAFTERS.registered():
        assert "parrot" not in EntryName(DRAFTERS).choices
        assert EntryName(DRAFTERS).convert("parrot", None, None) == "parrot"
        with pytest.raises(click.BadParameter, match="'macaw' is not one of"):
            EntryName(DRAFTERS).convert("macaw", None, None)
    with pytest.raises(UsageError, match=r"^kind must be one of combined, .*, got 'macaw': MLP speculators, "):
        WhatIfSettings(target=Path("t"), hardware=("h100",), kind="macaw")


def test_a_file_of_another_packages_result_is_known_by_its_schema(monkeypatch):
    kind = replace(RESULTS["whatif"], name="weather", schema="weather.report/1")
    offered(monkeypatch, **{"treeopt.results": kind})
    with RESULTS.registered():
        assert kind_of_schema("weather.report/1") is kind
        with pytest.raises(UsageError, match="no kind of result has the schema 'weather"):
            kind_of_schema("weather.report/2")
