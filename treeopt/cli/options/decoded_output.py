"""Where decoded texts go, as a command line says it: text, JSON or a file that can be gone on with."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from treeopt.cli.options import general
from treeopt.errors import UsageError
from treeopt.storage.json_lines import appended, read_lines
from treeopt.storage.json_records import RecordError, get

SCHEMA = "treeopt.decode/1"

Begun = tuple[dict[str, Any], list[dict[str, Any]]]


@dataclass(frozen=True)
class Results:
    """Where texts go."""

    output: Path | None
    resume: bool
    stream: bool
    json_lines: bool
    as_json: bool

    def check(self, batch: int, *, sampled: bool) -> None:
        """Refuse settings that do not go together.

        Raises:
            UsageError: names them.
        """
        if self.stream + self.as_json + self.json_lines > 1:
            raise UsageError("--stream, --json and --json-lines each want stdout: give one of them")
        if self.stream and batch > 1:
            raise UsageError(f"--stream is for batch 1, got batch {batch}")
        if self.resume and self.output is None:
            raise UsageError("--resume needs the --output to go on with")
        if self.resume and sampled:
            raise UsageError(
                "--resume is for greedy texts: of sampled ones the short end first, so the finished and the rest "
                "together would not have the target's law"
            )
        if self.output is not None and self.output.exists() and not self.resume:
            raise UsageError(
                f"--output {self.output} is there already: give --resume to go on with it, or another name"
            )
        general.check_output(self.output)

    def begun(self) -> Begun | None:
        """Meta and records of an interrupted output.

        Raises:
            UsageError: it is no such file.
        """
        if self.output is None:
            return None
        try:
            found = read_lines(self.output, SCHEMA)
            if found is None:
                return None
            meta, records = get(found[0], "meta", dict, "line 1"), found[1]
            for number, record in enumerate(records, 2):
                get(record, "request", int, f"line {number}")
                if meta.get("audit"):
                    audit = get(record, "audit", dict, f"line {number}")
                    for key in ("tokens", "differing", "unexcused"):
                        get(audit, key, int, f"line {number}: `audit`")
                    get(audit, "worst", float, f"line {number}: `audit`")
        except RecordError as error:
            raise UsageError(f"--resume {self.output}: {error}") from error
        return meta, records

    def continued(self, begun: Begun | None, meta: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Records of an interrupted output; all that texts depend on, but for rounding, must be as it was.

        Raises:
            UsageError: it is not.
        """
        if begun is None:
            return []
        was, records = begun
        mine = json.loads(json.dumps(meta))
        for key in sorted((mine.keys() | was.keys()) - {"provenance", "device"}):
            if mine.get(key) != was.get(key):
                found, due = (json.dumps(each.get(key)) for each in (was, mine))
                raise UsageError(f"--resume {self.output}: it was written with {key} {found}, not {due}")
        return records

    @contextmanager
    def writer(self, meta: Mapping[str, Any]) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Call what it yields with a finished request to write it to the output and print it in the form asked for."""
        with ExitStack() as stack:
            put = None
            if self.output is not None:
                put = stack.enter_context(appended(self.output, {"schema": SCHEMA, "meta": meta}))

            def write(record: dict[str, Any]) -> None:
                if put is not None:
                    put(record)
                if self.stream:
                    print(flush=True)
                elif self.json_lines:
                    print(json.dumps(record), flush=True)
                elif not self.as_json:
                    print(record["text"], flush=True)

            yield write


results = general.bundle(
    "results",
    Results,
    click.option("--stream", is_flag=True, help="Print text as it is decoded; batch 1."),
    click.option("--json-lines", is_flag=True, help="Print requests as JSON lines on stdout instead of text."),
    click.option(
        "--output", type=general.FILE, help="Write requests here as they end (JSON lines, whole ones always)."
    ),
    click.option("--resume", is_flag=True, help="Go on with an --output that was interrupted; only the rest is shown."),
    general.as_json,
)

# Of processes that help another one decode.
SILENT = Results(output=None, resume=False, stream=False, json_lines=False, as_json=True)
