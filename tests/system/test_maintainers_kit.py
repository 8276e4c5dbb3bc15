"""The maintainer's kit: paths that exist, versions that agree, pinned tools."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PACKAGES = ("treeopt", "simulate", "executor")


def text_of(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def makefile_targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", text_of("Makefile"), flags=re.MULTILINE))


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "SECURITY.md"])
def test_paths_that_documents_name_exist(document):
    words = re.findall(r"`([\w./-]+)`", text_of(document))
    paths = [word for word in words if "/" in word or word.endswith((".md", ".txt", ".toml", ".yaml"))]
    paths += [part for line in re.findall(r"pytest -q ([\w/. -]+)", text_of(document)) for part in line.split()]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert len(paths) > 30 or document == "SECURITY.md"


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "README.md", ".ci/run"])
def test_make_targets_that_are_named_exist(document):
    named = re.findall(r"(?:^|`)make ([a-z][\w-]*)", text_of(document), flags=re.MULTILINE)
    assert named
    assert set(named) - makefile_targets() == set()


def test_ci_checks_and_tests():
    lines = text_of(".ci/run").splitlines()
    assert "set -euo pipefail" in lines
    assert {"make -j 2 check compiled", "make test"} <= set(lines)
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100


def test_the_citation_is_of_this_version():
    citation = dict(re.findall(r"^([\w-]+): (.+)$", text_of("CITATION.cff"), flags=re.MULTILINE))
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert citation["repository-code"] == PROJECT["urls"]["Source"]


def test_everything_that_is_needed_is_pinned():
    extras = (name for names in PROJECT["optional-dependencies"].values() for name in names)
    needed = {re.match(r"[\w-]+", name)[0] for name in (*PROJECT["dependencies"], *extras)}
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)$", text_of("constraints.txt"), flags=re.MULTILINE))
    assert needed - pinned.keys() == set()


def test_packages_say_that_they_are_typed():
    assert all((ROOT / package / "py.typed").exists() for package in PACKAGES)
