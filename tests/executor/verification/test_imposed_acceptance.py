"""Acceptance taken from a trace: the walk of the trace, step for step, with any weights."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.decoding.cuda_graphs import Graphs
from executor.decoding.decoder import Decoder
from executor.drafters.language_model.drafter import LanguageModel
from executor.prompts.prompt_files import Prompt
from executor.recording.collect_trace import collect
from executor.verification.replayed_acceptance import Imposed
from tests.executor.decoding.test_cuda_graphs import Recorder
from tests.helpers.models import noisy, random_heads, random_prompts, small_model, small_target
from tests.helpers.strategies import drawn_trace, traces, trees
from treeopt.replay.static_tree import visit
from treeopt.traces.trace import Trace
from treeopt.tree import EMPTY, Tree

TREE = Tree.from_paths([(0, 0, 0), (0, 1), (1, 0), (2,)])


def a_trace(lengths=(7, 1, 12, 3, 9, 30, 2), *, depth=4):
    return drawn_trace([[0.6, 0.2, 0.1], [0.5, 0.3]], lengths, depth=depth, rng=np.random.default_rng(3))


def kept(trace: Trace, tree: Tree) -> list[tuple[int, ...]]:
    """Accepted lengths of every request's steps, by the walk."""
    walk = visit(tree, trace)
    return [tuple(walk.accepted[walk.request == request].tolist()) for request in range(trace.requests)]


def replayed(trace: Trace, tree: Tree, drafter, *, target=None, batch=1, prompts=None, **other):
    target = small_target() if target is None else target
    prompts = random_prompts([3 + i % 4 for i in range(trace.requests)]) if prompts is None else prompts
    decoder = Decoder(target, drafter, tree=tree, batch=batch, rule=Imposed(trace, tree), **other)
    return decoder.generate(prompts, new_tokens=trace.lengths.tolist())


@pytest.mark.parametrize(("batch", "late"), [(1, 0), (4, 0), (4, 1), (4, 2)])
@pytest.mark.parametrize("tree", [EMPTY, Tree.chain(1), Tree.chain(4), TREE], ids=["plain", "1", "4", "tree"])
def test_steps_keep_what_the_walk_keeps(tree, batch, late):
    """Rows are given to other requests as theirs end, at different steps."""
    trace = a_trace()
    found = replayed(trace, tree, random_heads(), batch=batch, late=late)
    assert [generation.accepted for generation in found] == kept(trace, tree)
    assert [len(generation.tokens) for generation in found] == trace.lengths.tolist()


@settings(deadline=None, max_examples=15)
@given(traces(length=8), st.integers(1, 3), st.data())
def test_any_trace_and_tree(trace, batch, data):
    tree = data.draw(trees(width=trace.width, depth=trace.depth))
    found = replayed(trace, tree, random_heads(), batch=batch)
    assert [generation.accepted for generation in found] == kept(trace, tree)


@pytest.mark.parametrize("kind", ["medusa", "language-model"])
def test_the_models_own_trace_changes_nothing(kind):
    """Where greedy verification keeps just what the trace says, the text is the same too: all else is real."""
    target = small_target()
    drafter = random_heads() if kind == "medusa" else LanguageModel(type(target)(noisy(small_model()), name="noisy"))
    prompts = random_prompts([4, 9, 5, 7, 3, 6], seed=5)
    trace = collect(target, drafter, [Prompt("x")] * 6, prompts, new_tokens=14, width=4, depth=3)
    due = Decoder(target, drafter, tree=TREE, batch=4).generate(prompts, new_tokens=14)
    assert max(max(generation.accepted) for generation in due) > 0
    assert replayed(trace, TREE, drafter, target=target, batch=4, prompts=prompts) == due


def test_the_cache_holds_what_was_committed():
    """After imposed steps the target sees the committed text: its next token is that of a plain forward over it."""
    trace = drawn_trace([[0.4, 0.2, 0.1]], [40], depth=4, rng=np.random.default_rng(0))
    target, prompt = small_target(), random_prompts([5])[0]
    decoder = Decoder(target, random_heads(), tree=TREE, rule=Imposed(trace, TREE))
    tokens = decoder.generate([prompt], new_tokens=[40])[0].tokens
    plain, at = Decoder(target), 0
    steps = kept(trace, TREE)[0]
    checked = 0
    for accepted in steps[:-1]:
        at += accepted + 1
        if accepted == 0:  # the bonus is the rule's own: what follows the root, which was committed just before
            own = plain.generate([[*prompt, *tokens[: at - 1]]], new_tokens=1)[0].tokens
            assert own == (tokens[at - 1],)
            checked += 1
    assert checked >= 4


def test_graphs_replay_the_walk(monkeypatch):
    """Warming up must not move the rows along the trace."""
    monkeypatch.setattr("executor.decoding.decoder.Graphs", lambda rows: Graphs(rows, Recorder(rows)))
    trace = a_trace()
    decoder = Decoder(small_target(), random_heads(), tree=TREE, batch=2, late=1, rule=Imposed(trace, TREE))
    decoder.graphs, decoder.bucket = True, 16
    prompts = random_prompts([4] * trace.requests)
    found = decoder.generate(prompts, new_tokens=trace.lengths.tolist())
    assert [generation.accepted for generation in found] == kept(trace, TREE)


def test_a_limit_cuts_the_walk():
    trace = a_trace([9, 20])
    rule = Imposed(trace, Tree.chain(2))
    found = Decoder(small_target(), random_heads(), tree=Tree.chain(2), rule=rule).generate(
        random_prompts([3, 3]), new_tokens=[4, 20]
    )
    assert [len(generation.tokens) for generation in found] == [4, 20]
    assert found[1].accepted == kept(trace, Tree.chain(2))[1]
    whole = kept(trace, Tree.chain(2))[0]
    assert found[0].accepted[:-1] == whole[: len(found[0].accepted) - 1]
