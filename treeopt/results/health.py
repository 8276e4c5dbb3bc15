"""The results of `treeopt doctor`: whether all is well, the device and trials, then the packages."""

from collections.abc import Mapping, Sequence
from typing import Any

from treeopt.errors import counted
from treeopt.results.blocks import Block, Blocks, Column, Line, Mark, Row, Table, word
from treeopt.results.words import device_words

GIB = 2**30
PACKAGES = (
    Column("package", align="left", key=True),
    Column("version", align="left"),
    Column("needed for", align="left", drop=1),
    Column("what to do", align="left"),
)
EXECUTOR = "pip install 'treeopt[executor]'"


def health_blocks(record: Mapping[str, Any]) -> Blocks:
    """Return the answer, trials and packages; `record` is what `treeopt doctor --json` prints."""
    run, troubled = record["provenance"], [package for package in record["packages"] if package["trouble"]]
    commit = f", commit {run['commit']}" if run["commit"] else ""
    blocks: list[Block] = [Line("answer", _answer(record))]
    if "trials" not in record:
        blocks.append(Line("next", "Next: install the decoding loop:", EXECUTOR))
    elif not _wrong(record):
        search = "treeopt search --trace TRACE --batch 4"
        blocks.append(Line("next", "Next: choose a tree for a trace (treeopt trace collect records one):", search))
    blocks += [
        Line("note", f"treeopt {run['treeopt']}{commit}, Python {run['software']['python']}"),
        Line("note", f"{run['processor']}, {counted(run['cores'], 'core')} for this process"),
    ]
    if "device" in record:
        blocks.append(Line("note", _device(record["device"])))
    for trial in record.get("trials", ()):
        text = f"{trial['name']}: {trial['told']}"
        blocks.append(Line("note", f"right: {text}") if trial["holds"] else Line("warning", f"wrong: {text}"))
    missing = [package["name"] for package in record["packages"] if _absent(package)]
    if missing:
        blocks.append(Line("note", f"Not installed, needed for some commands only: {', '.join(missing)}"))
    if troubled:
        blocks.append(_packages("packages to mend", troubled))
    return (*blocks, _packages("packages", record["packages"], detail=True))


def _answer(record: Mapping[str, Any]) -> str:
    """Return whether everything that is installed works."""
    if names := _wrong(record):
        return f"Not sound: {', '.join(names)}."
    if "trials" not in record:
        return "Sound for search and prediction; the decoding loop is not installed."
    return "Sound: the packages fit, and the decoding loop is right on this device."


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


def _packages(title: str, packages: Sequence[Mapping[str, Any]], *, detail: bool = False) -> Table:
    rows = []
    for package in packages:
        absent = f"pip install 'treeopt[{package['extra']}]'" if _absent(package) else ""
        mark: Mark = "wrong" if package["trouble"] else "dim" if absent else ""
        cells = (package["name"], package["version"] or "-", package["extra"] or "all", package["trouble"] or absent)
        rows.append(Row(tuple(map(word, cells)), mark))
    return Table(title, PACKAGES, tuple(rows), detail=detail)
