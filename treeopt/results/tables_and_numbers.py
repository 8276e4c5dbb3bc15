"""Tables and lines of text: what is shown, in which order, with the full text of every cell; not how."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal

from treeopt.statistics import Estimate
from treeopt.storage.provenance import look

Kind = Literal["answer", "next", "note", "warning", "condition"]
Align = Literal["left", "right"]
Mark = Literal["", "chosen", "dim", "wrong"]


@dataclass(frozen=True)
class Cell:
    """A cell.

    Attributes:
        text: the full text, as every medium shows it.
        value: what a column is sorted by, in the unit of the text; None sorts last.
        low: lower end of the 95 % interval of `value`, in the same unit; None if there is none.
        high: its upper end.
    """

    text: str = ""
    value: float | str | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Column:
    """A column: how a value of a row is shown.

    Attributes:
        name: its heading; it may continue on further lines at spaces, never inside a word.
        unit: unit of its numbers; empty where there is none or the name says it. `ms` and `%` scale seconds and
            shares.
        align: where its cells stand.
        drop: order in which columns leave a table that is too wide: those of the highest number first, together; those
            of 0 stay.
        key: True for the columns that name a row.
        meaning: one sentence for readers who do not know the word.
        field: where its value stands in a row, with dots between the fields of objects, such as `tree.nodes`.
        digits: decimals of its numbers; None: three significant digits.
        sign: True for numbers that are shown with their sign.
        exact: True where an estimate without an interval is shown as its value alone, such as plain decoding's 1.
        default: what stands where a row has no value.
        show: makes the cell of a row, where the rules of `Column.cell` do not.
    """

    name: str
    unit: str = ""
    align: Align = "right"
    drop: int = 0
    key: bool = False
    meaning: str = ""
    field: str = ""
    digits: int | None = 0
    sign: bool = False
    exact: bool = False
    default: float | str | None = None
    show: Callable[[Any], Cell] | None = None

    @property
    def heading(self) -> str:
        """The name with the unit.

        >>> Column("step", "ms").heading
        'step ms'
        """
        return f"{self.name} {self.unit}".strip()

    def cell(self, row: Mapping[str, Any]) -> Cell:
        """Return the cell of a row: texts as they are, truth values as yes or no, estimates with their interval.

        >>> column = Column("step", "ms", field="step_s", digits=1, default="none")
        >>> column.cell({"step_s": 0.0125}).text, column.cell({"step_s": None}).text
        ('12.5', 'none')
        """
        if self.show is not None:
            return self.show(row)
        value, scale = look(row, *self.field.split(".")), SCALES.get(self.unit, 1.0)
        value = self.default if value is None else value
        if isinstance(value, bool):
            return word("yes" if value else "no")
        if isinstance(value, str):
            return Cell(value) if value is self.default else word(value)
        if isinstance(value, Mapping):
            if value["value"] is None:
                return Cell()
            alone = self.exact and value["low"] == value["high"]
            return (
                Cell(f"{value['value']:g}", value["value"]) if alone else ranged(value, self.digits or 0, scale=scale)
            )
        return number(None if value is None else value * scale, self.digits, sign=self.sign)


@dataclass(frozen=True)
class Row:
    """A row: a cell for each column; `note` is one sentence on a line of its own below it."""

    cells: tuple[Cell, ...]
    mark: Mark = ""
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table; `detail`: shown only when asked for."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    detail: bool = False

    @classmethod
    def of(
        cls, title: str, columns: Sequence[Column], rows: Iterable[Any], mark: Callable[[Any], Mark] = lambda row: ""
    ) -> "Table":
        """Return the table of rows of values, each marked as `mark` says."""
        cells = (Row(tuple(column.cell(row) for column in columns), mark(row)) for row in rows)
        return cls(title, tuple(columns), tuple(cells))

    def __post_init__(self) -> None:
        """Check that every row has a cell for each column."""
        for row in self.rows:
            assert len(row.cells) == len(self.columns), (self.title, row)


@dataclass(frozen=True)
class Line:
    """A sentence or a few: an answer, what to do next, or what a reader must know.

    Attributes:
        kind: `answer` comes first in a result; `next` names a command; `note` belongs to the block above it; `warning`
            limits what can be believed; `condition` states how numbers were made.
        text: the sentences; whole by themselves, without a label of their kind.
        command: for `next`: the command line.
        detail: shown only when asked for.
    """

    kind: Kind
    text: str
    command: str = ""
    detail: bool = False


SCALES = {"ms": 1e3, "%": 100.0, "± %": 100.0, "GB": 1e-9, "MB": 1e-6}  # of units that are not the files' own
Block = Table | Line
Blocks = tuple[Block, ...]


def word(text: object) -> Cell:
    """Return a cell of text, sorted by its letters.

    >>> word("best chain")
    Cell(text='best chain', value='best chain', low=None, high=None)
    """
    return Cell(str(text), str(text))


def number(value: float | None, digits: int | None = 0, *, sign: bool = False) -> Cell:
    """Return a cell of a number with commas between thousands, empty for None; see `Column.digits`.

    >>> number(5120.4).text, number(12.345, 2).text, number(0.5, 1, sign=True).text, number(None).text
    ('5,120', '12.35', '+0.5', '')
    """
    if value is None:
        return Cell()
    if digits is None:
        return Cell(f"{value:.3g}", float(value))
    return Cell(f"{value:{'+' if sign else ''},.{digits}f}", float(value))


def ranged(estimate: Estimate | Mapping[str, float] | None, digits: int = 2, *, scale: float = 1.0) -> Cell:
    """Return a cell of a value and its interval, both times `scale`, empty for None; records hold mappings.

    >>> ranged(Estimate(0.0150, 0.0125, 0.0175), 1, scale=1e3)
    Cell(text='15.0 [12.5, 17.5]', value=15.0, low=12.5, high=17.5)
    """
    if estimate is None:
        return Cell()
    ends = astuple(estimate) if isinstance(estimate, Estimate) else [estimate[end] for end in ("value", "low", "high")]
    value, low, high = (float(scale * end) for end in ends)
    return Cell(f"{value:z,.{digits}f} [{low:z,.{digits}f}, {high:z,.{digits}f}]", value, low, high)


def warnings_of(sentences: Iterable[str]) -> list[Line]:
    """Return warnings, from sentences without a full stop."""
    return [Line("warning", f"{sentence}.") for sentence in sentences]


def conditions(visible: Iterable[str], detail: Iterable[str]) -> list[Line]:
    """Return the conditions of numbers: those that everyone must know, then those shown only when asked for."""
    return [Line("condition", text) for text in visible] + [Line("condition", text, detail=True) for text in detail]


def notes_once(blocks: Blocks) -> Blocks:
    """Return the blocks without lines that stand in an earlier block word for word."""
    seen: set[str] = set()
    kept: list[Block] = []
    for block in blocks:
        if isinstance(block, Line) and not block.command:
            if block.text in seen:
                continue
            seen.add(block.text)
        kept.append(block)
    return tuple(kept)


# Columns of several kinds of results.
BATCH = Column("batch", key=True, field="batch")
NODES = Column("nodes", drop=4, meaning="Drafted tokens in the tree.", field="nodes")
DEPTH = Column("depth", drop=8, meaning="Drafted tokens on the longest path.", field="depth")
TAU = Column(
    "tau",
    drop=3,
    meaning="Tokens committed per step and sequence, bonus counted.",
    field="tau",
    digits=2,
    exact=True,
)
STEP = Column("step", "ms", drop=6, meaning="Time of one step: draft, verify, accept.", field="step_s", digits=2)
PLAIN_STEP = Column("plain", "ms", drop=7, meaning="Time of one step of plain decoding.", field="plain_s", digits=2)
TOKENS_S = Column("tokens/s", drop=2, meaning="Tokens per second of the whole batch.", field="tokens_s")
SPEEDUP = Column("speedup", field="speedup", digits=2, exact=True)
