"""Kinds of sources of acceptance: what one says of itself, the registry of all, and the trace of a file of any kind.

Outputs of engines are recognised by their content, whatever the file is called.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from treeopt.defaults import IMPORTED_LENGTH, IMPORTED_REQUESTS
from treeopt.errors import TraceError, UsageError, counted
from treeopt.registry import Registry
from treeopt.storage.user_files import checksum
from treeopt.traces.importers.chain_counts import Chain, chain_trace
from treeopt.traces.importers.source_file import cut_line, is_json, objects, parsed, read_text, source_meta
from treeopt.traces.trace import Trace

RECOGNISED = "engine"  # the format of a file whose kind is recognised by its content
GUIDE = "docs/guides/import_measurements.md"
# Words of outputs that do not name their engine.
LOGGED = {"llama.cpp": "print_timing", "SGLang": "Decode batch", "TensorRT-LLM": "specDecodingStats"}
ALIASES = ("counters", "responses", "log")  # names of kinds that mean the same


class Content:
    """The text of a file, and what it holds as JSON."""

    def __init__(self, text: str) -> None:
        """Hold a text."""
        self.text = text

    @cached_property
    def values(self) -> Sequence[Any] | None:
        """The values of JSON, of lines of JSON or of events; None for other text.

        Raises:
            TraceError: a line was cut off among lines of JSON.
        """
        try:
            return parsed(self.text)
        except TraceError:
            if cut_line(self.text):
                raise
            return None

    @cached_property
    def records(self) -> Sequence[dict[str, Any]]:
        """All objects of the JSON, outer first, those in strings of raw responses too; none of other text."""
        return [] if self.values is None else list(objects(self.text, inside="_histogram"))

    def with_key(self, *keys: str) -> list[dict[str, Any]]:
        """Return the objects that have one of these keys, with a value that is not empty."""
        return [record for record in self.records if any(record.get(key) for key in keys)]


@dataclass(frozen=True)
class Output:
    """An output of an engine that a kind of source reads: a row of the guide's table.

    Attributes:
        engine: the engine or program.
        counts: what the output counts.
        how: how to get it.
        first: its place among the outputs of that engine; lower ones say more.
    """

    engine: str
    counts: str
    how: str
    first: int = 2


@dataclass(frozen=True)
class TraceSource:
    """A kind of source: an entry of `SOURCES`.

    Attributes:
        name: its name, also in the `meta` of traces.
        title: what a file of this kind holds, in words.
        settings: the settings that it takes, and what each means here.
        holds: whether a content is of this kind; None: never recognised, but named as the format.
        chain: reads the chain of a content, with the settings that were given.
        trace: reads the trace of a file, for kinds that hold more than a chain.
        last: True if it is asked only where no other kind is recognised.
        outputs: the outputs of engines that it reads.
    """

    name: str
    title: str
    settings: Mapping[str, str]
    holds: Callable[[Content], bool] | None = None
    chain: Callable[..., Chain] | None = None
    trace: Callable[..., Trace] | None = None
    last: bool = False
    outputs: tuple[Output, ...] = ()


SOURCES: Registry[TraceSource] = Registry("format", "treeopt.traces.importers.sources", group="treeopt.sources")


@dataclass(frozen=True)
class ImportedFile:
    """A file to import, and how a trace is made up where it has figures but no texts.

    Attributes:
        path: the file.
        kind: its format: `engine`, or a name of `SOURCES`.
        saved: reads files of `torch.save`.
        requests: of a trace that is made up; None: the default.
        length: tokens of each.
        seed: of its texts.
    """

    path: Path
    kind: str
    saved: Callable[[Path], Any]
    requests: int | None = None
    length: int = IMPORTED_LENGTH
    seed: int = 0

    @property
    def rng(self) -> np.random.Generator:
        """A new generator of its texts."""
        return np.random.default_rng(self.seed)

    def of_chain(self, chain: Chain, kind: str, *, steps: int | None = None, **recorded: Any) -> Trace:
        """Return a trace with the acceptance of a chain from this kind of output; `recorded` goes to its provenance."""
        meta = source_meta(self.path, kind, (), seed=self.seed)
        recorded = ({} if chain.engine is None else {"engine": chain.engine}) | recorded
        meta["imported"] |= recorded | {"steps": chain.steps, "survival": list(chain.survival)}
        if chain.requests and self.requests is not None:
            raise UsageError(f"--requests does not apply: the file records {counted(len(chain.requests), 'request')}")
        return chain_trace(chain, requests=self.requests or IMPORTED_REQUESTS, rng=self.rng, meta=meta, steps=steps)


def formats() -> tuple[str, ...]:
    """Return the names that `--format` takes."""
    named = [name for name, source in SOURCES.items() if source.trace is not None]
    return (RECOGNISED, *named, *ALIASES)


def meaning(setting: str) -> str:
    """Return what a setting means to the kinds of sources that take it, for help.

    >>> meaning("uneven")
    'bench-serve, counters, responses, vllm-vcr: count what short drafts left out as rejected.'
    """
    kinds: dict[str, list[str]] = {}
    for name, source in SOURCES.items():
        if setting in source.settings:
            kinds.setdefault(source.settings[setting], []).append(name)
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in kinds.items()) + "."


def check_settings(kind: str, names: Mapping[str, Any]) -> None:
    """Raise UsageError for the first setting that the format does not take, or for another format."""
    if kind not in formats():
        raise UsageError(f"--format must be one of {', '.join(formats())}, got {kind!r}")
    entry = None if kind in (RECOGNISED, *ALIASES) else SOURCES[kind]
    outputs = [source for source in SOURCES.values() if source.chain is not None]
    taken = {name for source in outputs for name in source.settings} if entry is None else entry.settings
    for name in names:
        if name not in taken:
            raise UsageError(f"--{name.replace('_', '-')} does not apply to --format {kind}")


def import_trace(file: ImportedFile, settings: Mapping[str, Any]) -> Trace:
    """Return the trace of a file, with the settings of its format that are not None.

    Raises:
        UsageError: no such format, or a setting that it does not take.
        TraceError: names the file and what is wrong in it.
    """
    check_settings(file.kind, settings)
    try:
        if file.kind in (RECOGNISED, *ALIASES):
            return _of_output(file, settings)
        reader = SOURCES[file.kind].trace
        assert reader is not None
        return reader(file, **settings)
    except TraceError as error:
        raise TraceError(f"{file.path}: {error}") from error


def _of_output(file: ImportedFile, settings: Mapping[str, Any]) -> Trace:
    before = settings.get("before")
    try:
        earlier = None if before is None else read_text(before)
    except TraceError as error:
        raise TraceError(f"--before {before}: {error}") from error
    source, chain = read_output(read_text(file.path), settings, before=earlier)
    recorded = {} if before is None else {"before": {"file": before.name, "sha256": checksum(before)}}
    return file.of_chain(chain, source.name, steps=settings.get("steps"), **recorded)


def read_output(text: str, settings: Mapping[str, Any], *, before: str | None = None) -> tuple[TraceSource, Chain]:
    """Return the kind and the chain of an engine's output, recognised by its content.

    Args:
        text: the output.
        settings: names and values of the settings that were given; those that a kind does not take are refused.
        before: text of an earlier scrape of counters.

    Raises:
        TraceError: no engine's output, one without positions, or one that contradicts itself.
        UsageError: a setting that does not apply to this kind of output.
    """
    if not text.strip():
        raise TraceError("it is empty")
    content = Content(text)
    source = recognised(content)
    if source is None and (lines := logged_lines(content)):
        earlier = None if before is None else logged_lines(Content(before)) or before
        return read_output(lines, settings, before=earlier)
    source = source or recognised(content, last=True)
    if source is None:
        raise TraceError(nothing_known(text))
    for name in settings:
        if name not in source.settings:
            raise UsageError(f"--{name} does not apply to {source.name}, which the file holds")
    values = {name: value for name, value in settings.items() if name not in ("steps", "before", "requests")}
    assert source.chain is not None
    return source, source.chain(content, **values, **({} if before is None else {"before": Content(before)}))


def recognised(content: Content, *, last: bool = False) -> TraceSource | None:
    """Return the kind of output that a content is, or None; `last`: among the kinds that are asked last.

    Raises:
        TraceError: it holds several kinds, which may be of different runs; or a line of JSON that was cut off.
    """
    asked = [source for source in SOURCES.values() if source.last == last]
    kinds = [source for source in asked if source.holds is not None and source.holds(content)]
    if len(kinds) > 1:
        raise TraceError(f"it holds {' and '.join(source.title for source in kinds)}: keep one")
    return next(iter(kinds), None)


def logged_lines(content: Content) -> str:
    """Return the strings in a log of JSON lines, a line each, if they are an engine's output; empty otherwise.

    A string that another field of its record repeats is left out.

    >>> log = '{"msg": "slot update_slots: id  3 | task 0 | accepted  1/ 5 draft tokens"}'
    >>> logged_lines(Content(log))[-14:]
    '5 draft tokens'
    """
    lines = "\n".join(value for record in content.records for value in _unrepeated(record))
    return lines if lines and not is_json(lines) and recognised(Content(lines)) is not None else ""


def _unrepeated(record: Mapping[str, Any]) -> list[str]:
    """Return the strings of a record but those that are part of a string of another field."""
    values = list(dict.fromkeys(value for value in record.values() if isinstance(value, str)))
    longest = max(values, key=len, default="")
    return [value for value in values if value is longest or value.strip() not in longest]


def nothing_known(text: str) -> str:
    """Return the sentence about a file that holds no kind of output: means alone, bare numbers, or no speculation."""
    if re.fullmatch(r"[\s\d.,%\[\]]+", text):
        return (
            "bare numbers do not say what they are: give `--format table --column survival` (shares of all steps by "
            "position, as engines print them), or `rank` or `recall` (of each rank, given the rows before)"
        )
    if not re.search(r"(?i)spec|draft|accept|acc[ _]len|\bidxs\b", text):
        return (
            "it says nothing about speculative decoding: was it on? Start the engine with its drafter, and take one of "
            f"the outputs in {GUIDE}"
        )
    engines = dict.fromkeys(output.engine for output in outputs())
    words = {engine: (engine.split()[0].lower(), LOGGED.get(engine, "\0").lower()) for engine in engines}
    named = [f"{engine}: {ask(engine)}" for engine in engines if any(word in text.lower() for word in words[engine])]
    wanted = f"take of {'; '.join(named)}" if named else f"{GUIDE} says which output to take of each engine"
    return (
        f"it has no acceptance by position or step in a form that is read, and means do not determine it: {wanted}; or "
        "give search or whatif `--acceptance 0.8,0.6` (shares of all steps by position), `--accepted-length L@K` "
        "(tokens per step with K draft tokens; L,L,L: with 1, 2, 3) or `--acceptance R@K` (accepted over drafted)"
    )


def ask(engine: str) -> str:
    """Return which output to take of an engine."""
    return next(output.how for output in outputs() if output.engine == engine).replace("`", "")


def outputs() -> list[Output]:
    """Return the outputs of all engines that are read, those of an engine together, the best first."""
    all_outputs = [output for source in SOURCES.values() for output in source.outputs]
    engines = list(dict.fromkeys(output.engine for output in sorted(all_outputs, key=lambda output: output.engine)))
    return sorted(all_outputs, key=lambda output: (engines.index(output.engine), output.first))
