"""Prompts: texts to continue, conversations to answer, and what reaches the target of them."""

import json
import shutil

import pytest
from transformers import AutoTokenizer

from executor.prompts.prompt_files import Prompt, encode, read_prompts
from executor.train.count_ngrams import read_texts
from tests.executor.train.test_token_rows import CHATML, byte_tokenizer
from tests.helpers.command_line import collect, read_json, refused, run
from tests.helpers.command_line import tiny as tiny
from treeopt.errors import ExecutorError
from treeopt.traces.trace_files import load_trace

USER = [{"role": "user", "content": "one"}]
ANSWERED = [*USER, {"role": "assistant", "content": "two"}]


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


@pytest.fixture
def chatty(tiny, tmp_path):
    """The tiny target with a chat template."""
    folder = shutil.copytree(tiny / "target", tmp_path / "chatty")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }};{% endfor %}a:"
    tokenizer.save_pretrained(folder)
    return folder


def test_conversations_end_with_what_the_user_says(tmp_path):
    path = write(
        tmp_path / "p.jsonl",
        {"text": "def f", "domain": "code"},
        {"messages": [{"role": "system", "content": "s"}, *ANSWERED], "domain": "chat"},
        {
            "conversations": [
                {"from": "human", "value": "a"},
                {"from": "gpt", "value": "b"},
                {"from": "human", "value": "c"},
            ]
        },
        {"question_id": 81, "category": "writing", "turns": ["first", "second"]},
    )
    found = read_prompts(path)
    assert [(p.text, p.domain, p.turns) for p in found] == [
        ("def f", "code", ()),
        ("", "chat", (("system", "s"), ("user", "one"))),
        ("", "", (("user", "a"), ("assistant", "b"), ("user", "c"))),
        ("", "writing", (("user", "first"),)),
    ]
    assert found[3].where == f"{path}, line 4"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"messages": [{"role": "judge", "content": "a"}]}, r"messages\[0\]: `role` must be one of"),
        ({"messages": [{"role": "system", "content": "a"}]}, "the last turn before an answer must be the user's"),
        ({"turns": [5]}, r"turns\[0\] must be a string"),
        ({"text": None}, r"must have `text`, .*, found text null \(--leave-out"),
        ({"instruction": "a"}, r"must have `text`, `messages`, .*, found instruction \(--leave-out"),
    ],
)
def test_conversations_without_a_question_are_refused(tmp_path, record, message):
    path = write(tmp_path / "p.jsonl", {"text": "a"}, record)
    with pytest.raises(ExecutorError, match=message) as error:
        read_prompts(path)
    assert f"{path}, line 2" in str(error.value)


def test_turns_with_roles_are_honoured(tmp_path):
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"from": "human", "value": "c"}]
    path = write(tmp_path / "p.jsonl", {"turns": said}, {"turns": [said[0], said[2]]}, {"turns": said[:2]})
    assert [prompt.turns for prompt in read_prompts(path)] == [
        (("user", "a"), ("assistant", "b"), ("user", "c")),
        (("user", "a"),),  # the next question follows an answer that is not there
        (("user", "a"),),
    ]


def test_fields_that_are_null_are_absent_and_a_text_is_a_text(tmp_path):
    path = write(
        tmp_path / "p.jsonl",
        {"text": "def f", "domain": None, "turns": 3},
        {"text": None, "messages": USER, "conversations": None, "category": None},
    )
    assert [(p.text, p.domain, p.turns) for p in read_prompts(path)] == [
        ("def f", "", ()),
        ("", "", (("user", "one"),)),
    ]


