"""The setup file: options that describe an engine and its models, in TOML.

`--setup` reads it, `--write-setup` writes it. A key is an option's name without its dashes; an option beside the file
wins.
"""

import json
import tomllib
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import click

from treeopt.api.run_models import Models
from treeopt.api.runners import EngineSetup
from treeopt.errors import UsageError
from treeopt.settings import option_of, settings_of
from treeopt.storage.atomic_files import write_text
from treeopt.storage.user_files import read_text

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
                given = {name: params[renamed.get(name, name)] for name in KEYS if renamed.get(name, name) in params}
                write_text(path, setup_text(_changed(given, renamed)))
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


def _changed(values: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that differ from their options' defaults."""
    defaults = {option.name: option.default for option in click.get_current_context().command.params}
    return {name: value for name, value in values.items() if value != defaults.get(renamed.get(name, name))}
