"""The errors that treeopt raises on purpose, and their exit codes.

    TreeoptError                exit code 1: cannot be done
    ├── UsageError              exit code 2: a request without meaning
    ├── TreeError               a malformed or too large topology
    ├── TraceError              a trace that breaks its format or lacks the data for the question
    ├── CostError               a shape whose cost is not known
    ├── PlanError               a plan that cannot be read
    ├── InfeasibleError         a search whose conditions cannot be met
    ├── EngineError             an engine that cannot express a topology, does not start, or fails
    └── ExecutorError           a model, checkpoint or request that the executor cannot run

Every message names the condition, the place, and the value found. The command line prints it as one line.
"""

import re
import reprlib
from collections.abc import Sequence
from typing import Any

# Characters that control a terminal, break lines, turn the order of letters, or stand for bytes that are no text.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# What stands before a host: pathlib makes one slash of two, and a name with a password is not shown.
ADDRESS = re.compile(r"\b(?!file:)([a-z][a-z0-9+.-]{1,20}):/+(?:[^\s/@]*@)?(?=[^\s/])")
LONG_WORD = re.compile(r"(\S{200})\S{100,}(\S{80})")
SHOWN = 3  # names of a list, or last lines of a log, in a message
LOG_LINE = 300  # characters of a line of a log
TRACEBACK = "Traceback (most recent call last)"
RAISED = re.compile(r"\b[\w.]*(?:Error|Exception)\b: .+")  # the last line of a traceback


class TreeoptError(Exception):
    """The base class of every deliberate failure."""

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        """Keep a message, with control characters escaped, and words of damaged files shortened that are too long.

        >>> len(str(TreeoptError("the name " + "f" * 5000)))
        292
        """
        super().__init__(LONG_WORD.sub(r"\1...\2", visible(message, lines=True)))


class UsageError(TreeoptError):
    """A request without meaning, such as batch 0."""

    exit_code = 2


class TreeError(TreeoptError):
    """A malformed topology, or one that exceeds a limit."""


class TraceError(TreeoptError):
    """A trace that breaks its format or lacks the data for the question."""


class CostError(TreeoptError):
    """A shape outside what a cost model was calibrated for."""


class PlanError(TreeoptError):
    """A plan that cannot be read."""


class InfeasibleError(TreeoptError):
    """A search whose conditions cannot be met; the message names the condition."""


class EngineError(TreeoptError):
    """An engine that cannot express a topology, or fails; the message holds its own words."""


class EngineStartError(EngineError):
    """An engine that does not start."""


class ExecutorError(TreeoptError):
    """A model, checkpoint or request that the executor cannot run."""


def visible(text: str, *, lines: bool = False) -> str:
    r"""Return a text with control characters as escapes, which texts of other people may hold, and no passwords.

    Args:
        text: the text.
        lines: leave tabs and line feeds as they are.

    >>> print(visible("\x1b[2J\n"))
    \x1b[2J\n
    """

    def escaped(found: re.Match[str]) -> str:
        return found[0] if lines and found[0] in "\t\n" else found[0].encode("unicode_escape").decode()

    return CONTROL.sub(escaped, ADDRESS.sub(r"\1://", text))


def visible_in(value: Any) -> Any:
    """Return a JSON value whose texts, keys among them, have control characters as escapes."""
    if isinstance(value, dict):
        return {visible(key): visible_in(item) for key, item in value.items()}
    if isinstance(value, list):
        return [visible_in(item) for item in value]
    return visible(value, lines=True) if isinstance(value, str) else value


def counted(number: int, noun: str) -> str:
    """Return a number of things for a message, with commas between thousands.

    >>> counted(1, "request"), counted(2, "request"), counted(32000, "token")
    ('1 request', '2 requests', '32,000 tokens')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shorten(items: Sequence[str], lead: str = "") -> str:
    """Return the first few names of a list and the number of the others; nothing for an empty list.

    >>> shorten(["a", "b", "c", "d", "e"], "5 missing: ")
    '5 missing: a, b, c and 2 more'
    """
    others = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return f"{lead}{', '.join(items[:SHOWN])}{others}" if items else ""


def root_cause(log: str) -> str:
    r"""Return what a log names as the first cause of its failure, else its last lines, as one line.

    That is the error of the first traceback: what follows it, often in another process, says that something failed.
    Without a traceback it is the last line that names an error.

    >>> root_cause("Traceback (most recent call last):\nValueError: no memory\nRuntimeError: the engine failed")
    'ValueError: no memory'
    >>> root_cause("loading the model " * 2)
    'loading the model loading the model'
    """
    lines = [line.strip()[:LOG_LINE] for line in log.splitlines() if line.strip()]
    begin = next((place for place, line in enumerate(lines) if TRACEBACK in line), len(lines))
    raised = next((found[0] for line in lines[begin:] if (found := RAISED.search(line))), None)
    errors = [line for line in lines if "error" in line.lower() and "%" not in line]
    return raised or " | ".join(dict.fromkeys(errors[-1:] or lines[-SHOWN:]))


class _Brief(reprlib.Repr):
    """Writes values whose whole text would be too long, such as lists that hold one list many times."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlist, self.maxtuple, self.maxdict, self.maxstring, self.maxother = 3, 6, 6, 4, 60, 60

    def repr_int(self, x: int, level: int) -> str:
        """Return the number; Python does not write those of thousands of digits."""
        return repr(x) if x.bit_length() <= 128 else "one too large"


def brief(value: Any) -> str:
    """Return the beginning of a value's text for an error, one line of at most 60 characters, whatever it is.

    >>> brief([[0, 1], "x"]), brief(16**5000)
    ("[[0, 1], 'x']", 'one too large')
    """
    text = " ".join(_BRIEF.repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


_BRIEF = _Brief()
