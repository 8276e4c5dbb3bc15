"""Where requests begin and end: each text equals Hugging Face's, cut where it must be, whoever shared its row."""

import copy
import functools
import itertools
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, OPTConfig, PreTrainedModel

from executor.decoding.decoder import Decoder
from executor.drafters.base.drafter import Drafter
from executor.drafters.language_model.drafter import LanguageModel
from executor.target.target_model import Target
from tests.helpers.models import (
    HIDDEN,
    SMALL,
    continued,
    generated,
    noisy,
    random_heads,
    random_prompts,
    small_model,
    small_target,
)
from tests.helpers.slow_params import slow_unless
from treeopt.errors import ExecutorError
from treeopt.policies import DynamicTree
from treeopt.tree import EMPTY, Tree
from treeopt.tree_files.choice_lists import EAGLE, published_trees

NEW = 16
LENGTHS = (7, 1, 19, 2, 1, 12, 5, 3, 1, 9)
TREES: dict[str, Tree | DynamicTree] = {
    "plain": EMPTY,
    "chain": Tree.chain(4),
    "eagle": published_trees()[EAGLE],
    "dynamic": DynamicTree(nodes=12, depth=4, beam=3, width=4, min_probability=0.01),
}
KINDS = [
    ("language-model", "chain"),
    ("medusa", "dynamic"),
    ("language-model", "eagle"),
    ("medusa", "eagle"),
    ("language-model", "dynamic"),
    ("none", "plain"),
]
DAILY = {(1, 1), (2, 0)}  # delay and number of the kind
ways = pytest.mark.parametrize(  # all three delays with all six kinds; a few of them are enough for every day
    ("late", "kind", "tree"),
    [
        pytest.param(late, kind, tree, marks=() if (late, number) in DAILY else pytest.mark.slow)
        for late in (0, 1, 2)
        for number, (kind, tree) in enumerate(KINDS)
    ],
)


@pytest.fixture
def references() -> tuple[list[list[int]], list[list[int]]]:
    """Prompts, three of one token, and what `generate` writes after each."""
    return continued(LENGTHS, NEW)


def loop(kind: str, tree: str, *, batch: int, late: int) -> Decoder:
    return Decoder(small_target(), drafter(kind), tree=TREES[tree], batch=batch, late=late)


def drafter(kind: str) -> Drafter | None:
    if kind == "medusa":
        return random_heads()
    return None if kind == "none" else LanguageModel(Target(noisy(small_model()), name="near"))


def cut(text: list[int], stop: list[int], new: int) -> list[int]:
    ends = [i + 1 for i, token in enumerate(text) if token in stop]
    return text[: min([new, *ends])]


def written(decoder: Decoder, prompts: list[list[int]], **how: Any) -> list[list[int]]:
    return [list(g.tokens) for g in decoder.generate(prompts, **how)]


@ways
def test_a_stop_token_anywhere(references, late, kind, tree):
    """Each place of a text in turn is its end, so that ends lie on roots, inside branches and on their leaves."""
    prompts, texts = references
    decoder = loop(kind, tree, batch=3, late=late)
    inside = 0
    for place in range(0, NEW, 3):
        stop = sorted({text[place] for text in texts[:4]})
        found = decoder.generate(prompts, new_tokens=NEW, stop=stop)
        assert [list(g.tokens) for g in found] == [cut(text, stop, NEW) for text in texts]
        inside += sum(len(g.tokens) < sum(g.accepted) + len(g.accepted) for g in found)
    assert inside > 0 or kind != "language-model"  # texts that ended before the path did


@ways
def test_ends_at_the_first_step(references, late, kind, tree):
    """By its stop token, alone and with others that go on; and by a limit of one token."""
    prompts, texts = references
    decoder = loop(kind, tree, batch=4, late=late)
    first = [texts[2][0]]
    assert written(decoder, prompts, new_tokens=NEW, stop=first) == [cut(text, first, NEW) for text in texts]
    every = sorted({text[0] for text in texts})
    assert written(decoder, prompts, new_tokens=NEW, stop=every) == [text[:1] for text in texts]
    assert written(decoder, prompts, new_tokens=1) == [text[:1] for text in texts]
    assert written(decoder, prompts[:1], new_tokens=1) == [texts[0][:1]]
    steps = list(decoder.steps(prompts[:3], new_tokens=1))
    assert len(steps) == 1
    assert steps[0].ended == (True, True, True, False)


@ways
def test_contexts_of_one_token(references, late, kind, tree):
    """Nothing to prefill: alone, together, and beside and after longer ones."""
    prompts, texts = references
    short = [i for i, prompt in enumerate(prompts) if len(prompt) == 1]
    for batch, chosen in ((3, short), (2, [0, *short]), (1, [2, *short, 5])):
        decoder = loop(kind, tree, batch=batch, late=late)
        assert written(decoder, [prompts[i] for i in chosen], new_tokens=NEW) == [texts[i] for i in chosen]


