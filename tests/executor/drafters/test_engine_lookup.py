"""Prompt lookup as engines have it: drafts equal those of the engines' own code, and replay takes the live steps."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from executor.checkpoints import load_drafter
from executor.decoding.decoder import Decoder
from executor.drafters.prompt_lookup.engine_rules import NOTHING, EngineLookup, LlamaCpp, Transformers, Vllm
from executor.models import identity
from executor.prompts.prompt_files import Prompt, encode, read_prompts
from executor.recording.collect_trace import collect
from executor.target.load_hf_model import load_target
from executor.target.tokenizer import load_tokenizer
from executor.verification.acceptance_rules import make_rule
from executor.verification.temperature_top_k_top_p import Warp
from tests.helpers.models import random_prompts, small_target
from tests.helpers.slow_params import slow_unless
from treeopt.errors import ExecutorError, UsageError
from treeopt.policies import DynamicTree
from treeopt.replay.static_tree import accepted_lengths, visit
from treeopt.storage.user_files import shipped
from treeopt.tree import Tree

FIXTURES = Path(__file__).parent
NAMES = ("prompt-lookup:vllm:1-3", "prompt-lookup:transformers", "prompt-lookup:llama.cpp:1-4")
PROMPTS = random_prompts((9, 4, 17, 2, 6, 12, 3), seed=8)
NEW = 24


def drafted(rule, text, depth):
    """The tokens after a text that stands before others, as it does in a teacher-forced pass."""
    tokens = torch.tensor([[*text, *text[:3], 1]])
    row = rule.propose(tokens, torch.tensor([[len(text)]]), depth)[0, 0].tolist()
    count = row.index(NOTHING) if NOTHING in row else depth
    assert row[count:] == [NOTHING] * (depth - count)
    return row[:count]


# --- the engines' own code


def cases(name):
    return json.loads((FIXTURES / f"{name}_lookup.json").read_text())["cases"]


def test_vllm_drafts_the_same():
    """400 texts through vLLM's `NgramProposer`; see tests/benchmarks/record_vllm_lookup.py."""
    for text, shortest, longest, count, expected in cases("vllm"):
        assert drafted(Vllm(shortest, longest), text, count) == expected, (text, shortest, longest, count)


def test_llama_cpp_drafts_the_same():
    """400 texts through `common_ngram_simple_draft`; see tests/benchmarks/record_llama_lookup.py."""
    for text, size, most, expected in cases("llama"):
        rule = LlamaCpp(size, most)
        assert drafted(rule, text, most) == expected, (text, size, most)
        assert drafted(rule, text, 2) == expected[:2]


def test_transformers_drafts_the_same():
    rng = np.random.default_rng(31)
    found = 0
    for _ in range(300):
        text = rng.integers(rng.choice([2, 3, 6]), size=rng.integers(1, 40)).tolist()
        longest, count, stop = int(rng.integers(1, 5)), int(rng.integers(1, 7)), [None, (0,), (1, 2)][rng.integers(3)]
        engine = PromptLookupCandidateGenerator(
            eos_token_id=None if stop is None else torch.tensor(stop),
            num_output_tokens=count,
            max_matching_ngram_size=longest,
            max_length=1000,
        )
        ids, _ = engine.get_candidates(torch.tensor([text]))
        expected = ids[0, len(text) :].tolist()
        assert drafted(Transformers(longest, stop or ()), text, count) == expected, (text, longest, count, stop)
        found += bool(expected)
    assert found > 100


def test_rows_of_a_batch_do_not_mix():
    rule, generator = Vllm(1, 3), torch.Generator().manual_seed(0)
    text = torch.randint(3, (4, 20), generator=generator)
    ends = torch.tensor([[1, 5, 20], [2, 6, 19], [3, 7, 18], [4, 8, 17]])
    together = rule.propose(text, ends, 4)
    for row in range(4):
        for column in range(3):
            alone = rule.propose(text[row : row + 1, : ends[row, column]], ends[row : row + 1, column : column + 1], 4)
            assert torch.equal(alone[0, 0], together[row, column])


# --- live and recorded


@pytest.fixture(scope="module", params=NAMES)
def recorded(request):
    target = small_target()
    drafter = load_drafter(request.param, target)
    prompts = [prompt * 3 for prompt in PROMPTS]
    trace = collect(
        target, drafter, [Prompt("x")] * len(prompts), prompts, new_tokens=NEW, width=3, depth=4, stop=[7], batch=3
    )
    plain = Decoder(target, batch=4).generate(prompts, new_tokens=NEW, stop=[7])
    return target, drafter, prompts, trace, [one.tokens for one in plain]


