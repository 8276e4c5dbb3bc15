"""Run notebooks and store their outputs, and compare stored outputs with new ones: `python -m tests.helpers.notebooks`.

Text must be equal but for numbers, which may differ by a tolerance; pictures must be where they were.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

FOLDER = Path(__file__).parent.parent.parent / "notebooks"
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
HEX = re.compile(r"\b[0-9a-f]{12}\b")  # ids of trees, which are text
SHARE = 0.02  # by which a number may differ: processors round sums in different orders
TEXTS = ("text/plain", "text/html")
PICTURE = "image/png"
FORGET = "%reset -f"
PICTURES = 'import altair; altair.renderers.enable("png")'
TIMEOUT_S = 120


def notebooks() -> list[Path]:
    """The notebooks of the repository."""
    return sorted(FOLDER.glob("*.ipynb"))


def executed(path: Path) -> NotebookNode:
    """Return a notebook with the outputs of a run in its folder, without what differs from run to run."""
    notebook = nbformat.read(path, as_version=4)
    _execute(notebook, path.parent)
    return notebook


def executed_in_one_kernel(paths: Sequence[Path]) -> dict[Path, NotebookNode]:
    """Return notebooks of one folder with the outputs of a run; a cell that fails has an error as its output.

    They run one after another in one kernel, so that it starts and imports once. Between them every variable is
    forgotten, so that none relies on another.
    """
    notebooks = {path: nbformat.read(path, as_version=4) for path in paths}
    cells = [cell for notebook in notebooks.values() for cell in (*notebook.cells, new_code_cell(FORGET))]
    _execute(new_notebook(cells=cells), paths[0].parent, allow_errors=True)
    return notebooks


def _execute(notebook: NotebookNode, folder: Path, **settings: Any) -> None:
    """Run a notebook in a folder, charts as pictures, and leave what does not differ from run to run in its cells."""
    notebook.cells.insert(0, new_code_cell(PICTURES))
    NotebookClient(notebook, timeout=TIMEOUT_S, resources={"metadata": {"path": str(folder)}}, **settings).execute()
    del notebook.cells[0]
    for cell in notebook.cells:
        cell.metadata = NotebookNode()
        if cell.cell_type == "code":
            cell.outputs = list(_joined(cell.outputs))
    notebook.metadata.language_info = NotebookNode({"name": "python"})


def _joined(outputs: list[Any]) -> Iterator[Any]:
    """Yield the outputs, pieces of one stream joined, as they may be cut anywhere."""
    streams: dict[str, Any] = {}
    for output in outputs:
        if output.output_type == "stream" and output.name in streams:
            streams[output.name].text += output.text
            continue
        if output.output_type == "stream":
            streams[output.name] = output
        yield output


def differences(stored: NotebookNode, fresh: NotebookNode) -> list[str]:
    """Return what differs between the outputs of two runs of a notebook, a line for each."""
    found = []
    for number, (old, new) in enumerate(zip(stored.cells, fresh.cells, strict=True), 1):
        if old.cell_type == "code":
            found += [f"cell {number}: {line}" for line in _cell(old.outputs, new.outputs)]
    return found


def _cell(old: list[Any], new: list[Any]) -> Iterator[str]:
    failed = [output for output in new if output.output_type == "error"]
    if failed:
        yield f"fails: {failed[0].ename}: {failed[0].evalue}"
        return
    kinds = [[_kinds(output) for output in outputs] for outputs in (old, new)]
    if kinds[0] != kinds[1]:
        yield f"outputs {kinds[0]} are stored, {kinds[1]} are new"
        return
    for before, after in zip(old, new, strict=True):
        for kind, text in _texts(before).items():
            yield from _text(text, _texts(after)[kind])


def _kinds(output: Any) -> list[str]:
    if output.output_type == "stream":
        return [str(output.name)]
    return sorted(output.get("data", {"error": ""}))


def _texts(output: Any) -> dict[str, str]:
    if output.output_type == "stream":
        return {output.name: output.text}
    return {kind: text for kind, text in output.get("data", {}).items() if kind in TEXTS}


def _text(old: str, new: str) -> Iterator[str]:
    """Yield the first difference of two texts, numbers compared with a tolerance."""
    words = [NUMBER.split(HEX.sub(_letters, text)) for text in (old, new)]
    if [_spaced(part) for part in words[0]] != [_spaced(part) for part in words[1]]:
        parts = zip(*words, strict=False)
        first = next((pair for pair in parts if _spaced(pair[0]) != _spaced(pair[1])), (old, new))
        yield f"text {first[0]!r:.80} is stored, {first[1]!r:.80} is new"
        return
    numbers = [NUMBER.findall(HEX.sub(_letters, text)) for text in (old, new)]
    for before, after in zip(*numbers, strict=True):
        if not close(before, after):
            yield f"number {before} is stored, {after} is new"
            return


def _letters(match: re.Match[str]) -> str:
    """Return an id in letters alone, so that it is compared as text."""
    return "".join(chr(ord("g") + int(letter, 16)) for letter in match[0])


def _spaced(text: str) -> str:
    """Return text with runs of blanks and rules as one: columns are as wide as their numbers."""
    return re.sub(r"\s+|-{2,}", " ", text)


def close(old: str, new: str) -> bool:
    """Return whether two written numbers agree within the tolerance, or by one in the last digit.

    >>> close("1.31", "1.32"), close("100", "101"), close("1.31", "1.40"), close("5", "6")
    (True, True, False, False)
    """
    last = 10.0 ** -len(old.partition(".")[2]) if "." in old and "e" not in old else 0.0
    return abs(float(old) - float(new)) <= max(SHARE * abs(float(old)), last) + 1e-12


def pictures(notebook: NotebookNode) -> int:
    """Return the number of pictures among the outputs."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return sum(PICTURE in output.get("data", {}) for output in outputs)


def main(names: list[str]) -> None:
    """Run the notebooks of these names, or all, and store them with their outputs."""
    for path in notebooks():
        if not names or path.stem in names:
            nbformat.write(executed(path), path)
            sys.stdout.write(f"{path.name} stored\n")


if __name__ == "__main__":
    main(sys.argv[1:])
