"""Which trees engines can run: those that their projects published, and those that their code is known to ruin."""

import re

import numpy as np
import pytest
from click.testing import CliRunner

from executor.drafters.prompt_lookup.engine_rules import engine_rule
from treeopt.cli import main
from treeopt.constraints import broken
from treeopt.engines import ENGINES, GONE, engine_rules
from treeopt.errors import UsageError
from treeopt.traces.trace import Trace
from treeopt.tree import Tree
from treeopt.tree_files.choice_lists import published_trees

BRANCHING = ("medusa", "sequoia", "treeopt")  # the others run static trees that are chains alone


def test_medusa_can_run_what_it_published() -> None:
    published = {name: tree for name, tree in published_trees().items() if name.startswith("medusa/")}
    assert published
    assert {broken(tree, ENGINES["medusa"].rules) for tree in published.values()} == {None}


@pytest.mark.parametrize(
    ("engine", "paths", "runs"),
    [
        # Cases that were run against the engines' own code: engines.md, 2.3 and 8.2.
        ("medusa", [(0,), (10,), (0, 0)], False),
        ("vllm", [(0,), (1,)], False),
        ("sequoia", [(0,), (2,)], False),
        ("sequoia", [(0,), (1,), (1, 0)], True),
        ("treeopt", [(7, 3), (9,)], True),
    ],
)
def test_engines_run_these_and_not_those(engine: str, paths: list[tuple[int, ...]], runs: bool) -> None:
    assert (broken(Tree.from_paths(paths), ENGINES[engine].rules) is None) == runs


@pytest.mark.parametrize("name", ENGINES.limiting())
def test_every_engine_runs_a_chain(name: str) -> None:
    assert broken(Tree.chain(3), ENGINES[name].rules) is None
    assert (broken(Tree.full(2, 2), ENGINES[name].rules) is None) == (name in BRANCHING)


def test_rules_name_their_engines() -> None:
    assert set(ENGINES.exporting()) <= set(ENGINES.limiting())
    assert len({engine.title for engine in ENGINES.values()}) == len(ENGINES)
    assert all(rule.source and rule.name for name in ENGINES.limiting() for rule in ENGINES[name].rules)


@pytest.mark.parametrize("name", GONE)
def test_an_engine_that_is_gone_says_what_to_use(name: str) -> None:
    trace = Trace(np.int32([0]), np.int32([0]), np.int16([[0]]), 1)
    with pytest.raises(UsageError, match=rf"^engine {name} is no longer known: use \S.*$") as caught:
        engine_rules(name, trace)
    use = re.split(r"[ ,]", str(caught.value).partition("use ")[2])[0]
    assert use in ENGINES
    refused = CliRunner().invoke(main, ["search", "--trace", "t.npz", "--batch", "1", "--for", name])
    assert refused.exit_code == 2
    assert str(caught.value) in refused.output


def test_llama_cpp_drops_drafts_that_are_shorter_than_the_match():
    meta = {"drafter": {"kind": "prompt-lookup:llama.cpp", "least": 2}}
    trace = Trace(np.int32([0, 0]), np.int32([0, 1]), np.int16([[0, 0], [0, -2]]), 1, meta=meta)
    shortest = [rule for rule in engine_rules("llama.cpp", trace) if rule.limits.min_depth]
    assert [rule.limits.min_depth for rule in shortest] == [2]
    assert broken(Tree.chain(1), shortest) is not None
    assert broken(Tree.chain(2), shortest) is None
    assert not [rule for rule in engine_rules("vllm", trace) if rule.limits.min_depth]
    assert engine_rule("prompt-lookup:llama.cpp:2-5").least == 2
    assert engine_rule("prompt-lookup:vllm:2-5").least == 1
