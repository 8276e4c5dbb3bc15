"""Every command's tables on terminals of 40 to 200 columns: nothing is cut, wrapped or wider than the terminal."""

import os
import re
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.console_blocks import check_options
from tests.helpers.printed_results import CODES, RESULTS, folder, printed, sent
from treeopt.engines import ENGINES
from treeopt.plans import load_plan
from treeopt.results.plan import ENTRY as PLAN_KIND
from treeopt.results.tables_and_numbers import Blocks, Cell, Column, Line, Row, Table, number, word
from treeopt.results.whatif import money

WIDTHS = (40, 60, 80, 100, 120, 160, 200)
SNAPSHOTS = Path(__file__).with_name("snapshots")


@cache
def blocks_of(name: str) -> Blocks:
    return RESULTS[name]()


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", sorted(RESULTS))
def test_nothing_is_cut_at_any_width(name, width):
    blocks = blocks_of(name)
    lines = printed(blocks, width)
    assert [line for line in lines if len(line) > width] == []
    assert "…" not in "".join(lines)
    whole = flat("\n".join(line.removesuffix("\\") for line in lines))
    for block in blocks:
        if isinstance(block, Line):
            assert flat(block.text) in whole
            assert flat(block.command) in whole
        else:
            check_table(block, lines)


LEFT_OUT = re.compile(r"Columns left out: (.*?)\. A terminal of (\d+) columns shows them")


def check_table(table: Table, lines: list[str]) -> None:
    """Every cell stands whole on one line, but those of columns that are said to be left out."""
    left_out = {name for names, _ in LEFT_OUT.findall(flat("\n".join(lines))) for name in names.split(", ")}
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if cell.text and column.heading not in left_out:
                found = re.compile(rf"(?<![\w.,]){re.escape(cell.text)}(?![\w%]|[.,]\d)")
                assert any(found.search(line) for line in lines), (column.heading, cell.text)


@pytest.mark.parametrize("name", sorted(RESULTS))
def test_a_terminal_as_wide_as_asked_for_shows_all_columns_in_any_letters(name):
    """A narrow terminal says how wide one must be; columns are left out there only."""
    blocks = blocks_of(name)
    asked = [int(width) for _, width in LEFT_OUT.findall(flat("\n".join(printed(blocks, 60))))]
    width = max(asked, default=200)
    assert LEFT_OUT.search(flat("\n".join(printed(blocks, width)))) is None
    if asked:
        assert LEFT_OUT.search(flat("\n".join(printed(blocks, width - 1)))) is not None
    known = [line.replace("─", "-") for line in printed(blocks, 80)]
    assert known == printed(blocks, 80, encoding="ascii") == printed(blocks, 80, encoding="latin-1")


@pytest.mark.parametrize("name", sorted(RESULTS))
def test_colours_change_nothing_but_codes_and_the_next_command_exists(name):
    blocks = blocks_of(name)
    plain = sent(blocks, 100, term="dumb")
    assert "\x1b" not in "".join(plain)
    assert "\x1b[33m" in "".join(sent((Line("warning", "text"),), 100, colour=True))
    for colour in (False, True):
        lines = sent(blocks, 100, colour=colour)
        assert [CODES.sub("", line) for line in lines] == plain
        colours = [code for line in lines for code in CODES.findall(line) if re.search(r"\b3[1-7]", code)]
        assert bool(colours) <= colour
    for block in blocks:
        if isinstance(block, Line) and block.command.startswith("treeopt "):
            check_options(shlex.split(block.command)[1:])


def test_names_in_letters_that_the_terminal_lacks_are_escaped_before_they_are_measured():
    table = Table("", (Column("name", align="left", key=True), Column("n")), (Row((word("é─"), number(1))),))
    assert printed((table,), 40, encoding="ascii")[-1] == r"\xe9-  1"


