"""Sources of an import: a file, standard input (`-`), or an http address, which are stored in a temporary file."""

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import click
from click.shell_completion import CompletionItem

from treeopt.errors import TraceError, UsageError
from treeopt.traces.trace import Trace

LIMIT = 2**26  # most bytes of a source that is no file
SCHEMES = ("http", "https")
WAIT_S = 10.0  # longest wait for a connection, and for the next piece of an answer
TOTAL_S = 60.0  # longest time of a whole answer


class TextSource(click.ParamType):  # type: ignore[type-arg]
    """A file, `-` for standard input, or an address that begins with http:// or https://."""

    name = "source"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        """Return a path, or the text of what is no file."""
        text = str(value)
        scheme, mark, _ = text.partition("://")
        if mark and scheme.isalnum() and scheme.lower() not in SCHEMES:
            self.fail(
                f"{shown(text)}: an address begins with http:// or https://, not {scheme}://: save what it holds to a "
                "file, or pipe it in as -",
                param,
                ctx,
            )
        return text if text == "-" or text.lower().startswith(("http://", "https://")) else Path(text)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return files."""
        return [CompletionItem(incomplete, type="file")]


@contextmanager
def stored(source: Path | str | None) -> Iterator[Path | None]:
    """Yield the file of a source; errors that name a temporary file name the source instead.

    Raises:
        UsageError: nothing can be read there.
    """
    if not isinstance(source, str):
        yield source
        return
    content = _standard_input() if source == "-" else fetched(source)
    with tempfile.TemporaryDirectory(prefix="treeopt-") as folder:
        path = Path(folder) / "source"
        path.write_bytes(content)
        try:
            yield path
        except TraceError as error:
            raise TraceError(str(error).replace(str(path), shown(source))) from error


def named(trace: Trace, source: Path | str, before: Path | str | None = None) -> Trace:
    """Return the trace with the names of its sources in the place of those of temporary files."""
    imported = dict(trace.meta["imported"])
    if isinstance(source, str):
        imported["file"] = shown(source)
    if isinstance(before, str):
        imported["before"] = {**imported["before"], "file": shown(before)}
    return replace(trace, meta={**trace.meta, "imported": imported})


def shown(source: str) -> str:
    """Return the name of a source for messages and files, without a password.

    >>> shown("-"), shown("http://user:secret@10.0.0.1:8000/metrics?key=1")
    ('standard input', 'http://10.0.0.1:8000/metrics')
    """
    if source == "-":
        return "standard input"
    parts = urlsplit(source)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _standard_input() -> bytes:
    content = sys.stdin.buffer.read(LIMIT + 1)
    if not content.strip():
        raise UsageError("standard input is empty: pipe the engine's output into the command, or name a file")
    if len(content) > LIMIT:
        raise UsageError(f"standard input: larger than {LIMIT} bytes: name a file")
    return content


def fetched(url: str) -> bytes:
    """Return what a server answers.

    Raises:
        UsageError: no such address, no answer in time, a refusal, or more than `LIMIT` bytes.
    """
    import httpx2

    name, started, content = shown(url), time.monotonic(), bytearray()
    try:
        with (
            httpx2.Client(timeout=WAIT_S, follow_redirects=True, trust_env=False) as client,
            client.stream("GET", url) as answer,
        ):
            if answer.status_code != 200:
                raise UsageError(
                    f"{name}: answers {answer.status_code} {answer.reason_phrase}: check the address; counters are at "
                    "/metrics, where the server was started with them"
                )
            for piece in answer.iter_bytes():
                content += piece
                if len(content) > LIMIT:
                    raise UsageError(f"{name}: answers more than {LIMIT} bytes: save the part that counts to a file")
                if time.monotonic() - started > TOTAL_S:
                    raise UsageError(f"{name}: still answers after {TOTAL_S:.0f} s: save it to a file")
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"{name}: cannot be read: {reason}: check that the server runs") from error
    return bytes(content)
