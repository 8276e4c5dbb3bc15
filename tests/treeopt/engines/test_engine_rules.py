"""Which trees engines can run: those that their projects published, and those that their code is known to ruin."""

import numpy as np
import pytest

from executor.drafters.prompt_lookup.lookup_names import engine_rule
from treeopt.constraints import DepthAtLeast, broken
from treeopt.engines import ENGINES
from treeopt.engines import engine_rules
from treeopt.traces.trace import Trace
from treeopt.tree import Tree
from treeopt.tree_files.paper_trees import published_trees

PUBLISHED = {"medusa": "medusa", "hydra": "hydra", "eagle1": "eagle-1", "specinfer": "specinfer"}
CHAINS = ("vllm", "sglang", "llama.cpp", "lmdeploy", "openvino", "tensorrt-llm", "tgi", "transformers")


@pytest.mark.parametrize("name", published_trees())
def test_projects_can_run_what_they_published(name: str) -> None:
    assert broken(published_trees()[name], ENGINES[PUBLISHED[name.split("/")[0]]].rules) is None


@pytest.mark.parametrize(
    ("engine", "paths", "runs"),
    [
        # Cases that were run against the engines' own code: engines.md, 2.3 and 8.2.
        ("medusa", [(0,), (10,), (0, 0)], False),
        ("hydra", [(0,), (1,), (1, 0)], False),
        ("hydra", [(0,), (2,), (2, 0)], False),
        ("hydra", [(0,), (1,), (0, 0)], True),
        ("eagle-1", [(0,), (5,), (5, 0)], False),
        ("eagle-1", [(0,), (1,)], False),
        ("tensorrt-llm-medusa", [(0,), (2,), (0, 0)], False),
        ("tensorrt-llm-medusa", [(0,), (1,), (0, 3)], True),
        ("tensorrt-llm-eagle", [(0,), (2,), (0, 3)], True),
        ("vllm-0.20", [(0,), (1,), (0, 0)], False),
        ("vllm-0.20", [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)], True),
        ("vllm", [(0,), (1,)], False),
        ("sequoia", [(0,), (2,)], False),
        ("umbrella", [(0,), (1,), (1, 0)], True),
        ("mlc", [(0,), (1,), (0, 0), (1, 0)], False),
        ("treeopt", [(7, 3), (9,)], True),
    ],
)
def test_engines_run_these_and_not_those(engine: str, paths: list[tuple[int, ...]], runs: bool) -> None:
    assert (broken(Tree.from_paths(paths), ENGINES[engine].rules) is None) == runs


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_runs_a_chain(name: str) -> None:
    assert broken(Tree.chain(3), ENGINES[name].rules) is None
    assert (broken(Tree.full(2, 2), ENGINES[name].rules) is not None) == (name in CHAINS)


def test_rules_name_their_engines() -> None:
    assert set(ENGINES) <= set(ENGINES)
    assert len({engine.engine for engine in ENGINES.values()}) == len(ENGINES)
    assert all(rule.source and rule.name for engine in ENGINES.values() for rule in engine.rules)


def test_llama_cpp_drops_drafts_that_are_shorter_than_the_match():
    meta = {"drafter": {"kind": "prompt-lookup:llama.cpp", "least": 2}}
    trace = Trace(np.int32([0, 0]), np.int32([0, 1]), np.int16([[0, 0], [0, -2]]), 1, meta=meta)
    shortest = [rule for rule in engine_rules("llama.cpp", trace) if isinstance(rule, DepthAtLeast)]
    assert [rule.limit for rule in shortest] == [2]
    assert broken(Tree.chain(1), shortest) is not None
    assert broken(Tree.chain(2), shortest) is None
    assert not [rule for rule in engine_rules("vllm", trace) if isinstance(rule, DepthAtLeast)]
    assert engine_rule("prompt-lookup:llama.cpp:2-5").least == 2
    assert engine_rule("prompt-lookup:vllm:2-5").least == 1
