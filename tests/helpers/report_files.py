"""A file of every kind that `treeopt report` reads, and its page in parts."""

import json
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from tests.helpers.command_line import done
from treeopt.storage.user_files import shipped

TRACES = shipped("traces")


def written_results(folder: Path) -> dict[str, Path]:
    """Run the commands that write results, and return their files by kind, with shipped ones for what takes longer."""
    medusa = TRACES / "medusa-t0.npz"
    simulated = ("simulate", "--trace", medusa, "--tree", "2", "--batch", "4")
    commands = {
        "plan": ("search", "--trace", medusa, "--batch", "1,4"),
        "comparison": ("compare", medusa, TRACES / "hydra-t0.npz", "--batch", "4"),
        "verdict": ("verdict", "--trace", medusa, "--batch", "4"),
        "run": simulated,
        "serving": (*simulated, "--arrivals", "5", "--requests", "50"),
        "capacity": (
            *(*simulated, "--capacity", "0.9", "--tpot-s", "0.05"),
            *("--requests", "50", "--replications", "2"),
        ),
        "whatif": (
            *("whatif", "--trace", medusa, "--target", shipped("models/stdlib-llama"), "--hardware", "h100"),
            *("--batch", "1,4"),
        ),
    }
    for name, words in commands.items():
        done(*words, "--output", folder / f"{name}.json")
    return {
        "trace": medusa,
        **{name: folder / f"{name}.json" for name in commands},
        "validation": shipped("validations/medusa-cpu.json"),
        "predictions": shipped("validations/medusa-cpu.predictions.json"),
        "profile": shipped("profiles/medusa-cpu.json"),
    }


@dataclass(frozen=True)
class Element:
    """An opened tag: its name, attributes, and the names of the tags around it."""

    tag: str
    attributes: dict[str, str | None]
    around: tuple[str, ...]


EMPTY = {"meta", "input", "br", "link", "img"}


class Parsed(HTMLParser):
    """A page: elements in order, texts by the tag that they stand in; fails on tags that are not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == [], "every tag is closed"

    def handle_starttag(self, tag, attrs):
        self.elements.append(Element(tag, dict(attrs), tuple(self._open)))
        if tag not in EMPTY:
            self._open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_startendtag(self, tag, attrs):
        self.elements.append(Element(tag, dict(attrs), tuple(self._open)))

    def handle_endtag(self, tag):
        if tag not in EMPTY:
            assert self._open.pop() == tag

    def handle_data(self, data):
        for tag in dict.fromkeys(self._open):
            self.texts[tag][-1] += data

    def all(self, tag: str) -> list[Element]:
        return [element for element in self.elements if element.tag == tag]

    def embedded(self, name: str) -> dict:
        """The JSON of a script element by its id."""
        scripts = [element.attributes.get("id") for element in self.all("script")]
        return json.loads(self.texts["script"][scripts.index(name)])
