"""`treeopt export`: what it prints and writes, and what it refuses."""

import shlex
from dataclasses import replace

import pytest

from tests.helpers.command_line import done, read_json, refused, run
from tests.helpers.small_plans import entry, plan_of
from treeopt.engines import ENGINES
from treeopt.plans import load_plan, save_plan
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


def test_export_leaves_the_fetching_to_the_engine(small_plan):
    words = ("--format", "transformers", "--method", "assistant", "--nearest", "chain", "--batch", "1", "--launch")
    launch = done("export", small_plan, *words, "--model", "hf:org/head", "--target", "hf:org/llama").stdout
    assert "org/llama" in launch
    assert "org/head" in launch
    assert "hf:" not in launch


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


@pytest.mark.parametrize("engine", ENGINES.exporting())
@pytest.mark.parametrize("kind", ["eagle3", "language-model", "ngram", None])
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
        named = {"ngram": "n-gram-count drafter (engines' n-grams are prompt-lookup)"}.get(kind, f"{kind} drafter")
        assert (f"runs no {named}" in line.text) == (not fits)
    for method in offered[:1]:
        command = line.command.replace("METHOD", method).replace("DRAFTER", "folder")
        result = done(*shlex.split(command)[1:])
        if fits:
            assert "does not hold" not in result.stderr
