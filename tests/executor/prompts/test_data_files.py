"""Files of data: JSON lines under any name, tables, saved data sets, folders; and what is passed over."""

import gzip
import json
import os
import sys

import datasets
import pytest

from executor.prompts.data_files import items, without_nulls
from executor.prompts.message_parts import Report
from executor.prompts.prompt_files import read_prompts
from executor.train.token_rows import read_texts
from treeopt.errors import ExecutorError

RECORDS = [
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
    {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]},
]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS)
TURNS = [(("user", "Hi"), ("assistant", "Hello")), (("user", "2+2?"), ("assistant", "4"))]


@pytest.mark.parametrize("name", ["a.json", "a.txt", "ShareGPT.JSONL"])
@pytest.mark.parametrize("content", [LINES, "\n" + LINES.rstrip(), LINES.replace("\n", "\r\n"), "\ufeff" + LINES])
def test_json_lines_are_read_under_any_name(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content.encode())
    assert [text.turns for text in read_texts([path])] == TURNS
    assert [prompt.turns for prompt in read_prompts(path)] == [turns[:1] for turns in TURNS]


def test_a_single_record_is_a_line_and_an_indented_list_a_list(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(RECORDS[0]))
    assert [text.turns for text in read_texts([path])] == TURNS[:1]
    path.write_text(json.dumps(RECORDS, indent=1))
    assert [text.where for text in read_texts([path])] == [f"{path}, record 0", f"{path}, record 1"]


@pytest.mark.parametrize("name", ["a.jsonl", "a"])
@pytest.mark.parametrize("indent", [None, 1])
def test_a_list_of_records_is_read_under_any_name(tmp_path, name, indent):
    path = tmp_path / name
    path.write_text("\n" + json.dumps(RECORDS, indent=indent), "utf-8-sig")
    assert [text.turns for text in read_texts([path])] == TURNS
    assert [prompt.turns for prompt in read_prompts(path)] == [turns[:1] for turns in TURNS]


@pytest.mark.parametrize("content", ['{\n "name": "a config"\n}', "{% template %}", '{"text"', "[1, 2]", "plain"])
def test_other_files_are_texts(tmp_path, content):
    (tmp_path / "a.txt").write_text(content)
    for path in (tmp_path / "a.txt", tmp_path):
        assert [text.text for text in read_texts([path])] == [content]


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_encodings_that_are_not_read_are_named(tmp_path, name, encoding):
    (tmp_path / name).write_bytes(LINES.encode(encoding))
    for read in (lambda: read_texts([tmp_path / name]), lambda: read_prompts(tmp_path / name)):
        with pytest.raises(ExecutorError, match=f"{name}: text cannot be read: a text in {encoding.upper()}: write it"):
            read()


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.txt"])
@pytest.mark.parametrize("number", [1, 3])
def test_a_line_that_is_not_utf_8_is_named(tmp_path, name, number):
    lines = [LINES.split("\n")[0].encode(), b"", LINES.split("\n")[0].encode()]
    lines[number - 1] = lines[number - 1].replace(b"Hello", b"H\xe9llo")
    (tmp_path / name).write_bytes(b"\n".join(lines))
    for read in (lambda: read_texts([tmp_path / name]), lambda: read_prompts(tmp_path / name)):
        with pytest.raises(ExecutorError, match=rf"{name}: text cannot be read: 'utf-8' .* \(line {number}\)"):
            read()


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.txt"])
def test_lines_that_cannot_be_read_are_skipped_on_request(tmp_path, name):
    first, second = LINES.encode().splitlines()
    path = tmp_path / name
    path.write_bytes(b"\n".join([first, b"{bad", b'{"text": "caf\xe9"}', b'{"x": 1}', second, second[:-5]]))
    for place in (path, tmp_path):
        for read in (lambda report: read_texts([place], report), lambda report: read_prompts(place, report)):  # noqa: B023
            report = Report(frozenset({"unreadable"}))
            assert [held.turns[0] for held in read(report)] == [TURNS[0][0], TURNS[1][0]]
            assert len(report.skipped) == 4
            reasons = ("line 2: not JSON", "(line 3)", "line 4: ", "line 6")
            assert [reason in line for line, reason in zip(report.skipped, reasons, strict=True)] == [True] * 4
            with pytest.raises(ExecutorError, match=r"line 2: .* \(--leave-out unreadable skips the record\)$"):
                read(Report())


def test_what_a_folder_holds_besides_is_reported(tmp_path):
    (tmp_path / "a.jsonl").write_text(LINES)
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(LINES.encode()))
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# A data set")
    (tmp_path / "dataset_infos.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("a text")
    report = Report()
    texts = read_texts([tmp_path], report)
    assert [text.turns for text in texts if text.turns] == TURNS
    assert [text.text for text in texts if text.text] == ["a text"]
    assert report.summary == "data: 2 records and 1 text read from 2 files"
    assert sorted(report.remarks) == [
        "data: 1 file passed over (b.jsonl.gz): compressed: unpack it to read it",
        "data: 1 file passed over (image.png): binary",
        "data: 2 files passed over (README.md, dataset_infos.json): it describes a data set",
    ]
    report = Report()
    assert len(read_prompts(tmp_path, report)) == 2
    assert ("a plain text is no prompt", "notes.txt") in report.passed_over


@pytest.mark.parametrize("name", ["train.jsonl", "train.json", "train.txt", "train_sft", "train/a.jsonlines"])
def test_of_splits_of_records_the_one_to_train_on_is_read(tmp_path, name):
    other = name.replace("train", "test")
    for file, line in ((name, LINES.split("\n")[0]), (other, LINES.split("\n")[1])):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(line + "\n")
    (tmp_path / "test.md").write_text("a text")
    report = Report()
    assert [text.turns for text in read_texts([tmp_path], report) if text.turns] == TURNS[:1]
    assert [prompt.turns for prompt in read_prompts(tmp_path)] == [TURNS[0][:1]]
    assert report.passed_over == [("another split than train; name the file to read it", other)]
    assert report.texts == 1  # names of texts are no splits
    (tmp_path / name).unlink()
    assert [text.turns for text in read_texts([tmp_path], report) if text.turns] == TURNS[1:]


def test_pipes_below_a_folder_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "a.jsonl").write_text(LINES)
    assert len(read_texts([tmp_path])) == 2
    with pytest.raises(ExecutorError, match="not a regular file"):
        read_texts([tmp_path / "pipe.jsonl"])