@pytest.mark.parametrize("width", [60, 120])
@pytest.mark.parametrize("name", ["search", "validate", "whatif", "compare"])
def test_output_is_as_it_was(name, width):
    """TREEOPT_SNAPSHOTS=1 writes the files again (`make snapshots`)."""
    path = SNAPSHOTS / f"{name}-{width}.txt"
    text = "\n".join(printed(blocks_of(name), width, verbose=False)) + "\n"
    if os.environ.get("TREEOPT_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    assert path.read_text("utf-8") == text


@pytest.mark.parametrize("engine", ENGINES.limiting())
def test_a_plan_for_an_engine_is_exported_to_it_next(engine):
    """With a method where its export needs one; rules of a project that has no export lead to a check."""
    plan = load_plan(folder() / "plan.json") if blocks_of("search") else None
    plan = replace(plan, meta=plan.meta | {"search": plan.meta["search"] | {"engine": engine}})
    (line,) = [block for block in PLAN_KIND.blocks(plan) if isinstance(block, Line) and block.command]
    command = shlex.split(line.command)
    check_options(command[1:])
    if engine not in ENGINES.exporting():
        assert command[:2] == ["treeopt", "validate"]
        return
    assert command[:5] == ["treeopt", "export", "plan.json", "--format", engine]
    assert ("--method" in command) == (bool(ENGINES[engine].choices) and engine != "sglang")


# --- how tables shrink

COLUMNS = (
    Column("name", align="left", key=True),
    Column("kept"),
    Column("second to leave", drop=1),
    Column("first", "ms", drop=2),
)
ROWS = (
    Row((word("long name"), number(1.5, 2), number(2.5, 2), number(1234.5, 1)), "chosen", "a note"),
    Row((word("b"), number(-1.25, 2), Cell(), number(3.5, 1))),
)
TABLE = Table("title", COLUMNS, ROWS)


def test_columns_leave_in_their_order():
    """The remark says which, and how wide a terminal shows them."""
    whole = ["title", "                  second", "                      to", "name        kept   leave  first ms"]
    assert printed((TABLE,), 34)[:4] == whole
    assert "first ms" not in " ".join(printed((TABLE,), 33)[:5])
    assert printed((TABLE,), 25) == [
        "title",
        "                  second",
        "                      to",
        "name        kept   leave",
        "─" * 24,
        "long name   1.50    2.50",
        "  a note",
        "b          -1.25",
        "",
        "Columns left out: first",
        "  ms. A terminal of 34",
        "  columns shows them, or",
        "  --json.",
    ]
    assert printed((TABLE,), 20)[:3] == ["title", "name        kept", "─" * 16]


def test_a_terminal_too_narrow_for_a_table_gets_a_block_a_row():
    lines = printed((TABLE,), 14)
    assert (lines[:2], lines.index("b")) == (["title", "long name"], 9)
    assert {"  kept: 1.50", "  leave:", "    2.50", "  kept: -1.25", "  a note"} <= set(lines)
    assert not any("left out" in line for line in lines)
    kept = Table("", (COLUMNS[0], Column("a long heading")), (Row((word("x"), number(1234567.25, 2))),))
    assert printed((kept,), 14) == ["x", "  a long", "  heading:", "    1,234,567.25"]


def test_a_file_gets_whole_tables_and_whole_sentences(capsys, monkeypatch):
    """Neither is as narrow as 80 columns, unless COLUMNS asks for it."""
    from treeopt.terminal import print_blocks

    sentence = "one sentence " * 20 + "ends."
    monkeypatch.delenv("COLUMNS", raising=False)
    print_blocks((Line("note", sentence), TABLE))
    assert sentence in capsys.readouterr().out.splitlines()
    monkeypatch.setenv("COLUMNS", "30")
    print_blocks((Line("note", sentence), TABLE))
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 30


def test_the_same_sentence_is_printed_once_and_details_only_when_asked_for():
    note, detail = Line("note", "The same sentence."), Line("condition", "A detail.", detail=True)
    blocks = (TABLE, note, Table("other", COLUMNS, ROWS), note, detail)
    assert sum(line == note.text for line in printed(blocks, 80)) == 1
    assert detail.text in printed(blocks, 80)
    hidden = printed(blocks, 80, verbose=False)
    assert detail.text not in hidden
    assert hidden[-1].startswith("--verbose also prints")


def test_blocks_hold_every_column_where_the_table_would_drop_some():
    columns = (
        Column("name", align="left", key=True),
        Column("first interval"),
        Column("second interval"),
        Column("dropped", "ms", drop=1),
    )
    cells = (word("a row with a name"), Cell("1.42 [1.36, 1.48]"), Cell("1.52 [1.46, 1.58]"), number(12.5, 1))
    table = Table("", columns, (Row(cells),))
    assert printed((table,), 40) == [
        "a row with a name",
        "  first interval:  1.42 [1.36, 1.48]",
        "  second interval: 1.52 [1.46, 1.58]",
        "  dropped ms:      12.5",
    ]


@pytest.mark.parametrize(
    ("price", "text"),
    [
        ((0.0809, 0.063, 0.104), "0.0809 [0.0630, 0.1040]"),
        ((0.3, 0.3, 0.3), "0.300"),
        ((0.0, 0.0, 0.0), "0"),
    ],
)
def test_prices_keep_their_zeros(price, text):
    assert money(dict(zip(("value", "low", "high"), price, strict=True))).text == text
