"""The results of `treeopt doctor`: whether all is well, the device and trials, then the packages."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from treeopt.errors import counted
from treeopt.results.kinds import ResultKind
from treeopt.results.tables_and_numbers import Block, Column, Line, Mark, Table, word
from treeopt.results.words import device_words

GIB = 2**30
EXECUTOR = "pip install 'treeopt[executor]'"


def _next(record: Mapping[str, Any], **_: Any) -> Iterator[Line]:
    if "trials" not in record:
        yield Line("next", "Next: install the decoding loop:", EXECUTOR)
    elif not _wrong(record):
        search = "treeopt search --trace TRACE --batch 4"
        yield Line("next", "Next: choose a tree for a trace (treeopt trace collect records one):", search)


def _tables(record: Mapping[str, Any], **_: Any) -> Iterator[Block]:
    """Yield versions, device, trials and packages."""
    run, troubled = record["provenance"], [package for package in record["packages"] if package["trouble"]]
    commit = f", commit {run['commit']}" if run["commit"] else ""
    yield Line("note", f"treeopt {run['treeopt']}{commit}, Python {run['software']['python']}")
    yield Line("note", f"{run['processor']}, {counted(run['cores'], 'core')} for this process")
    if "device" in record:
        yield Line("note", _device(record["device"]))
    for trial in record.get("trials", ()):
        text = f"{trial['name']}: {trial['detail']}"
        yield Line("note", f"right: {text}") if trial["holds"] else Line("warning", f"wrong: {text}")
    missing = [package["name"] for package in record["packages"] if _absent(package)]
    if missing:
        yield Line("note", f"Not installed, needed for some commands only: {', '.join(missing)}")
    if troubled:
        yield Table.of("packages to mend", COLUMNS, troubled, _mark)
    yield replace(Table.of("packages", COLUMNS, record["packages"], _mark), detail=True)


def _answers(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield whether everything that is installed works."""
    if names := _wrong(record):
        yield f"Not sound: {', '.join(names)}."
    elif "trials" not in record:
        yield "Sound for search and prediction; the decoding loop is not installed."
    else:
        yield "Sound: the packages fit, and the decoding loop is right on this device."


def _wrong(record: Mapping[str, Any]) -> list[str]:
    """Return the names of packages and trials that are not as they must be."""
    packages = [package["name"] for package in record["packages"] if package["trouble"]]
    return packages + [trial["name"] for trial in record.get("trials", ()) if not trial["holds"]]


def _device(device: Mapping[str, Any]) -> str:
    free = "unknown" if device["free_bytes"] is None else f"{device['free_bytes'] / GIB:.1f} GiB"
    cuda = f", CUDA {device['cuda']}, capability {'.'.join(map(str, device['capability']))}" if "cuda" in device else ""
    name = device_words({"device": device["name"]})
    refusal = device.get("no_fused_kernels")
    kernels = "" if refusal is None else f"; fused kernels are not used: {refusal}"
    return f"Device {name}{cuda}: {free} free, {'' if device['bf16_products'] else 'no '}bf16 products{kernels}"


def _absent(package: Mapping[str, Any]) -> bool:
    return not package["version"] and not package["trouble"]


def _mark(package: Mapping[str, Any]) -> Mark:
    return "wrong" if package["trouble"] else "dim" if _absent(package) else ""


COLUMNS = (
    Column("package", align="left", key=True, field="name"),
    Column("version", align="left", show=lambda package: word(package["version"] or "-")),
    Column("needed for", align="left", drop=1, show=lambda package: word(package["extra"] or "all")),
    Column(
        "what to do",
        align="left",
        show=lambda package: word(
            f"pip install 'treeopt[{package['extra']}]'" if _absent(package) else package["trouble"]
        ),
    ),
)
ENTRY = ResultKind(
    name="health",
    title="Health of the installation",
    command="doctor",
    rows=lambda record: record["packages"],
    columns=COLUMNS,
    answers=_answers,
    next_lines=_next,
    tables=_tables,
)