def test_links_and_hidden_files_below_a_folder_are_reported(tmp_path):
    folder, other = tmp_path / "data", tmp_path / "other"
    for name in ("data/a.jsonl", "data/.cache/x/b.jsonl", "data/.hidden.jsonl", "other/c.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(LINES)
    (folder / "linked").symlink_to(other)
    (folder / "d.jsonl").symlink_to(other / "c.jsonl")
    for read in (lambda report: read_texts([folder], report), lambda report: read_prompts(folder, report)):
        report = Report()
        assert len(read(report)) == 4
        assert (report.files, report.remarks) == (
            2,
            [
                "data: 2 files passed over (.cache, .hidden.jsonl): hidden; name it to read it",
                "data: 1 file passed over (linked): a link to a folder; name it to read it",
            ],
        )
    assert len(read_texts([folder / ".cache"])) == 2
    (folder / "broken.jsonl").symlink_to(tmp_path / "nowhere")
    for read in (lambda: read_texts([folder]), lambda: read_prompts(folder)):
        with pytest.raises(ExecutorError, match=r"broken\.jsonl: a link to .*nowhere, which does not exist"):
            read()


@pytest.mark.parametrize(("name", "content"), [("b.txt", ""), ("b.jsonl", "\n"), ("sub/b.jsonl", ""), ("b.json", "[]")])
def test_files_that_are_empty_are_passed_over(tmp_path, name, content):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.jsonl").write_text(LINES)
    (tmp_path / name).write_text(content)
    for paths in ([tmp_path], [tmp_path / "a.jsonl", tmp_path / name]):
        report = Report()
        assert len(read_texts(paths, report)) == 2
        assert report.files == 1
        assert [(reason, file.split("/")[-1]) for reason, file in report.passed_over] == [
            ("empty", name.split("/")[-1])
        ]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_tables_without_the_library_say_what_to_install(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / name).write_bytes(b"PAR1\0")
    (tmp_path / "README.md").write_text("# The only text")
    for read in (lambda path: read_texts([path]), read_prompts):
        for path in (tmp_path, tmp_path / name):
            with pytest.raises(ExecutorError, match=rf"{name}: .*pip install 'treeopt\[data\]'"):
                read(path)


def test_nulls_of_a_table_are_absent():
    row = {"a": None, "b": [{"c": None, "d": 1}], "e": {"f": None}}
    assert without_nulls(row) == {"b": [{"d": 1}], "e": {}}


# --- with the library


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A data set in every layout, by name."""
    datasets.disable_progress_bars()
    extra = [{"tool_calls": None}, {"tool_calls": None}]
    rows = [{"messages": [m | e for m, e in zip(r["messages"], extra, strict=True)], "score": 1.0} for r in RECORDS]
    table = datasets.Dataset.from_list(rows)
    table.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"train": table, "test": table}).save_to_disk(str(tmp_path / "splits"))
    datasets.DatasetDict({"train_sft": table, "test_sft": table}).save_to_disk(str(tmp_path / "ultrachat"))
    (tmp_path / "clone" / "data").mkdir(parents=True)
    (tmp_path / "clone" / "README.md").write_text("# Chats")
    for split in ("train", "test"):
        table.to_parquet(str(tmp_path / "clone" / "data" / f"{split}-00000-of-00001.parquet"))
    table.to_json(str(tmp_path / "lines.json"))
    next((tmp_path / "saved").glob("*.arrow")).rename(tmp_path / "one.arrow")
    table.save_to_disk(str(tmp_path / "saved"))
    return tmp_path


@pytest.mark.parametrize("name", ["saved", "splits", "ultrachat", "clone", "clone/data", "lines.json", "one.arrow"])
def test_every_layout_of_a_data_set_is_read(made, name):
    report = Report()
    assert [text.turns for text in read_texts([made / name], report)] == TURNS
    assert [prompt.turns for prompt in read_prompts(made / name)] == [turns[:1] for turns in TURNS]
    assert report.unread == {"score": 2}
    passed = {
        "splits": ["test"],
        "ultrachat": ["test_sft"],
        "clone": ["README.md", "data/test-00000-of-00001.parquet"],
        "clone/data": ["test-00000-of-00001.parquet"],
    }
    assert [file for _, file in report.passed_over] == passed.get(name, [])


def test_tables_that_are_none(tmp_path):
    for name in ("a.parquet", "a.arrow"):
        (tmp_path / name).write_bytes(b"PAR1 and nothing")
        with pytest.raises(ExecutorError, match=rf"{name}: `datasets` cannot read it"):
            list(items([tmp_path / name], Report()))
    for name in ("dataset_info.json", "state.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(ExecutorError, match="`datasets` cannot read it: it lacks"):
        read_texts([tmp_path])
