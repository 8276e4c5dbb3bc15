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
    "Alpaca, without instruction": {"instruction": "", "input": "Hi", "output": "Hello"},
    "Alpaca, rendered": {"instruction": "Hi", "output": "Hello", "text": "### Instruction:\nHi"},
    "rendered": {"messages": MESSAGES, "text": "<user>Hi<assistant>Hello"},
    "rendered, TRL": {"text": "<user>Hi<assistant>Hello", "prompt": MESSAGES[:1], "completion": MESSAGES[1:]},
    "turns with roles": {"turns": MESSAGES},
    "turns, counted": {"turns": 1, "question": "Hi", "answer": "Hello"},
    "a class": {"messages": MESSAGES, "category": 3, "domain": 4},
    "Dolly": {"instruction": "Hi", "context": "", "response": "Hello", "category": "chat"},
    "LLaMA-Factory": {"instruction": "Hi", "output": "Hello", "history": []},
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
    dolly = {"instruction": "Where?", "context": "Rome is in Italy.", "response": "Italy"}
    (text,) = read_texts([written(tmp_path / "a.jsonl", dolly)])
    assert text.turns == (("user", "Where?\n\nRome is in Italy."), ("assistant", "Italy"))
    hard = {"question_id": "a", "turns": [{"content": "Hi"}, {"content": "And?"}]}  # Arena-Hard
    path = written(tmp_path / "b.jsonl", hard)
    assert read_texts([path])[0].turns == (("user", "Hi"), ("user", "And?"))
    assert read_prompts(path)[0].turns == (("user", "Hi"),)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    batch = {"custom_id": "a", "body": {"messages": MESSAGES[:1], "tools": tools}}
    assert json.loads(read_prompts(written(tmp_path / "c.jsonl", batch))[0].extras)["tools"] == tools


def test_earlier_turns_are_read_with_the_question(tmp_path):
    earlier = {"instruction": "And?", "output": "c", "history": [["Hi", "a"], ["Yes?", "b"]], "system": "s"}
    path = written(tmp_path / "a.jsonl", earlier, earlier | {"history": ["Hi"]})
    first = (("user", "Hi"), ("assistant", "a"), ("user", "Yes?"), ("assistant", "b"))
    report = Report()
    assert [prompt.turns for prompt in read_prompts(path, report)] == [
        (("system", "s"), *first, ("user", "And?")),
        (("system", "s"), ("user", "And?")),
    ]
    assert read_texts([path])[0].turns[1:] == (*first, ("user", "And?"), ("assistant", "c"))
    assert report.unread == {"history": 1}


@pytest.mark.parametrize(
    "record",
    [
        {"id": "a", "conversations": []},
        {"messages": []},
        {"messages": "[]"},
        {"messages": {"role": [], "content": []}},
        {"conversation": []},
        {"turns": []},
        {"prompt": [], "completion": []},
    ],
)
def test_empty_conversations_are_skipped(tmp_path, record):
    path = written(tmp_path / "a.jsonl", record, FORMS["Alpaca"])
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


def test_a_question_beside_a_text_is_no_conversation(tmp_path):
    path = written(tmp_path / "a.jsonl", {"text": "Rome is in Italy.", "question": "Where?", "tools": ["f"]})
    for read in (lambda report: read_texts([path], report), lambda report: read_prompts(path, report)):
        report = Report()
        assert [found.text for found in read(report)] == ["Rome is in Italy."]
        assert report.unread == {"question": 1, "tools": 1}


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
    assert read_texts([path])[0].turns == (("user", "x" * 200_000),)
    path.write_text(f"question{between}answer\nHi{between}Hello{between}\nHi{between}a{between}b\n", "utf-8")
    for read in (lambda: read_texts([path]), lambda: read_prompts(path)):
        with pytest.raises(ExecutorError, match=rf"data\{suffix}, line 3: 3 cells, but the head names 2"):
            read()
    path.write_text(between.join(["text", "", "text", "domain", "\na", "", "b", "c", ""]), "utf-8")
    for read in (lambda: read_texts([path]), lambda: read_prompts(path)):
        with pytest.raises(ExecutorError, match=rf"data\{suffix}: the head names text more than once: rename"):
            read()
    path.write_text(between.join(["text", "", "", "\na", "", ""]), "utf-8")
    assert [text.text for text in read_texts([path])] == ["a"]
    path = path.rename(path.with_suffix(suffix.upper()))
    report = Report()
    (tmp_path / "notes.txt").write_text("a text")
    assert [item.text for item in items([tmp_path], report)] == ["a text"]
    assert report.passed_over == [("a table of cells; name the file to read it", path.name)]


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


def test_a_second_conversation_of_a_record_is_named_as_not_read(tmp_path):
    path = tmp_path / "a.jsonl"
    turns = [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}]
    said = [{"from": "human", "value": "C"}, {"from": "gpt", "value": "D"}]
    path.write_text(json.dumps({"messages": turns, "conversations": said, "turns": []}) + "\n")
    report = Report()
    assert read_texts([path], report)[0].turns == (("user", "C"), ("assistant", "D"))
    assert report.unread_fields == ["data: fields without effect: `messages`"]
    assert read_prompts(path, report := Report())[0].turns == (("user", "C"),)
    assert report.unread_fields == ["data: fields without effect: `messages`"]
