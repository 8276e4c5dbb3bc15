"""Damaged inputs for readers: valid ones changed at random as text, JSON and bytes; and what a reader may do."""

import ast
import contextlib
import copy
import json
import os
import random
import resource
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from treeopt.errors import TreeoptError
from treeopt.storage.json_records import RecordError

LONGEST_S = 10  # of the processor; an input that takes longer hangs
WAITING_S = 120  # of the clock: a busy machine is not a failure
MEMORY = 2**30  # bytes that a reader may take beyond what the process has
LARGEST = 2**16  # bytes of a damaged text

# Values and words that programs trip over.
STRANGE: list[Any] = [
    None, True, False, -1, 0, 1, 2, 3, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**30, 10**400, 1e308,
    -1e308, 1e100, 1e-320, 0.5, -0.0, float("nan"), float("inf"), float("-inf"), "", " ", "\0", "\ud800", "é", "0",
    "1e999", "nan", "x" * 300, [], {}, [[]], [None], {"": None}, [0] * 50, [[0], [0, 0]], "[[0]]", "{}", "\u2028",
    "/dev/zero", "../x",
]  # fmt: skip
WORDS = [
    "{", "}", "[", "]", "(", ")", ",", ":", '"', "'", "\n", "\r", "\t", "\0", "\ufeff", "\u2028", "-", "--", "=",
    "%", "#", "\\", "NaN", "Infinity", "-Infinity", "null", "true", "1e308", "1e-308", "1e999", "-1", "0", "9" * 25,
    "9" * 5000, "0x" + "f" * 5000, "1:" * 100, "9223372036854775808", "[" * 2000, "(" * 150, "{" * 300, "-" * 3000,
    "&a [*a]", "*a", "!!python/object:os.system", "<<: *a", "? ", "e", ".", "+Inf", "٣", "\U0001f600", "\x1b",
    "lambda: 0", "0x10", "1_000", "b''", "f''", "...", "None", "1j", "data: ", "id: 3\n",
]  # fmt: skip


def damaged_text(rng: random.Random, texts: Sequence[str]) -> str:
    """One of the texts with a few changes: as JSON if it is, else of characters, words and lines."""
    text = rng.choice(texts)
    if rng.random() < 0.6:
        with contextlib.suppress(ValueError, RecursionError):
            return _as_json(rng, damaged_value(rng, json.loads(text)))
        lines = text.split("\n")
        with contextlib.suppress(ValueError, RecursionError):
            number = rng.randrange(len(lines))
            lines[number] = _as_json(rng, damaged_value(rng, json.loads(lines[number])))
            return "\n".join(lines)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        text = _changed(rng, text, texts)[:LARGEST]
    return text


def _as_json(rng: random.Random, value: Any) -> str:
    return json.dumps(value, indent=rng.choice((None, None, 1)), ensure_ascii=rng.random() < 0.8)


def damaged_value(rng: random.Random, value: Any) -> Any:
    """A JSON value with a few of its parts replaced, removed, repeated or renamed."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        holder: Any = {"": value}
        places: list[tuple[Any, Any]] = [(holder, "")]
        for holder_, key in places:
            inner = holder_[key]
            if len(places) < 4000 and isinstance(inner, dict | list):
                places += [(inner, k) for k in (inner if isinstance(inner, dict) else range(len(inner)))]
        inside, key = rng.choice(places)
        old, change = inside[key], rng.random()
        if change < 0.5:
            inside[key] = copy.deepcopy(rng.choice(STRANGE))
        elif change < 0.6 and type(old) in (int, float) and abs(old) < 10**300:
            inside[key] = rng.choice((-old, old * 2, old + 1, old / 2, old * 1e99, str(old)))
        elif change < 0.7 and isinstance(inside, dict) and inside is not holder:
            del inside[key]
        elif change < 0.8 and isinstance(inside, dict):
            inside[rng.choice(("", "x", "schema", "\ud800", str(key) + "x"))] = old
        elif change < 0.9 and isinstance(old, list) and len(old) < 500:
            inside[key] = old * rng.choice((0, 2)) if rng.random() < 0.7 else old[::-1]
        else:
            inside[key] = [old] if rng.random() < 0.5 else {"x": old}
        value = holder[""]
    return value


def _changed(rng: random.Random, text: str, texts: Sequence[str]) -> str:
    at = rng.randrange(len(text) + 1)
    change = rng.randrange(8)
    if change == 0:
        return text[:at] + rng.choice(WORDS) + text[at:]
    if change == 1:
        return text[:at] + text[at + rng.choice((1, 1, 2, 10, 100)) :]
    if change == 2:
        return text[:at] + chr(rng.choice((rng.randrange(128), rng.randrange(0x3000)))) + text[at + 1 :]
    if change == 3:
        return text[:at]
    if change == 4:
        other = rng.choice(texts)
        return text[:at] + other[rng.randrange(len(other) + 1) :]
    lines = text.split("\n")
    line = rng.randrange(len(lines))
    if change == 5:
        del lines[line]
    elif change == 6:
        lines.insert(rng.randrange(len(lines) + 1), lines[line])
    else:
        words = lines[line].split(" ")
        words[rng.randrange(len(words))] = rng.choice(WORDS)
        lines[line] = " ".join(words)
    return "\n".join(lines)


def damaged_bytes(rng: random.Random, content: bytes) -> bytes:
    """Bytes with a few of them changed, removed, repeated, or cut off."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        if not changed:
            break
        at = rng.randrange(min(len(changed), rng.choice((16, 256, len(changed)))))
        match rng.randrange(5):
            case 0 | 1:
                changed[at] = rng.randrange(256)
            case 2:
                del changed[at : at + rng.choice((1, 4, 100))]
            case 3:
                changed[at:at] = rng.choice((b"\0", b"\xff" * 8, b"{", changed[at : at + 8]))
            case _:
                del changed[len(changed) - rng.randrange(64) :]
    return bytes(changed)


def text_bytes(text: str) -> bytes:
    """A damaged text as bytes; half of surrogate pairs make it no UTF-8."""
    return text.encode("utf-8", "surrogatepass")


def constants(*files: Path, shortest: int = 12) -> list[str]:
    """The string constants of Python files: the samples in tests of readers."""
    found: dict[str, None] = {}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) >= shortest:
                found[node.value] = None
    return list(found)


class Hang(Exception):
    """A reader took too long."""


def _rang(*_: object) -> None:
    raise Hang(f"more than {LONGEST_S} s of the processor or {WAITING_S} s of the clock")


@contextlib.contextmanager
def disk_of(size: int) -> Iterator[None]:
    """Let files grow to so many bytes, as on a disk that is full then."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Limit the memory of this process to `MEMORY` more than it has, and let warnings be errors."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    handlers = {number: signal.signal(number, _rang) for number in (signal.SIGALRM, signal.SIGPROF)}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def read(reader: Callable[[Any], object], content: Any) -> str | None:
    """Let a reader read; return what it may not do, such as raise another error than treeopt's, or None."""
    signal.setitimer(signal.ITIMER_REAL, WAITING_S)
    signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
    try:
        reader(content)
    except (TreeoptError, RecordError) as error:
        try:
            str(error).encode("utf-8", "surrogatepass")
        except Exception as unprintable:  # noqa: BLE001 - any is a fault
            return f"message cannot be printed: {unprintable!r}"
        return f"message of {len(str(error))} characters" if len(str(error)) > 4000 else None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        frames = []
        trace = error.__traceback__
        while trace is not None:
            frames.append(f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}")
            trace = trace.tb_next
        return f"{type(error).__name__}: {str(error)[:200]} at {' '.join(frames[-5:])}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None
