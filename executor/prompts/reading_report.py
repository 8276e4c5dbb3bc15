"""The report of a reading: how much was read, what was passed over, and why."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from treeopt.errors import ExecutorError

SHOWN = 5  # most names or reasons listed

HINT = "(--leave-out unreadable skips the record)"

PARTS = {
    "tools": "the tools that a record offers",
    "thoughts": "the thoughts of answers (`reasoning_content`, `thinking`)",
    "system": "the `system` field of a record",
    "unreadable": "records and lines that cannot be read, or that the chat template does not take",
}


class EmptyConversationError(ExecutorError):
    """A conversation in which nothing is said: dumps hold such records, which are skipped."""


@dataclass
class Report:
    """The record of what was read from files, and what was not.

    Attributes:
        leave_out: names of `PARTS` that are left out by request; the rest is read or refused.
        files: files that records or texts were read from.
        records: records read.
        texts: plain texts read.
        passed_over: (reason, file name) of each file that was not read.
        skipped: reasons of records that were skipped.
        left_out: number of records without a part, by the part's name.
        unread: number of records with a field that is not read, by the field's name.
    """

    leave_out: frozenset[str] = frozenset()
    files: int = 0
    records: int = 0
    texts: int = 0
    passed_over: list[tuple[str, str]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)

    def without(self, part: str) -> bool:
        """Return True if a part is left out; count it."""
        if part in self.leave_out:
            self.left_out[part] += 1
        return part in self.leave_out

    def skip(self, error: ExecutorError) -> None:
        """Skip a record that raised an error; raise it again unless nothing is said there, or such are to be left out.

        Raises:
            ExecutorError: the same, with the option that skips such records.
        """
        if "unreadable" not in self.leave_out and not isinstance(error, EmptyConversationError):
            raise error if "--leave-out" in str(error) else ExecutorError(f"{error} {HINT}") from error
        self.skipped.append(str(error))

    def count_unread(self, fields: Mapping[str, Any], read: Collection[str]) -> None:
        """Count the fields that are not read; those without a value say nothing that could be lost."""
        self.unread.update(key for key, value in fields.items() if key not in read and value not in (None, "", [], {}))

    @property
    def summary(self) -> str:
        """One sentence: how much was read from how many files."""
        parts = [_plural(count, noun) for count, noun in ((self.records, "record"), (self.texts, "text")) if count]
        return f"data: {' and '.join(parts) or 'nothing'} read from {_plural(self.files, 'file')}"

    @property
    def remarks(self) -> list[str]:
        """A sentence for each kind of thing that was not read."""
        sentences = []
        for reason in dict.fromkeys(reason for reason, _ in self.passed_over):
            names = [name for other, name in self.passed_over if other == reason]
            sentences.append(f"data: {_plural(len(names), 'file')} passed over ({_listed(names)}): {reason}")
        if self.skipped:
            sentences.append(
                f"data: {_plural(len(self.skipped), 'record')} skipped: {_listed(self.skipped, separator='; ')}"
            )
        for part, count in self.left_out.items():
            sentences.append(f"data: {PARTS[part]} left out of {_plural(count, 'record')}")
        return sentences

    @property
    def unread_fields(self) -> list[str]:
        """A sentence that names the fields that have no meaning here, if there are any."""
        names = [f"`{name}`" for name, _ in self.unread.most_common()]
        return [f"data: fields without effect: {_listed(names)}"] if names else []


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _listed(names: list[str], *, separator: str = ", ") -> str:
    """Return the first names, and how many more there are.

    >>> _listed(list("abcdefg"))
    'a, b, c, d, e and 2 more'
    """
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return separator.join(names[:SHOWN]) + more
