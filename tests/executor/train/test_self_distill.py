"""The target's own words: what is asked, what is kept, and that an interruption changes nothing."""

import copy
import json

import pytest
import torch
from tokenizers import decoders
from transformers import LlamaConfig, LlamaForCausalLM

from executor.prompts.chat_template import up_to_answer
from executor.target.target_model import Target
from executor.train.self_distill import Writing, rewrite
from executor.train.token_rows import Text, encode, read_texts, tokenizer_hash
from tests.executor.train.test_token_rows import CHATML, byte_tokenizer
from tests.helpers.models import SMALL, generated
from treeopt.errors import ExecutorError, UsageError

# As Qwen3's: earlier answers are shown otherwise than they were written.
FORGETS = (
    "{% for m in messages %}{% if m['role'] == 'user' %}[{{ m['content'] }}]{% else %}{{ m['content'][2:] }}<|end|>"
    "{% endif %}{% endfor %}"
)
WRITING = Writing(temperature=1.0, new_tokens=6, prompt_tokens=4, batch=2)


@pytest.fixture(scope="module")
def target():
    torch.manual_seed(0)
    config = LlamaConfig(**{**SMALL, "vocab_size": 300, "eos_token_id": 256}, num_key_value_heads=2)
    return Target(LlamaForCausalLM(config).eval())


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]


def test_greedy_texts_are_what_generate_writes(target, tmp_path):
    tokenizer = byte_tokenizer()
    texts = [Text("", text="def f", prompt="def f"), Text("", text="import")]
    rewrite(target, tokenizer, texts, tmp_path / "o.jsonl", Writing(temperature=0, new_tokens=6, prompt_tokens=50))
    for record, prompt in zip(lines(tmp_path / "o.jsonl"), ("def f", "import"), strict=True):
        tokens = generated(target.model, tokenizer(prompt)["input_ids"], 6)
        asked = tokenizer(prompt)["input_ids"]
        assert record == {
            "text": prompt + tokenizer.decode(tokens, skip_special_tokens=True),
            "prompt": prompt,
            "cut": 256 not in tokens,
            "tokenizer": tokenizer_hash(tokenizer),
            "sequences": [{"tokens": asked + tokens, "learnt": [[len(asked), len(asked + tokens)]]}],
        }


@pytest.mark.parametrize("template", [CHATML, None])
def test_every_turn_is_answered_after_the_answers_before(target, tmp_path, template):
    tokenizer = byte_tokenizer(template)
    texts = [
        Text("", turns=(("system", "s"), ("user", "one"), ("assistant", "thrown away"), ("user", "two"))),
        Text("", turns=(("user", "three"),)),
        Text("", turns=(("assistant", "no question"),)),
    ]
    rewrite(target, tokenizer, texts, tmp_path / "o.jsonl", Writing(temperature=0, new_tokens=4, batch=2))
    first, second = (record["messages"] for record in lines(tmp_path / "o.jsonl"))
    assert [m["role"] for m in first] == ["system", "user", "assistant", "user", "assistant"]
    assert [m["role"] for m in second] == ["user", "assistant"]
    said = up_to_answer(tokenizer, first[:4], "")
    assert first[2]["content"] in tokenizer.decode(said)
    assert "thrown away" not in tokenizer.decode(said)
    answer = tokenizer.decode(generated(target.model, said, 4), skip_special_tokens=True)
    assert first[4]["content"] == answer.split("<|end|>")[0]
    assert [text.turns[0][0] for text in read_texts([tmp_path / "o.jsonl"])] == ["system", "user"]


@pytest.mark.parametrize("template", [CHATML, FORGETS, None])
def test_what_is_learnt_is_what_was_written(target, tmp_path, template):
    """Token for token after what was asked, whatever the template makes of earlier answers."""
    tokenizer = byte_tokenizer(template)
    spelling = Target(copy.deepcopy(target.model))
    letters = torch.tensor(tokenizer("abcdefghijklmnopqrstuvwxyz")["input_ids"])
    others = torch.ones(300, dtype=torch.bool).index_fill(0, letters, False)
    spelling.model.lm_head.weight.data[others] = 0  # what is written then reads back as it was
    turns = tuple(("user", word) for word in ("one", "two", "three"))
    texts = [Text("", turns=turns), Text("", text="def f", prompt="def f")]
    rewrite(spelling, tokenizer, texts, tmp_path / "o.jsonl", Writing(temperature=0, new_tokens=4, batch=2))
    chat, text = read_texts([tmp_path / "o.jsonl"])
    assert len(chat.written) == (3 if template == FORGETS else 1)
    found = 0
    for each in encode(tokenizer, [chat, text]):
        starts = [i for i, learnt in enumerate(each.learnt) if learnt and not each.learnt[i - 1]]
        for start in starts:
            written = generated(spelling.model, each.tokens[:start], 4)
            stop = start + len(written)
            assert each.tokens[start:stop] == written
            assert all(each.learnt[start:stop])
            assert not any(each.learnt[stop : stop + 1])  # nothing is added to what was cut
            found += 1
    assert found == 4