@pytest.mark.parametrize(
    ("tree", "batch", "trim"),
    slow_unless(
        lambda tree, batch, trim: (batch, trim) == ((1, False) if tree.nodes == 1 else (4, True)),
        product([Tree.chain(4), Tree.chain(1), Tree.from_paths([(0, 0), (1, 0), (0, 2)])], [1, 4], [True, False]),
    ),
)
def test_replay_takes_the_live_steps(recorded, tree, batch, trim):
    """Nodes of rank 1 and 2 are never proposed, whatever token stands in their place."""
    target, drafter, prompts, trace, plain = recorded
    live = Decoder(target, drafter, tree=tree, batch=batch, trim=trim).generate(prompts, new_tokens=NEW, stop=[7])
    assert [one.tokens for one in live] == plain
    steps = visit(tree, trace)
    proposed = np.minimum(trace.drafted[steps.anchors], 2 if tree.nodes == 5 else tree.depth)
    for request, generation in enumerate(live):
        assert steps.accepted[steps.request == request].tolist() == list(generation.accepted)
        assert proposed[steps.request == request].tolist() == list(generation.drafted)


def test_some_steps_are_right_and_some_propose_nothing(recorded):
    trace = recorded[3]
    assert (trace.rank[:, 0] == 0).any()
    assert set(np.unique(trace.rank)) <= {-2, -1, 0}
    assert 0 < (trace.drafted == 0).mean() < 1
    assert (trace.drafted == trace.depth).any()


@pytest.mark.slow  # loads the shipped target and writes 8 texts
def test_vllm_s_counters():
    """vLLM 0.32, `ngram` with 1 to 3 tokens, K = 3, on these prompts: 88 drafts, 258 tokens, accepted [32, 22, 16].

    Its first token comes of the prefill. It also counts what it accepts beyond the limit of new tokens, here one token.
    """
    folder = shipped("models/stdlib-llama")
    target = load_target(folder)
    prompts = read_prompts(shipped("prompts/stdlib.jsonl"))[:8]
    tokens = encode(load_tokenizer(folder, vocabulary=target.vocabulary), prompts)
    drafter = load_drafter("prompt-lookup:vllm:1-3", target)
    trace = collect(target, drafter, prompts, tokens, new_tokens=32, width=1, depth=3)
    accepted, steps = accepted_lengths(Tree.chain(3), trace), []
    for start, stop in zip(trace.starts + 1, trace.stops, strict=True):
        while start < stop:
            steps.append(start)
            start += accepted[start] + 1
    proposed, right = trace.drafted[steps], accepted[steps]
    assert [(proposed > 0).sum(), proposed.sum(), (proposed == 0).sum()] == [88, 258, 96]
    assert [(right >= k).sum() for k in (1, 2, 3)] == [32, 22, 15]


# --- names and refusals


def test_names_give_the_engines_defaults():
    target = small_target()
    target.model.generation_config.eos_token_id = [5, 3]
    expected = {
        "prompt-lookup:vllm": Vllm(5, 5),
        "prompt-lookup:vllm:3": Vllm(3, 3),
        "prompt-lookup:vllm:2-4": Vllm(2, 4),
        "prompt-lookup:llama.cpp": LlamaCpp(12, 48),
        "prompt-lookup:llama.cpp:3-6": LlamaCpp(3, 6),
        "prompt-lookup:transformers": Transformers(2, (3, 5)),
        "prompt-lookup:transformers:4": Transformers(4, (3, 5)),
    }
    for name, rule in expected.items():
        drafter = load_drafter(name, target)
        assert isinstance(drafter, EngineLookup)
        assert drafter.rule == rule
        assert drafter.kind == ":".join(name.split(":")[:2])
    assert load_drafter("prompt-lookup:llama.cpp:3-6", target).max_depth == 6
    assert len({json.dumps(identity(target, load_drafter(name, target))["drafter"]) for name in expected}) == 7


def test_what_needs_probabilities_is_refused():
    target = small_target()
    drafter = load_drafter("prompt-lookup:vllm", target)
    with pytest.raises(ExecutorError, match="a dynamic tree needs probabilities: use a chain"):
        Decoder(target, drafter, tree=DynamicTree(nodes=4, depth=2, beam=2, width=2))
    rule = make_rule("leviathan", warp=Warp(1.0), generator=torch.Generator())
    with pytest.raises(ExecutorError, match="use rule sample-and-match or point-mass"):
        Decoder(target, drafter, tree=Tree.chain(2), rule=rule)
    for more, message in (
        ({"probabilities": True}, "omit probabilities"),
        ({"candidates": DynamicTree(nodes=4, depth=2, beam=2, width=2)}, "a dynamic tree needs probabilities"),
        ({"temperature": 1.0, "rule": "block"}, "use rule sample-and-match"),
    ):
        with pytest.raises((UsageError, ExecutorError), match=message):
            collect(target, drafter, [Prompt("x")], [[1, 2, 3]], new_tokens=4, width=2, **more)
