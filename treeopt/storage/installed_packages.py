"""The packages that treeopt needs, what is installed of them, and what is wrong with that."""

import re
from importlib import metadata
from typing import Any

from treeopt.errors import UsageError

# A requirement of treeopt, such as `simpy>=4.1; extra == 'serving'`.
_REQUIREMENT = re.compile(r"(?P<name>[\w-]+)(?:>=(?P<least>[\d.]+))?(?:; extra == '(?P<extra>\w+)')?")
DEVELOPERS = "dev"


def installed_versions() -> list[dict[str, Any]]:
    """Return every package that treeopt needs: `name`, `extra` that needs it, `version`, and `trouble` or None.

    Raises:
        UsageError: treeopt itself is not installed, so that its requirements are not known.
    """
    try:
        requirements = metadata.requires("treeopt") or []
    except metadata.PackageNotFoundError as error:
        raise UsageError("treeopt is not installed in this environment; run `pip install -e .`") from error
    packages = []
    for match in filter(None, map(_REQUIREMENT.fullmatch, requirements)):
        if match["extra"] == DEVELOPERS:
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
