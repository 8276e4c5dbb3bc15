"""`treeopt doctor`: what is installed, what the machine is, and whether the decoding loop is right on it."""

import re
import sys
from dataclasses import asdict
from importlib import metadata, util
from typing import Any

import click

from treeopt.api.run_models import quiet_libraries
from treeopt.cli.options import general, printing
from treeopt.cli.options.help_sections import Command, examples
from treeopt.errors import TreeoptError, UsageError
from treeopt.storage.provenance import this_run

EXAMPLES = examples("treeopt doctor", "treeopt doctor --device cpu --json")
# A requirement of treeopt, such as `peft>=0.18; extra == 'train'`.
_REQUIREMENT = re.compile(r"(?P<name>[\w-]+)(?:<[\d.]+,)?(?:>=(?P<least>[\d.]+))?(?:; extra == '(?P<extra>\w+)')?")
DEVELOPERS = ("dev", "docs", "browser")  # extras that no command needs


@click.command(cls=Command, epilog=EXAMPLES)
@general.device
@general.as_json
@general.verbose
def doctor(device: str, as_json: bool) -> None:
    """Print what is installed, what the machine is, and whether the decoding loop is right on --device.

    The loop decodes with a small model of random weights, which takes seconds. Exit code 1: an installed package is
    too old or missing, or the loop is wrong.
    """
    packages = installed_versions()
    record: dict[str, Any] = {"provenance": this_run(), "packages": packages}
    sound = not any(package["trouble"] for package in packages)
    if util.find_spec("torch") and util.find_spec("transformers"):
        record |= _device(device)
        sound = sound and all(trial["holds"] for trial in record["trials"])
    record["sound"] = sound
    if as_json:
        printing.print_json(record)
    else:
        printing.show("health", record)
    if not sound:
        sys.exit(1)


def _device(device: str) -> dict[str, Any]:
    """Return the device, what it has and how the trials went; or what keeps it from being tried."""
    quiet_libraries()
    try:
        from executor.decoding.self_test import facts, trials
        from executor.target.load_hf_model import chosen_device, prepare

        device = chosen_device(device)
        prepare(device)
        return {"device": facts(device), "trials": [asdict(trial) for trial in trials(device)]}
    except (ImportError, OSError, TreeoptError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return {"trials": [{"name": f"the device {device} can be used", "holds": False, "detail": reason}]}


def installed_versions() -> list[dict[str, Any]]:
    """Return every package that treeopt needs: `name`, `extra` that needs it, `version`, and `trouble` or None.

    Raises:
        UsageError: treeopt itself is not installed, so that its requirements are not known.
    """
    try:
        requirements = metadata.requires("treeopt") or []
    except metadata.PackageNotFoundError as error:
        raise UsageError("treeopt is not installed here: run `pip install -e FOLDER` of its checkout") from error
    packages = []
    for match in filter(None, map(_REQUIREMENT.fullmatch, requirements)):
        if match["extra"] in DEVELOPERS:
            continue
        try:
            version = metadata.version(match["name"])
        except metadata.PackageNotFoundError:
            version = None
        old = version is not None and _numbers(version) < _numbers(match["least"] or "")
        trouble = f"older than {match['least']}" if old else None
        packages.append({"name": match["name"], "extra": match["extra"], "version": version, "trouble": trouble})
    begun = {None, *(package["extra"] for package in packages if package["version"] is not None)}
    for package in packages:
        if package["version"] is None and package["extra"] in begun:
            package["trouble"] = "missing"
    return packages


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with, to compare.

    >>> _numbers("2.13.0+cu130") > _numbers("2.9")
    True
    """
    return tuple(int(number) for number in re.match(r"[\d.]*", version)[0].split(".") if number)  # type: ignore[index]
