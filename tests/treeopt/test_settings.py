"""Settings: checked once, named by their option; as options of a command, as keywords of a function."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
import numpy as np
import pytest
from click.testing import CliRunner

from treeopt.cli.options.settings_options import options_of
from treeopt.errors import UsageError
from treeopt.settings import Settings, setting, takes


@dataclass(frozen=True, kw_only=True)
class Brew(Settings):
    """How tea is made."""

    cups: tuple[int, ...] = setting((1,), least=1, help="Cups.")
    heat_s: float | None = setting(None, above=0, option="--heat-ms", scale=1e-3, help="Time.")
    kind: str = setting("green", choices=lambda: ("green", "black"), help="Kind.")
    milk: bool = setting(False, help="With milk.")
    leaves: Path | None = setting(None, help="File of leaves.")
    tea: Literal["leaf", "bag"] = setting("leaf", help="Form.", option="")
    water: float | str = setting("tap", help="Hardness, or a name.", option="")
    prices: Mapping[str, float] | None = setting(None, help="Price of each kind.", option="")
    secret: float = setting(0.5, least=0, below=1, option="", help="For programs alone.")

    def check(self) -> None:
        """Milk is for black tea."""
        if self.milk and self.kind == "green":
            raise UsageError("milk is for black tea")


@dataclass(frozen=True, kw_only=True)
class Bill(Settings):
    """A price to pay."""

    cents: int = setting(help="Cents.")


@takes(Brew)
def brew(pot: str, *, settings: Brew, loud: bool = False) -> tuple[str, Brew, bool]:
    """Brew.

    Args:
        pot: a pot.
        loud: with noise.
    """
    return pot, settings, loud


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cups": 0}, "cups must be at least 1, got 0"),
        ({"cups": 1.5}, "cups must be an integer, got 1.5"),
        ({"cups": True}, "cups must be an integer, got True"),
        ({"heat_s": 0.0}, "heat_s must be above 0, got 0.0"),
        ({"heat_s": float("nan")}, "heat_s must be a finite number, got nan"),
        ({"secret": 1}, "secret must be at least 0 and below 1, got 1"),
        ({"heat_s": 10**400}, "heat_s must be a finite number, got one too large"),
        ({"cups": 2**63}, "cups must be below 9.2e"),
        ({"tea": 1}, "tea must be a text, got 1"),
        ({"tea": "cake"}, "tea must be one of leaf, bag, got 'cake'"),
        ({"water": None}, "water must be a finite number or a text, got None"),
        ({"prices": {"green": "1"}}, r"prices must be a Mapping, got {'green': '1'}"),
        ({"leaves": np.zeros((2, 2))}, r"leaves must be a Path, got array\(\[\[0., 0.\], \[0., 0.\]\]\)"),
        ({"kind": "red"}, "kind must be one of green, black, got 'red'"),
        ({"kind": 3}, "kind must be a text, got 3"),
        ({"leaves": 3}, "leaves must be a Path, got 3"),
        ({"milk": 1}, "milk must be True or False, got 1"),
        ({"milk": True}, "milk is for black tea"),
    ],
)
def test_a_wrong_setting_is_named_with_what_it_must_be(wrong, message):
    with pytest.raises(UsageError, match=message):
        brew("pot", **wrong)


def test_a_keyword_that_is_missing_is_one_of_the_function():
    @takes(Bill)
    def pay(*, settings: Bill) -> Bill:
        """Pay."""
        return settings

    assert pay(cents=3).cents == 3
    with pytest.raises(TypeError, match=r"^pay\(\) needs cents$"):
        pay()


def test_keywords_change_settings_and_unknown_ones_are_type_errors():
    _, settings, loud = brew("pot", cups=[1, 2], leaves="a", loud=True)
    assert (settings.cups, settings.leaves, loud) == ((1, 2), Path("a"), True)
    assert brew("pot", settings=settings, cups=3)[1] == settings.changed(cups=3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'cup'"):
        brew("pot", cup=1)


def test_signature_and_docstring_show_every_field():
    assert list(inspect.signature(brew).parameters) == [
        "pot", "loud", "cups", "heat_s", "kind", "milk", "leaves", "tea", "water", "prices", "secret",
    ]  # fmt: skip
    assert "        kind: kind.\n" in brew.__doc__


def test_a_command_gets_the_settings_as_one_object():
    asked = []

    @click.command()
    @options_of(Brew)
    def command(settings: Brew) -> None:
        asked.append(settings)

    words = ["--cups", "1,2-8", "--heat-ms", "20", "--kind", "black", "--milk", "--leaves", "f"]
    result = CliRunner().invoke(command, words, catch_exceptions=False)
    assert (result.exit_code, result.output) == (0, "")
    assert asked == [Brew(cups=(1, 2, 4, 8), heat_s=0.02, kind="black", milk=True, leaves=Path("f"))]
    assert "--secret" not in CliRunner().invoke(command, ["--help"]).output
    assert "not one of" in CliRunner().invoke(command, ["--kind", "red"]).output
