"""Options made from the fields of a settings class, which a command then gets as one object; and their setup file.

The setup file describes an engine and its models in TOML. `--setup` reads it, `--write-setup` writes it. A key is an
option's name without its dashes; an option beside the file wins.
"""

import json
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field
from functools import wraps
from pathlib import Path
from typing import Any, get_origin

import click

from treeopt.api.run_models import Models
from treeopt.api.runners import EngineSetup
from treeopt.cli.options.value_types import ADDRESS, EngineName, Model, item_of, numbers_text, type_of
from treeopt.engines import ENGINES
from treeopt.errors import UsageError
from treeopt.settings import Settings, bare_type, meaning_of, option_of, settings_of
from treeopt.storage.user_files import read_text, write_text

Decorator = Callable[[Any], Any]
BY_MEANING: Mapping[str, Any] = {}
MODELS: Mapping[str, Any] = {
    **dict.fromkeys(("target", "drafter"), Model()),
    "urls": ADDRESS,
    "engine": EngineName(ENGINES.driven),
}


def options_of(
    kind: type[Settings],
    *,
    types: Mapping[str, Any] = BY_MEANING,
    without: Collection[str] = (),
    required: Collection[str] = (),
) -> Decorator:
    """Return a decorator that adds an option for each field; the command gets an object of `kind` as `settings`.

    Args:
        kind: the settings class.
        types: types of options by field, where type and meaning of the field do not say how a text is read.
        without: fields that the command fills itself, if at all.
        required: fields that must be given on the command line, although they have a default.
    """
    own = [each for each in settings_of(kind) if meaning_of(each).option != "" and each.name not in without]
    scales = {each.name: scale for each in own if (scale := meaning_of(each).scale) != 1}

    def decorate(command: Any) -> Any:
        @wraps(command)
        def asked(**values: Any) -> Any:
            fields = {each.name: values.pop(each.name) for each in own}
            for name, scale in scales.items():  # an option's value in the unit of its field
                value = fields[name]
                fields[name] = tuple(v * scale for v in value) if isinstance(value, tuple) else value and value * scale
            return command(settings=kind.of(fields), **values)

        for each in reversed(own):
            asked = _option(each, types.get(each.name), required=each.name in required)(asked)
        return asked

    return decorate


def _option(each: "Field[Any]", type_: Any, *, required: bool) -> Decorator:
    """Return the option of a field."""
    meaning, kind = meaning_of(each), bare_type(each.type)
    names = (meaning.option or option_of(each), each.name)
    if kind is bool:
        switch = "/" in names[0]
        return click.option(*names, is_flag=True, default=each.default, show_default=switch, help=meaning.help)
    required = required or each.default is MISSING
    settings: dict[str, Any] = {"help": meaning.help, "required": required}
    if not required:
        default: Any = each.default
        settings["default"] = numbers_text(default) if default and kind == tuple[int, ...] else default
        settings["show_default"] = default not in (None, (), "", frozenset())
    several = get_origin(kind) is tuple and item_of(kind) is not int and not getattr(type_, "whole", False)
    return click.option(*names, type=type_ or type_of(each, kind), multiple=several, **settings)


# Field -> its key.
KEYS = {each.name: option_of(each).removeprefix("--") for kind in (EngineSetup, Models) for each in settings_of(kind)}
NAMES: Mapping[str, str] = {}
HIDDEN = "setup_file"  # names of the two options' parameters
WRITTEN = "write_setup"


def read_setup(path: Path) -> dict[str, Any]:
    """Return the values of a setup file by field.

    Raises:
        UsageError: names the file and what is wrong: it is no TOML, or a key is no option of a setup.
    """
    try:
        content = tomllib.loads(read_text(path))
    except OSError as error:
        raise UsageError(f"--setup {path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"--setup {path}: is not TOML: {error}") from error
    fields = {key: name for name, key in KEYS.items()}
    if unknown := content.keys() - fields.keys():
        raise UsageError(f"--setup {path}: `{min(unknown)}` is no option of a setup; it takes {', '.join(fields)}")
    return {fields[key]: value for key, value in content.items()}


def setup_text(values: Mapping[str, Any]) -> str:
    """Return values by field as a setup file holds them; those that are None or empty are left out.

    >>> print(setup_text({"engine": "vllm", "urls": ((3, "http://a"),), "servers": 2, "threads": None}), end="")
    engine = "vllm"
    url = ["3=http://a"]
    servers = 2
    """
    lines = []
    for name, value in values.items():
        if value in (None, "", (), False):
            continue
        if name == "urls":
            value = [f"{length}={url}" for length, url in value]
        lines.append(f"{KEYS[name]} = {json.dumps(value, default=str)}\n")
    return "".join(lines)


def setup_options(*, renamed: Mapping[str, str] = NAMES) -> Callable[[Any], Any]:
    """Return a decorator that adds `--setup` and `--write-setup` to a command.

    Args:
        renamed: field of a setup -> the command's parameter, where their names differ; a command that has only some
            of the fields ignores the others.
    """

    def read(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
        if path is not None:
            own = {option.name: option for option in ctx.command.params}
            values = {renamed.get(name, name): value for name, value in read_setup(path).items()}
            ctx.default_map = {name: value for name, value in values.items() if name in own}
            for name, value in ctx.default_map.items():
                try:
                    own[name].type_cast_value(ctx, value)
                except click.BadParameter as error:
                    raise UsageError(f"--setup {path}: `{own[name].opts[0].lstrip('-')}`: {error.message}") from error

    def decorate(command: Any) -> Any:
        @wraps(command)
        def asked(**values: Any) -> Any:
            path, params = values.pop(WRITTEN), click.get_current_context().params
            if path is not None:
                defaults = {option.name: option.default for option in click.get_current_context().command.params}
                names = {name: own for name in KEYS if (own := renamed.get(name, name)) in params}
                changed = {name: params[own] for name, own in names.items() if params[own] != defaults[own]}
                write_text(path, setup_text(changed))
            return command(**values)

        for option in (
            click.option(
                "--setup",
                HIDDEN,
                type=click.Path(path_type=Path, dir_okay=False),
                is_eager=True,
                expose_value=False,
                callback=read,
                help="Read options that describe the engine and its models from this file (TOML); an option beside it "
                "wins.",
            ),
            click.option(
                "--write-setup",
                WRITTEN,
                type=click.Path(path_type=Path, dir_okay=False),
                help="Write the options that describe the engine and its models to this file, for --setup.",
            ),
        ):
            asked = option(asked)
        return asked

    return decorate
