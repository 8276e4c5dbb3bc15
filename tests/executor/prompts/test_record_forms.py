"""Records as other data sets have them: read as the conversations that they are, by --data and --prompts alike."""

import json

import pytest

from executor.prompts.data_files import items
from executor.prompts.prompt_files import read_prompts
from executor.prompts.reading_report import Report
from executor.train.text_files import read_texts
from treeopt.errors import ExecutorError

TURNS = (("user", "Hi"), ("assistant", "Hello"))
MESSAGES = [{"role": role, "content": text} for role, text in TURNS]
FORMS = {
    "Alpaca": {"instruction": "Hi", "input": "", "output": "Hello"},
    "Alpaca, without input": {"instruction": "Hi", "output": "Hello", "text": None},
    "Dolly": {"instruction": "Hi", "context": "", "response": "Hello", "category": "chat"},
    "GSM8K": {"question": "Hi", "answer": "Hello"},
    "query": {"query": "Hi", "response": "Hello"},
    "prompt and response": {"prompt": "Hi", "response": "Hello"},
    "UltraChat": {"id": "0", "data": ["Hi", "Hello"]},
    "LMSYS-Chat-1M": {"conversation_id": "a", "model": "m", "conversation": MESSAGES, "turn": 1},
    "BELLE": {"conversation": [{"human": "Hi", "assistant": "Hello"}]},
    "TRL": {"prompt": MESSAGES[:1], "completion": MESSAGES[1:]},
    "OpenAI's batches": {"custom_id": "a", "method": "POST", "body": {"model": "m", "messages": MESSAGES}},
    "other roles": {"messages": [{"role": "human", "content": "Hi"}, {"role": "ai", "content": "Hello"}]},
}


def written(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_every_form_is_the_same_conversation(tmp_path, name, suffix):
    path = written(tmp_path / f"data{suffix}", FORMS[name])
    assert [text.turns for text in read_texts([path])] == [TURNS]
    assert [prompt.turns for prompt in read_prompts(path)] == [TURNS[:1]]


def test_what_belongs_to_the_question_is_read_with_it(tmp_path):
    asked = {"instruction": "Translate.", "input": "Hallo", "output": "Hi", "system_prompt": "Be brief."}
    (text,) = read_texts([written(tmp_path / "a.jsonl", asked)])
    assert text.turns == (("system", "Be brief."), ("user", "Translate.\n\nHallo"), ("assistant", "Hi"))
    hard = {"question_id": "a", "turns": [{"content": "Hi"}, {"content": "And?"}]}  # Arena-Hard
    path = written(tmp_path / "b.jsonl", hard)
    assert read_texts([path])[0].turns == (("user", "Hi"), ("user", "And?"))
    assert read_prompts(path)[0].turns == (("user", "Hi"),)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    batch = {"custom_id": "a", "body": {"messages": MESSAGES[:1], "tools": tools}}
    assert json.loads(read_prompts(written(tmp_path / "c.jsonl", batch))[0].extras)["tools"] == tools


def test_fields_that_were_not_read_are_reported(tmp_path):
    report = Report()
    read_texts([written(tmp_path / "a.jsonl", FORMS["GSM8K"] | {"level": 3}, FORMS["LMSYS-Chat-1M"])], report)
    assert report.unread == {"level": 1, "conversation_id": 1, "model": 1, "turn": 1}


@pytest.mark.parametrize(("suffix", "between"), [(".csv", ","), (".tsv", "\t")])
def test_tables_of_cells_are_records_and_no_text(tmp_path, suffix, between):
    path = tmp_path / f"data{suffix}"
    path.write_text(f'question{between}answer{between}n\nHi{between}"Hello"{between}1\n', "utf-8")
    assert [text.turns for text in read_texts([path])] == [TURNS]
    assert [prompt.turns for prompt in read_prompts(path)] == [TURNS[:1]]
    path.write_text(f"a{between}b\n1{between}2\n", "utf-8")
    for read in (lambda: read_texts([path]), lambda: read_prompts(path)):
        with pytest.raises(ExecutorError, match=rf"data\{suffix}, line 2: must have `text`, .*, found a, b"):
            read()
    path.write_text("question\n" + '"' + "x" * 200_000 + '"\n', "utf-8")
    with pytest.raises(ExecutorError, match="line 2: not a table: field larger than field limit"):
        read_texts([path])
    report = Report()
    (tmp_path / "notes.txt").write_text("a text")
    assert [item.text for item in items([tmp_path], report)] == ["a text"]
    assert report.passed_over == [("a table of cells; name the file to read it", f"data{suffix}")]


def test_one_record_may_fill_a_file(tmp_path):
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"messages": MESSAGES}, indent=2))
    assert [text.turns for text in read_texts([path])] == [TURNS]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"prompt": "def f():", "canonical_solution": "pass"}, "found prompt, canonical_solution"),
        ({"prompt": "a", "completion": "b"}, "found prompt, completion"),
        ({"chosen": MESSAGES, "rejected": MESSAGES}, "found chosen, rejected"),
        ({"input_ids": [1, 2]}, "found input_ids"),
        ({"conversation": []}, "found conversation"),
        ({"data": [1, 2]}, "found data"),
        ({"body": "x"}, "found body"),
        ({"conversation": [{"human": "Hi"}]}, r"messages\[0\]: must be an object with `from` and `value` or"),
        ({"question": "Hi", "answer": 5, "messages": None}, None),
        ("a string", "found a value that is no object: str"),
        ({"messages": [{"role": "user", "content": None}]}, r"messages\[0\]: `content` must be a string, found None"),
    ],
)
def test_what_is_no_conversation_says_what_was_found(tmp_path, record, words):
    path = written(tmp_path / "a.jsonl", record)
    if words is None:  # an answer that is no text is left out, and reported
        report = Report()
        assert read_texts([path], report)[0].turns == TURNS[:1]
        assert report.unread == {"answer": 1}
        return
    for read in (lambda: read_texts([path]), lambda: read_prompts(path)):
        with pytest.raises(ExecutorError, match=words):
            read()


def test_lines_in_utf_16_are_named(tmp_path):
    (tmp_path / "a.jsonl").write_bytes((json.dumps(FORMS["Alpaca"]) + "\n").encode("utf-16"))
    with pytest.raises(ExecutorError, match=r"a\.jsonl: text cannot be read: a text in UTF-16: write it in UTF-8"):
        read_prompts(tmp_path / "a.jsonl")
