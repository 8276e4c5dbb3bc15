"""`treeopt export`: what it prints and writes, and what it refuses."""

import json
import shlex
from dataclasses import replace

import pytest

from tests.helpers.command_line import done, read_json, refused, run, validate
from tests.helpers.small_plans import entry, plan_of
from treeopt.engines import ENGINES
from treeopt.plans.plan_json import load_plan, save_plan
from treeopt.results.plan import next_lines
from treeopt.tree import Tree


def test_export_prints_the_engines_text_alone(small_plan):
    result = done("export", small_plan, "--format", "medusa", "--batch", "1")
    paths = read_json(result.stdout)
    chosen = load_plan(small_plan).entries[0].choice.tree
    assert paths == [list(path) for path in chosen.paths]
    assert chosen.id in result.stderr
    assert all(line.startswith(("note: ", "flags: ", "Warning: ")) for line in result.stderr.splitlines())
    warned = [line for line in result.stderr.splitlines() if line.startswith("Warning: ")]
    assert warned == [f"Warning: {warning}." for warning in load_plan(small_plan).warnings]
    assert warned  # of few requests
    whole = done("export", small_plan, "--format", "medusa", "--batch", "1", "--json")
    assert read_json(whole.stdout)["text"] + "\n" == result.stdout


def test_export_writes_a_file(small_plan, tmp_path):
    words = ("export", small_plan, "--format", "medusa", "--batch", "1")
    printed = done(*words).stdout
    result = done(*words, "--output", tmp_path / "choices.json")
    assert result.stdout == ""
    assert (tmp_path / "choices.json").read_text() == printed


def test_export_refuses(small_plan, tmp_path, unchanged):
    (tmp_path / "empty.json").write_text("")
    unchanged()
    words = ("--format", "medusa", "--batch", "1")
    refused(run("export", tmp_path / "none.json", *words), "none.json", "No such file")
    refused(run("export", tmp_path / "empty.json", *words), "empty.json", "JSON")
    refused(run("export", tmp_path, *words), str(tmp_path), "directory", code=None)
    refused(run("export", small_plan, "--format", "medusa"), "1, 4", code=2)
    refused(run("export", small_plan, "--format", "medusa", "--batch", "2"), "batch 2", "1, 4", code=2)
    refused(run("export", small_plan, "--format", "sequoia"), "sequoia", "medusa", code=2)
    refused(run("export", small_plan, *words, "--method", "m"), "--method", "medusa", code=2)
    refused(run("export", small_plan, *words, "--heads", "1"), "Medusa", "depth")
    refused(run("export", small_plan, *words, "--output", tmp_path / "none" / "o"), "none", code=2)
    refused(run("export", small_plan, *words, "--output", tmp_path), str(tmp_path), code=2)


def spoiled(plan, place, value):
    record = json.loads(plan.read_text())
    holder = record
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    return json.dumps(record)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("schema",), "treeopt.plan/1"),
        (("entries",), {}),
        (("entries", 1), 5),
        (("entries", 1), []),
        (("entries", 1), None),
        (("entries", 1, "batch"), "4"),
        (("entries", 1, "batch"), True),
        (("entries", 1, "choice"), 5),
        (("entries", 1, "choice", "tree"), [[0]]),
        (("entries", 1, "choice", "tree", "paths"), 5),
        (("entries", 1, "choice", "tree", "paths"), [["0"]]),
        (("entries", 1, "choice", "tree", "paths"), [[0.5]]),
        (("entries", 1, "choice", "tree", "id"), "another"),
        (("entries", 1, "choice", "step_s"), 0),
        (("entries", 1, "choice", "step_s"), 10**400),
        (("entries", 1, "choice", "tau"), 5),
        (("entries", 1, "choice", "tau", "value"), float("nan")),
        (("entries", 1, "compared"), 5),
        (("entries", 1, "compared"), [5]),
        (("entries", 1, "skipped"), []),
        (("entries", 1, "skipped"), 5),
        (("entries", 1, "proof"), 5),
        (("entries", 1, "proof"), {}),
        (("entries", 1, "gain_over_chain"), 5),
        (("meta",), []),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else repr(value)[:20],
)
def test_a_broken_plan_is_refused(small_plan, unchanged, place, value):
    small_plan.write_text(spoiled(small_plan, place, value))
    unchanged()
    where = "entries[1]" if len(place) > 1 else place[0]
    refused(run("export", small_plan, "--format", "medusa", "--batch", "1"), "small.json", where)


@pytest.mark.parametrize("meta", [{}, {"trace": 5, "search": 5, "cost": 5}, {"trace": {"drafter": 5, "target": 5}}])
def test_a_plan_may_say_anything_of_its_trace(plan_file, tiny, meta):
    plan_file.write_text(spoiled(plan_file, ("meta",), meta))
    assert read_json(done("export", plan_file, "--format", "medusa").stdout)
    assert "predicted" in validate(tiny, plan_file, "--requests", "4").stdout


KINDS = sorted({kind for engine in ENGINES.values() for method in engine.methods.values() for kind in method.kinds})


@pytest.mark.parametrize("engine", ENGINES.exporting())
@pytest.mark.parametrize("kind", [*KINDS, "ngram", None])
def test_the_proposed_export_runs_or_says_what_to_choose_from(tmp_path, engine, kind):
    path = tmp_path / "plan.json"
    plan = plan_of(entry(1, Tree.chain(3)), drafter=None if kind is None else {"kind": kind})
    plan = replace(plan, meta={**plan.meta, "search": {"engine": engine}})
    save_plan(plan, path)
    (line,) = next_lines(plan, file=str(path))
    methods = ENGINES[engine].choices
    offered = methods if "--method METHOD" in line.command else ("",)
    fits = bool(ENGINES[engine].fitting(kind))
    assert ("METHOD" in line.command) == (bool(methods) and not fits and engine != "sglang")
    assert all(f" {method}" in line.text for method in offered)
    if methods and kind is not None:
        assert (f"runs no {kind.replace('ngram', 'n-gram-count')} drafter" in line.text) == (not fits)
    for method in offered[:1]:
        command = line.command.replace("METHOD", method).replace("DRAFTER", "folder")
        result = done(*shlex.split(command)[1:])
        if fits:
            assert "does not hold" not in result.stderr