def test_a_space_between_prompt_and_answer_is_kept(target, tmp_path):
    """Decoders of Llama 2's kind drop the first one of what they are given."""
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    space = tokenizer(" ")["input_ids"][0]
    spaced = Target(copy.deepcopy(target.model))
    spaced.model.lm_head.weight.data[space] *= 30  # now and then a space is the first choice
    texts = [Text("", text=letter, prompt=letter) for letter in "abcdefgh"]
    rewrite(spaced, tokenizer, texts, tmp_path / "o.jsonl", Writing(temperature=0, new_tokens=3))
    records = lines(tmp_path / "o.jsonl")
    begun = [record for record in records if record["sequences"][0]["tokens"][1] == space]
    assert begun
    for record in begun:
        assert record["text"].startswith(record["prompt"] + " ")


def test_a_token_that_the_target_lacks_is_named(target, tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([f"<{i}>" for i in range(60)])
    texts = [Text("", text="fine", prompt="fine"), Text("a.jsonl, line 2", text="<59>", prompt="<59>")]
    with pytest.raises(ExecutorError, match=r"a.jsonl, line 2: token \d+, the target's vocabulary has 300"):
        rewrite(target, tokenizer, texts, tmp_path / "o.jsonl", WRITING)
    assert not list(tmp_path.iterdir())


def test_a_conversation_ends_where_the_context_does(target, tmp_path):
    """And one whose first answer has no room is named before anything is written."""
    tokenizer, limit = byte_tokenizer(), target.context_limit
    turns = (("user", "one"), ("user", "x" * (limit - 12)), ("user", "three"))
    rewrite(target, tokenizer, [Text("", turns=turns)], tmp_path / "o.jsonl", WRITING)
    (record,) = lines(tmp_path / "o.jsonl")
    assert [m["role"] for m in record["messages"]] == ["user", "assistant"]
    fine, place = Text("", text="fine", prompt="fine"), "long.jsonl, line 3"
    for long in (Text(place, turns=(("user", "x" * limit),)), Text(place, text="a" * limit, prompt="a" * limit)):
        with pytest.raises(ExecutorError, match=f"{place}: its .* exceed the target's context of {limit}"):
            rewrite(target, tokenizer, [fine, long], tmp_path / "p.jsonl", WRITING)
        assert not list(tmp_path.glob("p.jsonl*"))


def test_an_interruption_changes_nothing(target, tmp_path):
    tokenizer = byte_tokenizer()
    texts = [Text("", text=letter, prompt=letter) for letter in "abcdefghijklmnopqrs"]
    rewrite(target, tokenizer, texts, tmp_path / "whole.jsonl", WRITING)
    count = 0

    def stop(pieces: int) -> None:
        nonlocal count
        count += pieces
        if count == 11:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rewrite(target, tokenizer, texts, tmp_path / "parts.jsonl", WRITING, progress=stop)
    assert not (tmp_path / "parts.jsonl").exists()
    seen = []
    rewrite(target, tokenizer, texts, tmp_path / "parts.jsonl", WRITING, progress=seen.append)
    assert seen == [11] + [1] * 8
    assert (tmp_path / "parts.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["parts.jsonl", "whole.jsonl"]


def test_seeds_and_chunks_draw_anew(target, tmp_path):
    texts = [Text("", text="a", prompt="a")] * 20
    for seed in (0, 1):
        writing = Writing(temperature=1.0, new_tokens=6, batch=2, seed=seed)
        rewrite(target, byte_tokenizer(), texts, tmp_path / f"{seed}", writing)
    zero, one = lines(tmp_path / "0"), lines(tmp_path / "1")
    assert zero != one
    assert zero[:8] != zero[8:16]


def test_what_was_begun_otherwise_is_not_gone_on_with(target, tmp_path):
    texts = [Text("", text=letter, prompt=letter) for letter in "abc"]

    def stop(pieces: int) -> None:
        if pieces:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rewrite(target, byte_tokenizer(), texts, tmp_path / "o", WRITING, progress=stop)
    other = Writing(temperature=0.5, new_tokens=6, prompt_tokens=4, batch=2)
    with pytest.raises(UsageError, match=r"o\.work was begun with writing .*remove it"):
        rewrite(target, byte_tokenizer(), texts, tmp_path / "o", other)
    with pytest.raises(UsageError, match="asked"):
        rewrite(target, byte_tokenizer(), texts[:2], tmp_path / "o", WRITING)
    (tmp_path / "o.work").write_text("no\n")
    with pytest.raises(UsageError, match="not JSON"):
        rewrite(target, byte_tokenizer(), texts, tmp_path / "o", WRITING)
