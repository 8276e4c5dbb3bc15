"""Kinds of results: what terminal, page, notebooks, tables and schemas know of each, said once in `RESULTS`.

A module of this folder that defines `ENTRY` describes one kind. What needs other rooms is named as `module:name` and
loaded when it is used: charts, readers, types of records.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.display_methods import ValueMethods
from treeopt.errors import UsageError
from treeopt.registry import Registry, load
from treeopt.results.tables_and_numbers import Block, Blocks, Column, Line, Table, warnings_of
from treeopt.results.words import describe_models
from treeopt.storage.json_records import check_schema
from treeopt.storage.provenance import look
from treeopt.storage.table_files import table_of
from treeopt.storage.user_files import write_text

if TYPE_CHECKING:
    import pandas as pd

RECORD = "treeopt.results.kinds:Record"  # the values of kinds that name no other
NESTED = ("grown", "tree")  # fields that are an object or null
TRANSPARENT = ("figures_",)  # a key of the format whose name says nothing in a column


class Record(ValueMethods, dict[str, Any]):
    """The result of `simulate` or `whatif`, or the file of any result: the JSON values that `--json` prints.

    `frame()` has one row per configuration; `tree_nodes` counts drafted nodes. Lists, such as the paths of a tree, stay
    in the record.
    """


class Validation(Record):
    """The result of `validate`: predicted beside measured figures of each configuration and batch size.

    `frame()` has one row per configuration and batch size: `predicted_*` and `measured_*` are tau (tokens per step),
    step_s (seconds) and speedup (over plain decoding); `error` is predicted / measured speedup − 1; `covered` says
    whether the predicted interval holds the measured speedup.
    """


def _nothing(value: Any, **known: Any) -> Sequence[Any]:
    return ()


@dataclass(frozen=True, kw_only=True)
class ResultKind:
    """A kind of result: what it answers, its rows and columns, its sentences, charts and files.

    Functions take the value; those of `summary`, `next_lines`, `tables`, `remarks` and `page_charts` also take by
    name what is known beside it, such as the files of the command that made it.

    Attributes:
        name: the kind, such as `whatif`; the key of its section on the page.
        title: what one is called on the page and in notebooks.
        question: the question that it answers, the heading of its section on the page.
        place: its place on the page, in rising order.
        command: the command that writes it.
        schema: the schema of its files; empty: it has no JSON file.
        record: `module:Struct`, the typed record of its file.
        value: `module:Class` of its values in Python.
        made_by: `module:Class` of values whose record, by their method `record()`, is what is shown.
        read: `module:function` that reads a value from a path; empty: a record, as JSON values.
        write: `module:function` that writes a value to a path; empty: as JSON.
        rows: makes the rows of the main table from a value: names to numbers, texts, estimates and objects.
        columns: the columns of the main table, in the order in which they are shown.
        answers: makes its first sentences.
        summary: makes the sentences of the page's summary; by default `answers`.
        next_lines: makes what to do next.
        tables: makes tables and the notes below them; by default the one main table.
        remarks: makes warnings and conditions; by default those that a record holds.
        details: beginnings of conditions that few readers need.
        charts: by name, `module:function` of each of its charts; the first is its default.
        page_charts: `module:function` of the charts on the page, which know other results; by default all of `charts`.
        beside: `module:function` that takes a value, its file's name and the other results of a page, and returns what
            is known beside the value, by name.
        models: finds the description of the models that the title on the page names, because several results of a kind
            may stand side by side.
    """

    name: str
    title: str | Callable[[Any], str]
    rows: Callable[[Any], Iterable[Any]]
    columns: tuple[Column, ...]
    answers: Callable[[Any], Iterable[str]] = _nothing
    question: str = ""
    place: int = 100
    command: str = ""
    schema: str = ""
    record: str = ""
    value: str = RECORD
    made_by: str = ""
    read: str = ""
    write: str = ""
    summary: Callable[..., Iterable[str]] | None = None
    next_lines: Callable[..., Iterable[Line]] = _nothing
    tables: Callable[..., Iterable[Block]] | None = None
    remarks: Callable[..., Iterable[Block]] | None = None
    details: tuple[str, ...] = ()
    charts: Mapping[str, str] = field(default_factory=dict)
    page_charts: str = ""
    beside: str = ""
    models: Callable[[Any], Any] = _nothing

    def titled(self, value: Any) -> str:
        """Return the title of a value with its models, if they are recorded."""
        title, meta = self.title if isinstance(self.title, str) else self.title(value), self.models(value)
        known = any(look(meta, key) is not None for key in ("target", "drafter", "imported", "engine"))
        return f"{title}: {describe_models(meta)}" if known else title

    def blocks(self, value: Any, **known: Any) -> Blocks:
        """Return a value as every medium shows it: answers, what to do next, tables, warnings and conditions."""
        return (
            *(Line("answer", text) for text in self.answers(value)),
            *self.next_lines(value, **known),
            *(self.tables(value, **known) if self.tables else [Table.of("", self.columns, self.rows(value))]),
            *(self.remarks or self._remarks)(value, **known),
        )

    def frame(self, value: Any) -> "pd.DataFrame":
        """Return the main table of a value; `tau` has its interval in `tau_low` and `tau_high`."""
        return table_of([_flat(row) for row in self.rows(value)])

    def of_record(self, record: Any) -> Any:
        """Return the value of a file's JSON.

        Raises:
            RecordError: names the field that is missing or wrong.
        """
        from treeopt.storage.typed_records import read_record

        if self.schema:
            record = check_schema(record, self.schema)
        read_record(record, load(self.record))
        return load(self.value)(record)

    def save(self, value: Any, path: Path) -> None:
        """Write a value to a file, whole or not at all."""
        if self.write:
            load(self.write)(value, path)
        else:
            write_text(path, json.dumps(value, indent=1) + "\n")

    def drawn(self, value: Any, name: str | None = None) -> Any:
        """Return a chart of a value by name, or its first.

        Raises:
            UsageError: there is no such chart, or the value lacks what it shows.
        """
        noun = f"a {type(value).__name__.lower()}"
        if not self.charts:
            raise UsageError(f"{noun} has no chart")
        if name is not None and name not in self.charts:
            raise UsageError(f"{noun} has no chart {name!r}: choose one of {', '.join(self.charts)}")
        for chosen in self.charts if name is None else (name,):
            if (chart := load(self.charts[chosen])(value)) is not None:
                return chart
        raise UsageError(f"{noun} does not hold what the chart {name or next(iter(self.charts))!r} shows")

    def all_charts(self, value: Any, **known: Any) -> list[Any]:
        """Return the charts of a value on a page."""
        if self.page_charts:
            return list(load(self.page_charts)(value, **known))
        drawn = (load(chart)(value) for chart in self.charts.values())
        return [chart for chart in drawn if chart is not None]

    def _remarks(self, value: Any, **known: Any) -> Iterator[Line]:
        yield from warnings_of(look(value, "warnings") or ())
        for text in look(value, "conditions") or ():
            yield Line("condition", text, detail=text.startswith(self.details) if self.details else False)


RESULTS: Registry[ResultKind] = Registry("kind of result", "treeopt.results", group="treeopt.results")


def known(value: Any) -> tuple[ResultKind, Any]:
    """Return the kind of a value, by its schema or its class, and the value in the form that the kind describes.

    Raises:
        UsageError: it is no result.
    """
    schema = value.get("schema") if isinstance(value, Mapping) else None
    if isinstance(schema, str):
        return kind_of_schema(schema), value
    names = {f"{kind.__module__}:{kind.__qualname__}" for kind in type(value).__mro__} - {RECORD}
    for kind in RESULTS.values():
        if kind.value in names:
            return kind, value
        if kind.made_by in names:
            return kind, load(kind.value)(value.record())
    raise UsageError(f"no result of treeopt: {type(value).__name__}{' without a schema' if schema is None else ''}")


def kind_of_schema(schema: str) -> ResultKind:
    """Return the kind whose files have a schema.

    Raises:
        UsageError: there is none.
    """
    kind = RESULTS.find(lambda kind: schema == kind.schema)
    if kind is None:
        raise UsageError(f"no kind of result has the schema {schema!r:.80}")
    return kind


def _flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the plain values of a record, keys of nested ones joined by `_`; an estimate's value has its own name."""
    prefix = "" if prefix in TRANSPARENT else prefix
    flat: dict[str, Any] = {}
    for key, value in record.items():
        name = prefix.removesuffix("_") if key == "value" and prefix else prefix + key
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{name}_")
        elif key == "paths" and isinstance(value, list | tuple):
            flat.setdefault(f"{prefix}nodes", len(value))
        elif not isinstance(value, list | tuple) and not (value is None and key in NESTED):
            flat[name] = value
    return flat
