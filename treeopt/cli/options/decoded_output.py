"""Options that say where decoded texts go: stdout as text or JSON, or a file that can be resumed."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from treeopt.cli.options import general, output_files
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
        """Check that the settings go together.

        Raises:
            UsageError: names those that do not.
        """
        if self.stream + self.as_json + self.json_lines > 1:
            raise UsageError("--stream, --json and --json-lines each need stdout: give one of them")
        if self.stream and batch > 1:
            raise UsageError(f"--stream needs batch 1, got batch {batch}")
        if self.resume and self.output is None:
            raise UsageError("--resume needs the --output to resume")
        if self.resume and sampled:
            raise UsageError(
                "--resume works only with greedy decoding: sampled texts that are short finish first, so keeping them "
                "would bias the result"
            )
        if self.output is not None and self.output.exists() and not self.resume:
            raise UsageError(f"--output {self.output} exists: give --resume to resume it, or another name")
        output_files.check_output(self.output, force=True)  # what exists is resumed, or refused above

    def begun(self) -> Begun | None:
        """Return meta and records of an interrupted output.

        Raises:
            UsageError: the file is not such an output.
        """
        if self.output is None:
            return None
        try:
            lines = read_lines(self.output, SCHEMA)
            if lines is None:
                return None
            meta, records = get(lines[0], "meta", dict, "line 1"), lines[1]
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
        """Return the records of an interrupted output; every setting that texts depend on must be as it was.

        Raises:
            UsageError: a setting differs.
        """
        if begun is None:
            return []
        before, records = begun
        now = json.loads(json.dumps(meta))
        for key in sorted((now.keys() | before.keys()) - {"provenance", "device"}):
            if now.get(key) != before.get(key):
                old, new = (json.dumps(settings.get(key)) for settings in (before, now))
                raise UsageError(f"--resume {self.output}: it was written with {key} {old}, not {new}")
        return records

    @contextmanager
    def writer(self, meta: Mapping[str, Any]) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Call what it yields with a finished request to write it to the output and print it in the chosen form."""
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
    click.option("--stream", is_flag=True, help="Print text while it is decoded; needs batch 1."),
    click.option("--json-lines", is_flag=True, help="Print requests as JSON lines on stdout instead of text."),
    click.option(
        "--output",
        type=general.FILE,
        help="Write each request to this file when it ends (JSON lines, never a partial one).",
    ),
    click.option("--resume", is_flag=True, help="Resume an interrupted --output; prints only the remaining requests."),
    general.as_json,
)

# For the processes that help another one decode.
SILENT = Results(output=None, resume=False, stream=False, json_lines=False, as_json=True)
