"""Pieces of a part's results: each is computed once, written as it comes, and found again by the next call.

A machine may be lent for minutes at a time, and bring back few files. So every piece is in `gpu.json` as soon as it is
there, and an archive holds all files that are worth having. A piece that fails is noted, and the next one is made.
"""

import json
import math
import time
import traceback
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from treeopt.storage.user_files import whole, write_text

RESULTS = "gpu.json"
LINE = 200  # characters of what is printed of a piece


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
        failures: tracebacks of pieces that failed in this call, by name.
    """

    output: Path
    part: str
    conditions: Mapping[str, Any]
    deadline: float | None = None
    archive: Path | None = None
    seconds: float = 0.0
    found: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

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
        """Return the value of that name; compute and write it if it is missing, or its file is. None: that failed.

        Raises:
            OutOfTimeError: it is missing, and no time is left.
        """
        if name in self.found and (file is None or (self.output / file).is_file()):
            return self.found[name]
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTimeError(f"no time was left for {name}")
        begun = time.monotonic()
        try:
            self.found[name] = json.loads(json.dumps(make()))
            said = _headline(self.found[name])
        except Exception as error:  # noqa: BLE001 - a driver's, a compiler's: the other pieces are worth having
            self.failures[name] = traceback.format_exc()
            said = f"failed: {type(error).__name__}: {error}"
        self.write(under_way=True)
        print(f"{self.part}: {name}: {time.monotonic() - begun:.1f} s {said}".splitlines()[0][:LINE], flush=True)
        return self.found.get(name)

    def seconds_left(self) -> float:
        """Return the seconds until the deadline."""
        return math.inf if self.deadline is None else self.deadline - time.monotonic()

    def write(self, **state: Any) -> None:
        """Write what was found, with the part's state, and pack the files."""
        seconds = round(self.seconds + time.monotonic() - self._started, 1)
        failed = {"failed": self.failures} if self.failures else {}
        record = {"pieces": self.found, "seconds": seconds, **failed, **state, **self.conditions}
        write_part(self.output, self.part, record)
        if self.archive is not None:
            pack(self.output, self.archive)


def _headline(value: Any) -> str:
    """Return the numbers and words of a value, in few characters."""
    if not isinstance(value, dict):
        return f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(f"{name} {_headline(own)}" for name, own in value.items() if not isinstance(own, dict | list))


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
        for file in sorted(output.glob("*.json")):
            packed.write(file, file.name)


def unpack(archive: Path, output: Path) -> None:
    """Put an archive's files where they are missing."""
    with zipfile.ZipFile(archive) as packed:
        for name in packed.namelist():
            if not (output / name).exists():
                packed.extract(name, output)
