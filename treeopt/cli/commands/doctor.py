"""`treeopt doctor`: what is installed, what the machine is, and whether the decoding loop is right on it."""

import re
import sys
from dataclasses import asdict
from importlib import metadata, util
from typing import Any

import click

from treeopt.cli.options import general, models_and_prompts
from treeopt.errors import TreeoptError, UsageError
from treeopt.storage.provenance import this_run

# A requirement of ours, such as `simpy>=4.1; extra == 'serving'`.
_NEED = re.compile(r"(?P<name>[\w-]+)(?:>=(?P<least>[\d.]+))?(?:; extra == '(?P<extra>\w+)')?")
DEVELOPERS = "dev"


@click.command()
@models_and_prompts.device
@general.as_json
def doctor(device: str, as_json: bool) -> None:
    """Say what is installed, what the machine is, and whether the decoding loop is right on --device.

    The loop decodes with a small model of random weights, which takes seconds. Exit code 1: something that was found
    is too old, or the loop is wrong.
    """
    packages = _packages()
    record: dict[str, Any] = {"provenance": this_run(), "packages": packages}
    sound = not any(package["trouble"] for package in packages)
    if util.find_spec("torch") and util.find_spec("transformers"):
        record |= _device(device)
        sound = sound and all(trial["holds"] for trial in record["trials"])
    record["sound"] = sound
    if as_json:
        general.print_json(record)
    else:
        from treeopt.report.doctor_tables import show_health

        show_health(record)
    if not sound:
        sys.exit(1)


def _packages() -> list[dict[str, Any]]:
    """What treeopt needs, for which extra, what is there, and what is wrong with that."""
    try:
        needs = metadata.requires("treeopt") or []
    except metadata.PackageNotFoundError as error:
        raise UsageError("treeopt is not installed here, so nobody says what it needs: pip install -e .") from error
    found = []
    for match in filter(None, map(_NEED.fullmatch, needs)):
        if match["extra"] == DEVELOPERS:
            continue
        try:
            version = metadata.version(match["name"])
        except metadata.PackageNotFoundError:
            version = None
        old = version is not None and _numbers(version) < _numbers(match["least"] or "")
        trouble = f"older than {match['least']}" if old else None
        found.append({"name": match["name"], "extra": match["extra"], "version": version, "trouble": trouble})
    begun = {None, *(package["extra"] for package in found if package["version"] is not None)}
    for package in found:
        if package["version"] is None and package["extra"] in begun:
            package["trouble"] = "missing"
    return found


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with, to compare.

    >>> _numbers("2.13.0+cu130") > _numbers("2.9")
    True
    """
    return tuple(int(number) for number in re.match(r"[\d.]*", version)[0].split(".") if number)  # type: ignore[index]


def _device(device: str) -> dict[str, Any]:
    """The device, what it has, and how the trials went; or what keeps it from being tried."""
    models_and_prompts.hush()
    try:
        from executor.decoding.self_test import facts, trials
        from executor.target.load_hf_model import prepare

        prepare(device)
        return {"device": facts(device), "trials": [asdict(trial) for trial in trials(device)]}
    except (ImportError, OSError, TreeoptError) as error:
        told = " ".join(f"{type(error).__name__}: {error}".split())
        return {"trials": [{"name": f"the device {device} can be used", "holds": False, "told": told}]}
