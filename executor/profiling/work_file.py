"""The work file of a measurement: what was measured before an interruption, one JSON record per line.

After a head with all settings come the prefill times, the schedule, and the blocks as they were measured. The file is
not used by several processes, since each would write its own.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from executor.profiling.schedule import FEWEST
from executor.profiling.timed_block import Block
from executor.target.tensor_parallel import processes
from simulate.profiles.prefill import Prefill
from simulate.profiles.profile import read_prefill
from treeopt.errors import UsageError
from treeopt.storage.json_lines import appended, read_lines
from treeopt.storage.json_records import RecordError, get

SCHEMA = "treeopt.measuring/5"

BlockKey = tuple[int, int, int]  # configuration, round, and turn in it
Put = Callable[[dict[str, Any]], None]


class WorkFile:
    """Records of a measurement that was begun, perhaps none."""

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        """Read the file.

        Args:
            path: where finished blocks are stored; None: nowhere.
            settings: all that blocks depend on.

        Raises:
            UsageError: the file belongs to another measurement, or is not a work file.
        """
        self.path = path if processes() == 1 else None
        self._head = json.loads(
            json.dumps({"schema": SCHEMA, "settings": settings})
        )  # tuples are lists, as in the file
        self._records = [] if self.path is None else self._read(self.path)

    def _read(self, path: Path) -> list[dict[str, Any]]:
        try:
            lines = read_lines(path, SCHEMA)
            if lines is None:
                return []
            before, now = get(lines[0], "settings", dict, "line 1"), self._head["settings"]
        except RecordError as error:
            raise UsageError(f"{path}: {error}; remove it to start again") from error
        for name in dict.fromkeys([*now, *before]):
            if before.get(name) != now.get(name):
                raise UsageError(
                    f"{path} was begun with other settings ({name} {before.get(name)}, now {now.get(name)}): "
                    "give those, or remove it to start again"
                )
        return lines[1]

    def appending(self) -> AbstractContextManager[Put]:
        """Open the file; inside, a function appends one record."""
        return nullcontext(lambda record: None) if self.path is None else appended(self.path, self._head)

    def remove_if_empty(self) -> None:
        """Remove the file if nothing was in it when it was read."""
        if self.path is not None and not self._records:
            self.path.unlink(missing_ok=True)

    def prefill(self) -> Prefill | None:
        """Return the prefill times, if they were measured.

        Raises:
            UsageError: the record is damaged.
        """
        for line, record in enumerate(self._records, 2):
            if isinstance(record, dict) and "prefill" in record:
                try:
                    return read_prefill(record["prefill"], "prefill")
                except RecordError as error:
                    raise self._damaged(line, "prefill", error) from error
        return None

    def planned(self, *, required: int, count: int, rounds: int) -> dict[str, Any] | None:
        """Return the schedule that was decided on, if one was: `ways` (the first n by number), `rounds`, `took_s`.

        Args:
            required: configurations that every schedule holds.
            count: all configurations.
            rounds: most rounds.

        Raises:
            UsageError: the record is damaged.
        """
        for line, record in enumerate(self._records, 2):
            if isinstance(record, dict) and "planned" in record:
                try:
                    return _planned(record, required, count, rounds)
                except RecordError as error:
                    raise self._damaged(line, "schedule", error) from error
        return None

    def blocks(self, places: Sequence[Sequence[BlockKey]]) -> dict[BlockKey, Block]:
        """Return the blocks of all places and rounds that are complete.

        The others are measured again: what one block took before an interruption tells nothing about the machine after
        it.

        Args:
            places: the blocks of each place and round, by key.

        Raises:
            UsageError: a record is damaged.
        """
        keys = {key for place in places for key in place}
        measured: dict[BlockKey, Block] = {}
        for line, record in enumerate(self._records, 2):
            if isinstance(record, dict) and ("planned" in record or "prefill" in record):
                continue
            try:
                key, block = _block(record, keys)
            except RecordError as error:
                raise self._damaged(line, "block", error) from error
            measured[key] = block
        complete = [place for place in places if all(key in measured for key in place)]
        return {key: measured[key] for place in complete for key in place}

    def _damaged(self, line: int, kind: str, error: RecordError) -> UsageError:
        return UsageError(f"{self.path}: line {line} is no {kind}: {error}; remove the file to start again")


def _planned(record: Mapping[str, Any], required: int, count: int, most_rounds: int) -> dict[str, Any]:
    planned: dict[str, Any] = get(record, "planned", dict, "schedule")
    ways, rounds = get(planned, "ways", list, "planned"), get(planned, "rounds", int, "planned")
    took_s = get(planned, "took_s", float, "planned")
    if ways != list(range(len(ways))) or not required <= len(ways) <= count:
        raise RecordError(f"planned: `ways` must be the first {required} to {count} by number")
    if not FEWEST <= rounds <= most_rounds or took_s < 0:
        raise RecordError(f"planned: `rounds` or `took_s` is out of range: {rounds}, {took_s}")
    return planned


def _block(record: Any, keys: Collection[BlockKey]) -> tuple[BlockKey, Block]:
    way, number, turn = (get(record, name, int, "visit") for name in ("way", "round", "turn"))
    if (way, number, turn) not in keys:
        raise RecordError(f"way {way}, round {number}, turn {turn} is not in the schedule")
    return (way, number, turn), Block.read(get(record, "block", dict, "visit"))


def block_record(key: BlockKey, block: Block) -> dict[str, Any]:
    """Return the record of a block."""
    way, number, turn = key
    return {"way": way, "round": number, "turn": turn, "block": vars(block)}
