"""Records as other data sets have them: read as the conversations that they are, by --data and --prompts alike."""

import json

import pytest

from executor.prompts.data_files import items
from executor.prompts.message_parts import Report
from executor.prompts.prompt_files import read_prompts
from executor.train.token_rows import read_texts
from treeopt.errors import ExecutorError

TURNS = (("user", "Hi"), ("assistant", "Hello"))
MESSAGES = [{"role": role, "content": text} for role, text in TURNS]
FORMS = {
    "rendered": {"messages": MESSAGES, "text": "<user>Hi<assistant>Hello"},
    "rendered, TRL": {"text": "<user>Hi<assistant>Hello", "prompt": MESSAGES[:1], "completion": MESSAGES[1:]},
    "turns with roles": {"turns": MESSAGES},
    "turns, counted": {"turns": 1, "question": "Hi", "answer": "Hello"},
    "a class": {"messages": MESSAGES, "category": 3, "domain": 4},
    "GSM8K": {"question": "Hi", "answer": "Hello"},
    "prompt and response": {"prompt": "Hi", "response": "Hello"},
    "LMSYS-Chat-1M": {"conversation_id": "a", "model": "m", "conversation": MESSAGES, "turn": 1},
    "TRL": {"prompt": MESSAGES[:1], "completion": MESSAGES[1:]},
    "OpenAI's batches": {"custom_id": "a", "method": "POST", "body": {"model": "m", "messages": MESSAGES}},
    "other roles": {"messages": [{"role": "human", "content": "Hi"}, {"role": "ai", "content": "Hello"}]},
}


def written(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_the_same_conversation(tmp_path, name):
    path = written(tmp_path / "data.jsonl", FORMS[name])
    assert [text.turns for text in read_texts([path])] == [TURNS]
    assert [prompt.turns for prompt in read_prompts(path)] == [TURNS[:1]]


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "def f():", "canonical_solution": "pass"},
        {"prompt": "def f():", "output_tokens": 64},
        {"prompt": "def f():", "completion": "pass"},
        {"body": {"model": "m", "prompt": "def f():"}},
    ],
)
def test_a_prompt_alone_is_a_text_to_continue(tmp_path, record):
    path = written(tmp_path / "a.jsonl", record)
    assert [(prompt.text, prompt.turns) for prompt in read_prompts(path)] == [("def f():", ())]


def test_a_completion_is_learnt(tmp_path):
    (text,) = read_texts([written(tmp_path / "a.jsonl", {"prompt": "def f():", "completion": "pass"})])
    assert (text.text, text.prompt, text.answered) == ("def f():pass", "def f():", True)
    assert not read_texts([written(tmp_path / "a.jsonl", {"prompt": "def f():"})])[0].answered


def test_lists_of_questions_are_turns_of_which_the_first_is_asked(tmp_path):
    for record in ({"prompt": ["Hi", "And?"]}, {"turns": [{"content": "Hi"}, {"content": "And?"}]}):
        path = written(tmp_path / "b.jsonl", {"question_id": "a"} | record)
        assert read_texts([path])[0].turns == (("user", "Hi"), ("user", "And?"))
        report = Report()
        assert read_prompts(path, report)[0].turns == (("user", "Hi"),)
        assert report.remarks == [
            "data: questions after the first (acceptance on later turns may differ) left out of 1 record"
        ]
    report = Report()
    read_prompts(written(tmp_path / "b.jsonl", {"prompt": ["Hi"]}), report)
    assert not report.remarks


def test_the_texts_of_a_batch_are_as_many_requests(tmp_path):
    path = written(tmp_path / "a.jsonl", {"url": "/v1/completions", "body": {"prompt": ["def f():", "x ="]}})
    assert [(prompt.text, prompt.turns) for prompt in read_prompts(path)] == [("def f():", ()), ("x =", ())]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"prompt": ""}, "`prompt` must be a text or a list of turns, found ''"),
        ({"prompt": [1, 2]}, "`prompt` holds numbers: token ids are not read"),
        ({"body": {"input": "a"}, "url": "b"}, "found input"),
    ],
)
def test_what_is_no_question_is_named_as_the_file_has_it(tmp_path, record, message):
    with pytest.raises(ExecutorError, match=message):
        read_prompts(written(tmp_path / "a.jsonl", record))


def test_tools_and_system_belong_to_the_question(tmp_path):
    orca = {"question": "Hi", "response": "Hello", "system_prompt": "Be brief."}
    assert read_texts([written(tmp_path / "a.jsonl", orca)])[0].turns == (("system", "Be brief."), *TURNS)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    batch = {"custom_id": "a", "body": {"messages": MESSAGES[:1], "tools": tools}}
    assert json.loads(read_prompts(written(tmp_path / "c.jsonl", batch))[0].extras)["tools"] == tools


@pytest.mark.parametrize(
    "record",
    [
        {"id": "a", "conversations": []},
        {"messages": []},
        {"turns": []},
    ],
)
def test_empty_conversations_are_skipped(tmp_path, record):
    path = written(tmp_path / "a.jsonl", record, FORMS["GSM8K"])
    for read in (lambda report: read_texts([path], report), lambda report: read_prompts(path, report)):
        report = Report()
        assert len(read(report)) == report.records == 1
        assert report.remarks == [f"data: 1 record skipped: {path}, line 1: an empty conversation"]
    path = written(tmp_path / "a.jsonl", record | {"text": "a text"})
    assert [text.text for text in read_texts([path])] == [prompt.text for prompt in read_prompts(path)]
    path = written(tmp_path / "a.jsonl", record)
    for read in (lambda: read_texts([path]), lambda: read_prompts(path)):
        with pytest.raises(ExecutorError, match=r"no (text here|prompts); data: 1 record skipped"):
            read()


def test_fields_that_were_not_read_are_reported(tmp_path):
    report = Report()
    read_texts([written(tmp_path / "a.jsonl", FORMS["GSM8K"] | {"level": 3}, FORMS["LMSYS-Chat-1M"])], report)
    assert report.unread == {"level": 1, "conversation_id": 1, "model": 1, "turn": 1}


@pytest.mark.parametrize("name", ["a.csv", "a.TSV"])
def test_tables_of_cells_are_refused(tmp_path, name):
    path = tmp_path / name
    path.write_text("question,answer\nHi,Hello\n")
    with pytest.raises(ExecutorError) as caught:
        read_prompts(path)
    assert str(caught.value) == f"{path}: a table of cells is not read: write its rows as JSON lines or parquet"
    report = Report()
    (tmp_path / "notes.txt").write_text("a text")
    assert [item.text for item in items([tmp_path], report)] == ["a text"]
    assert report.passed_over == [("a table of cells: write its rows as JSON lines or parquet", name)]
