"""Pieces of a part's results: each is computed once, written as it comes, and found again by the next call.

A machine may be lent for minutes at a time, and bring back few files. So every piece is in `gpu.json` as soon as it is
there, and an archive holds all files that are worth having.
"""

import json
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from treeopt.storage.atomic_files import whole, write_text

KEPT = ("*.json", "*.npz", "trained/*.npz")  # models are not: an archive of 16 MB does not hold them
RESULTS = "gpu.json"


class OutOfTimeError(Exception):
    """No time is left for another piece."""


class OtherDeviceError(Exception):
    """The results are another device's."""


@dataclass
class Pieces:
    """The results of one part.

    Attributes:
        output: folder of `gpu.json` and of files.
        part: name of the part.
        conditions: the device and provenance of this call.
        deadline: value of the monotonic clock after which no piece is begun; None: there is none.
        archive: where all files of `output` worth having are packed after each piece; None: nowhere.
        seconds: spent on the part by earlier calls.
        found: values by name.
    """

    output: Path
    part: str
    conditions: Mapping[str, Any]
    deadline: float | None = None
    archive: Path | None = None
    seconds: float = 0.0
    found: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read what earlier calls have found.

        Raises:
            OtherDeviceError: on another device.
        """
        before = results(self.output).get(self.part, {})
        device = before.get("device", self.conditions.get("device"))
        if device != self.conditions.get("device"):
            raise OtherDeviceError(f"{self.output} holds results of {device}: name another --output")
        self.found, self.seconds = dict(before.get("pieces", {})), before.get("seconds", 0.0)
        self._started = time.monotonic()

    def piece(self, name: str, make: Callable[[], Any], *, file: str | None = None) -> Any:
        """Return the value of that name; compute and write it if it is missing, or its file is.

        Raises:
            OutOfTimeError: it is missing, and no time is left.
        """
        if name in self.found and (file is None or (self.output / file).is_file()):
            return self.found[name]
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTimeError(f"no time was left for {name}")
        begun = time.monotonic()
        self.found[name] = json.loads(json.dumps(make()))
        self.write(under_way=True)
        print(f"{self.part}: {name}: {time.monotonic() - begun:.1f} s", json.dumps(self.found[name]), flush=True)
        return self.found[name]

    def write(self, **state: Any) -> None:
        """Write what was found, with the part's state, and pack the files."""
        seconds = round(self.seconds + time.monotonic() - self._started, 1)
        record = {"pieces": self.found, "seconds": seconds, **state, **self.conditions}
        write_part(self.output, self.part, record)
        if self.archive is not None:
            pack(self.output, self.archive)


def results(output: Path) -> dict[str, Any]:
    """Return what `gpu.json` holds, by part."""
    path = output / RESULTS
    return dict(json.loads(path.read_text("utf-8"))) if path.exists() else {}


def write_part(output: Path, part: str, record: Mapping[str, Any]) -> None:
    """Add a part's results to those that are there."""
    write_text(output / RESULTS, json.dumps(results(output) | {part: record}, indent=1) + "\n")


def pack(output: Path, archive: Path) -> None:
    """Pack the files worth having, whole or not at all."""
    with whole(archive) as path, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in sorted(file for pattern in KEPT for file in output.glob(pattern)):
            packed.write(file, file.relative_to(output))


def unpack(archive: Path, output: Path) -> None:
    """Put an archive's files where they are missing."""
    with zipfile.ZipFile(archive) as packed:
        for name in packed.namelist():
            if not (output / name).exists():
                packed.extract(name, output)