def test_templates_that_name_today_give_the_same_on_every_day():
    template = "{{ strftime_now('%d %b %Y') }}{{ strftime_now( \"it's %Y-%m-%d\" ) }}:{{ messages[0]['content'] }}"
    found = encode(byte_tokenizer(template), [Prompt(turns=(("user", "one"),))])
    assert byte_tokenizer().decode(found[0]) == "26 Jul 2024it's 2024-07-26:one"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ 1 // (messages|length - 1) }}", "p, line 1: .* refuses this conversation: .*zero"),
        ("{{ '{0}{1}'.format('a') }}", "p, line 1: .* refuses this conversation"),
        ("{% for m in messages %}{% endfor %}", "p, line 1: .* renders this conversation as nothing"),
    ],
)
def test_templates_that_fail_are_errors(template, message):
    with pytest.raises(ExecutorError, match=message):
        encode(byte_tokenizer(template), [Prompt(turns=(("user", "one"),), where="p, line 1")])


def test_conversations_go_through_the_chat_template():
    tokenizer = byte_tokenizer(CHATML)
    said = Prompt(turns=(("user", "one"), ("assistant", "two"), ("user", "three")))
    texts = [Prompt("<plain"), said, Prompt("other")]
    messages = [{"role": role, "content": content} for role, content in said.turns]
    due = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert [tokenizer.decode(tokens) for tokens in encode(tokenizer, texts)] == ["<plain", due, "other"]
    assert due.endswith("<|im_start|>assistant\n")


def test_without_a_template_turns_are_joined():
    tokenizer = byte_tokenizer()
    said = Prompt(turns=(("user", "one"), ("assistant", "two"), ("user", "three")))
    assert tokenizer.decode(encode(tokenizer, [said])[0]) == "one\ntwo<|end|>\nthree\n"


def test_texts_and_conversations_are_the_same_prompts(tiny, chatty, tmp_path):
    """`--chat`, a conversation, and the rendered text by hand ask the same."""
    words = ("decode", "--target", chatty, "--new-tokens", "8", "--json")
    said = [
        run(*words, "--chat", "--prompt", "one"),
        run(*words, "--prompts", write(tmp_path / "c.jsonl", {"messages": ANSWERED})),
        run(*words, "--chat", "--prompts", write(tmp_path / "t.jsonl", {"text": "one"})),
        run(*words, "--prompt", "u:one;a:"),
    ]
    found = [read_json(result.stdout) for result in said]
    assert len({tuple(record["requests"][0]["tokens"]) for record in found}) == 1
    assert len({record["meta"]["prompts_sha256"] for record in found}) == 1
    plain = read_json(run(*words, "--prompt", "one").stdout)
    assert plain["meta"]["prompts_sha256"] != found[0]["meta"]["prompts_sha256"]


def test_traces_of_conversations_keep_their_domains(tiny, chatty, tmp_path):
    path = write(tmp_path / "p.jsonl", {"turns": ["one"], "category": "math"}, {"text": "two", "domain": "code"})
    result = collect(tiny, tmp_path / "trace.npz", target=chatty, prompts=path)
    assert result.exit_code == 0, result.stderr
    trace = load_trace(tmp_path / "trace.npz")
    assert [trace.domain_names[i] for i in trace.domain] == ["math", "code"]


def test_a_template_that_is_missing_is_told_of(tiny, tmp_path):
    path = write(tmp_path / "p.jsonl", {"messages": USER})
    words = ("decode", "--target", tiny / "target", "--new-tokens", "4")
    result = run(*words, "--prompts", path)
    assert result.exit_code == 0
    assert "the tokenizer has no chat template: turns are joined by line ends" in result.stderr
    refused(run(*words, "--chat", "--prompt", "one"), "--chat", "no chat template", code=2)


@pytest.mark.parametrize("name", ["p.jsonl", "p.txt", "p.JSON"])
def test_ngrams_are_counted_from_texts(tmp_path, name):
    path = write(tmp_path / name, {"text": "a"}, {"text": "b", "instruction": "c", "output": "d"})
    assert read_texts(path) == ["a", "b"]
    path = write(tmp_path / name, {"text": "a"}, {"messages": USER})
    with pytest.raises(ExecutorError, match="line 2: a conversation; n-grams are counted from `text`"):
        read_texts(path)
