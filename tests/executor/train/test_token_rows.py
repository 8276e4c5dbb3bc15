"""Texts as people have them: read, refused with the place named, masked, and put into rows."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AddedToken, PreTrainedTokenizerFast

from executor.train.token_rows import (
    Encoded,
    Rows,
    Text,
    encode,
    frequent_tokens,
    packed,
    padded,
    read_texts,
    tokenizer_hash,
)
from treeopt.errors import ExecutorError

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As Qwen3's: only the last answer is opened by a thought, and contents are stripped.
THINKS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and loop.last %}<think></think>{% endif %}"
    "{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As Mistral's: there is no sign of an answer but the end of the question; thoughts open a generation alone.
DROPS = (
    "{% for m in messages %}{% if m['role'] == 'user' %}[Q]{{ m['content'] }}[/Q]{% else %}{{ m['content'] }}<|end|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<think>{% endif %}"
)
LINES = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
SHOUTS = "{% for m in messages %}{{ m['content'] | upper }}{% endfor %}"
PICKY = "{{ raise_exception('only users may speak') }}"


def byte_tokenizer(template: str | None = None) -> PreTrainedTokenizerFast:
    """One token a byte, and a few special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    found = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", clean_up_tokenization_spaces=False)
    found.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    found.chat_template = template
    return found


def learnt(tokenizer: PreTrainedTokenizerFast, text: Text) -> tuple[str, str]:
    """The whole, and what of it is learnt, pieces apart by |."""
    (found,) = encode(tokenizer, [text])
    pieces, last = [], False
    for token, mask in zip(found.tokens, found.learnt, strict=True):
        if mask:
            pieces += [[]] if not last else []
            pieces[-1].append(token)
        last = mask
    return tokenizer.decode(found.tokens), "|".join(tokenizer.decode(piece) for piece in pieces)


TURNS = (("user", "user?"), ("assistant", "a"), ("user", "more"), ("assistant", "assistant é"))


@pytest.mark.parametrize(
    ("template", "due"),
    [
        (CHATML, "a<|im_end|>|assistant é<|im_end|>"),
        (THINKS, "a<|im_end|>|<think></think>assistant é<|im_end|>"),
        (DROPS, "[/Q]a<|end|>|[/Q]assistant é<|end|>"),
        (LINES + "{% if add_generation_prompt %}assistant: {% endif %}", "a|assistant é"),
        (None, "a<|end|>|assistant é<|end|>"),
    ],
)
def test_what_the_assistant_says_is_learnt(template, due):
    whole, found = learnt(byte_tokenizer(template), Text("here", turns=TURNS))
    assert found == due
    assert "user?" in whole


def test_a_conversation_that_the_assistant_opens():
    turns = (("assistant", "hello"), ("user", "x"), ("assistant", "y"))
    assert learnt(byte_tokenizer(CHATML), Text("here", turns=turns))[1].endswith("hello<|im_end|>|y<|im_end|>")


def test_the_end_of_a_turn_may_be_any_special_token():
    """As Gemma 3's and Phi-3's, which have no part to play besides."""
    tokenizer = byte_tokenizer("{% for m in messages %}<r>{{ m['content'] }}<e>\n{% endfor %}")
    tokenizer.add_tokens([AddedToken(t, special=True) for t in ("<r>", "<e>")])
    assert not {"<r>", "<e>"} & set(tokenizer.all_special_tokens)
    found = learnt(tokenizer, Text("here", turns=(("user", "q"), ("assistant", "a"))))
    assert found == ("<r>q<e>\n<r>a<e>\n", "<r>a<e>")


def test_what_stands_before_an_assistant_that_opens_is_not_learnt():
    opens = "{% if messages[0]['role'] != 'system' %}Be good.{% endif %}" + CHATML
    turns = (("assistant", "hello"), ("user", "x"), ("assistant", "y"))
    assert learnt(byte_tokenizer(opens), Text("here", turns=turns))[1] == "hello<|im_end|>|y<|im_end|>"


def test_tokens_are_taken_as_they_were_written(tmp_path):
    """Of this tokenizer and template; for another the text counts."""
    tokenizer = byte_tokenizer(CHATML)
    record = {
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        "tokenizer": tokenizer_hash(tokenizer),
        "sequences": [{"tokens": [5, 6, 7, 8], "learnt": [[1, 2], [3, 4]]}, {"tokens": [9], "learnt": []}],
    }
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps(record) + "\n" + json.dumps(record | {"tokenizer": "other"}) + "\n")
    one, two, three = encode(tokenizer, read_texts([file]))
    assert one == Encoded([5, 6, 7, 8], [False, True, False, True])
    assert two == Encoded([9], [False])
    assert tokenizer.decode(three.tokens).startswith("<|im_start|>user")
    assert encode(byte_tokenizer("{# another #}" + CHATML), read_texts([file]))[0] == three


def test_sequences_of_something_else_are_left_alone(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"text": "a protein", "sequences": ["MKV"]}))
    assert read_texts([file]) == [Text(f"{file}, line 1", text="a protein")]