@ways
def test_more_rows_than_requests(references, late, kind, tree):
    prompts, texts = references
    decoder = loop(kind, tree, batch=7, late=late)
    assert written(decoder, prompts[:2], new_tokens=NEW) == texts[:2]
    assert written(decoder, prompts[:5], new_tokens=NEW) == texts[:5]  # in memory that others have used
    assert written(decoder, prompts[2:3], new_tokens=NEW) == texts[2:3]


@ways
def test_rows_are_refilled_while_others_go_on(references, late, kind, tree):
    """Ends at unlike times, so that a row's second and third request begin beside running ones; stops do it."""
    prompts, texts = references
    decoder = loop(kind, tree, batch=3, late=late)
    stop = [texts[0][5], texts[3][9], texts[6][2]]
    many, expected = prompts * 3, [cut(text, stop, NEW) for text in texts] * 3
    steps = list(decoder.steps(many, new_tokens=NEW, stop=stop))
    joined = [
        i
        for i, (a, b) in enumerate(itertools.pairwise(steps))
        if sum(x != y for x, y in zip(a.requests, b.requests, strict=True)) == 1
    ]
    assert len(joined) > 5  # one row changed, the others did not
    assert written(decoder, many, new_tokens=NEW, stop=stop) == expected


@ways
def test_prompts_in_pieces(references, late, kind, tree, monkeypatch):
    """No more than three tokens of a prompt at once, in the target and in the drafter."""
    prompts, texts = references
    calls = []
    prefill = Target.prefill
    monkeypatch.setattr(Target, "prefill", functools.partialmethod(prefill, chunk=3))
    fed = torch.nn.Module.__call__

    def counted(self: torch.nn.Module, *args: Any, **words: Any) -> Any:
        if "input_ids" in words:
            calls.append(words["input_ids"].shape[1])
        return fed(self, *args, **words)

    decoder = loop(kind, "plain" if kind == "none" else tree, batch=3, late=late)
    assert decoder.target.head_scaling == (1.0, None)  # found by a forward, once
    monkeypatch.setattr(torch.nn.Module, "__call__", counted)
    assert written(decoder, prompts, new_tokens=NEW) == texts
    assert max(calls) <= max(3, decoder.growth.room)
    assert calls.count(3) >= 6


LIMIT = 32
# Positions are learnt.
LEARNED: dict[str, Any] = {
    "gpt2": lambda limit: GPT2Config(**SMALL | {"max_position_embeddings": limit}),
    "opt": lambda limit: OPTConfig(
        **SMALL | {"max_position_embeddings": limit}, word_embed_proj_dim=HIDDEN, ffn_dim=48, init_std=0.35, dropout=0.0
    ),
}


def learned(kind: str, limit: int = LIMIT) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(LEARNED[kind](limit)).eval()


@pytest.mark.parametrize(
    ("kind", "drafts", "late"),
    slow_unless(
        lambda *case: case in {("gpt2", "language-model", 2), ("opt", "medusa", 1)},
        itertools.product(LEARNED, ["language-model", "medusa", "none"], [0, 1, 2]),
    ),
)
def test_a_context_with_just_enough_positions(kind, drafts, late):
    """Positions are rows of a table: one too many is an IndexError. Nodes may look past the end, texts may not."""
    model = learned(kind)
    tree = TREES["plain"] if drafts == "none" else Tree.from_paths([(0, 0), (1, 0), (2,)])
    new = 12
    longest = LIMIT - new
    lengths = (longest, 3, 1, longest, 8)
    prompts = random_prompts(lengths, seed=1)
    texts = [generated(model, prompt, new) for prompt in prompts]
    assert len({token for text in texts for token in text}) > 10

    def made(batch: int) -> Decoder:
        lm = LanguageModel(Target(noisy(model)))
        return Decoder(
            Target(copy.deepcopy(model)),
            {"language-model": lm, "medusa": random_heads(), "none": None}[drafts],
            tree=tree,
            batch=batch,
            late=late,
        )

    for batch in (1, 2, 6):
        assert written(made(batch), prompts, new_tokens=new) == texts
    decoder = made(2)
    ran = []
    decoder.target.model.register_forward_pre_hook(lambda *_: ran.append(1))
    with pytest.raises(ExecutorError, match=f"{LIMIT + 1} tokens exceed the model's context of {LIMIT}"):
        decoder.generate([prompts[1], random_prompts((longest + 1,))[0]], new_tokens=new)
    assert not ran
    assert decoder.target.cache is None
    assert written(decoder, prompts, new_tokens=new) == texts  # and nothing is left behind


@pytest.mark.parametrize("late", [0, 1])
def test_a_drafter_with_a_shorter_context_is_refused_before_any_work(late):
    target, lm = Target(learned("gpt2", 64)), LanguageModel(Target(learned("gpt2", LIMIT), name="short"))
    decoder = Decoder(target, lm, tree=Tree.chain(2), late=late)
    with pytest.raises(ExecutorError, match=r"short: \d+ tokens exceed the model's context of 32"):
        decoder.generate([[1] * 20], new_tokens=16)
    assert target.cache is None
    assert lm.target.cache is None