@pytest.mark.parametrize(
    ("sequence", "words"),
    [
        ({"tokens": [1]}, "must be an object"),
        ({"tokens": [-1], "learnt": []}, "`tokens` must be a list of token ids"),
        ({"tokens": [1, 2], "learnt": [[1, 3]]}, r"learnt\[0\] must lie .* within 2 tokens"),
        ({"tokens": [1, 2], "learnt": [[1, 2], [0, 1]]}, r"learnt\[1\] must lie after 2"),
    ],
)
def test_sequences_that_are_none(tmp_path, sequence, words):
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"text": "a", "tokenizer": "x", "sequences": [sequence]}))
    with pytest.raises(ExecutorError, match=f"line 1: sequences.0.: {words}"):
        read_texts([file])


def test_templates_that_change_or_refuse_what_is_said():
    for template, word in ((SHOUTS, "turn 1"), (PICKY, "only users may speak")):
        with pytest.raises(ExecutorError, match=word) as caught:
            encode(byte_tokenizer(template), [Text("chats.jsonl, line 7", turns=TURNS)])
        assert "chats.jsonl, line 7" in str(caught.value)


def test_of_a_text_what_follows_its_prompt_is_learnt():
    tokenizer = byte_tokenizer(CHATML)
    assert learnt(tokenizer, Text("", text="ab cd", prompt="ab")) == ("ab cd<|end|>", " cd<|end|>")
    assert learnt(tokenizer, Text("", text="ab cd")) == ("ab cd<|end|>", "ab cd<|end|>")
    assert learnt(tokenizer, Text("", text="ab cd", cut=True))[1] == "ab cd"


def test_a_tokenizer_must_tell_where_its_tokens_stand():
    class Slow:
        is_fast = False

    with pytest.raises(ExecutorError, match="fast"):
        encode(Slow(), [])


def test_forms_of_sharegpt_and_specforge(tmp_path):
    """Dumps name assistants by their makers, and hold conversations in which nothing is said; SpecForge spells anew."""
    spelt = [
        {"role": "developer", "content": "s"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a"},
    ]
    records = [
        {"id": "0", "conversations": []},
        {"id": "1", "conversations": [{"from": "human", "value": "q"}, {"from": "bing", "value": "a"}]},
        {"id": "2", "conversations": spelt},
    ]
    (tmp_path / "a.json").write_text(json.dumps(records))
    said = (("user", "q"), ("assistant", "a"))
    found = read_texts([tmp_path / "a.json"])
    assert [text.turns for text in found] == [said, (("system", "s"), *said)]
    assert [text.where for text in found] == [f"{tmp_path / 'a.json'}, record {n}" for n in (1, 2)]


def test_folders_hold_texts_in_order(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("no text")
    (tmp_path / "b.txt").write_text("two")
    (tmp_path / "a.md").write_text("one")
    (tmp_path / "cached.pyc").write_bytes(b"\xa7\0")
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "sub" / "c.jsonl").write_text('{"text": "three"}\n')
    assert [text.text for text in read_texts([tmp_path])] == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", '{"text": "x"}\n{"text": ', ["line 2", "not JSON"]),
        ("a.jsonl", '{"text": 3}', ["line 1", "`text`", "a string"]),
        ("a.jsonl", '{"text": "ab", "prompt": "b"}', ["`text` must begin with `prompt`"]),
        ("a.jsonl", '{"conversations": [{"from": "cat", "value": "x"}]}', ["conversations[0]", "human", "'cat'"]),
        ("a.json", '[{"text": "x"}, 3]', ["record 1", "found a value that is no object: int"]),
        ("a.txt", b"\xff", ["text cannot be read", "utf-8"]),
    ],
)
def test_what_is_wrong_is_named(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ExecutorError) as caught:
        read_texts([path])
    assert all(word in str(caught.value) for word in [str(path), *words]), caught.value


def test_rows():
    texts = [Encoded([1, 2, 3], [False, True, True]), Encoded([4, 5, 6, 7], [True] * 4)]
    rows = packed(texts, length=2)
    assert rows.tokens.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert rows.mask.tolist() == [[False, True], [True, True], [True, True]]
    rows = padded(texts, length=3)
    assert rows.tokens.tolist() == [[1, 2, 3], [4, 5, 6]]
    rows = padded(texts, length=5)
    assert rows.tokens.tolist() == [[1, 2, 3, 0, 0], [4, 5, 6, 7, 0]]
    assert rows.mask.tolist() == [[False, True, True, False, False], [True, True, True, True, False]]
    short = packed(texts, length=10)
    assert short.tokens.tolist() == [[1, 2, 3, 4, 5, 6, 7, 0, 0, 0]]
    assert short.mask.sum() == 6


def test_splitting_rows():
    rows = Rows(np.arange(20).reshape(10, 2))
    train, held = rows.split(0.25)
    assert (len(train), len(held)) == (8, 2)
    assert train.tokens.tolist() + held.tokens.tolist() == rows.tokens.tolist()
    assert [len(part) for part in rows.split(0.01)] == [9, 1]
    assert [len(part) for part in rows.split(0)] == [10, 0]
    assert [len(part) for part in Rows(np.zeros((1, 2), np.int64)).split(0.5)] == [1, 0]


def test_tokens_that_are_learnt_most_often():
    rows = Rows(np.array([[5, 5, 5, 2], [2, 3, 3, 9]]), np.array([[True, True, True, False], [True, True, True, True]]))
    assert frequent_tokens(rows, 2, 12) == [3, 5]
    assert frequent_tokens(rows, 3, 12) == [2, 3, 5]
    assert frequent_tokens(rows, 99, 12) == list(range(12))
