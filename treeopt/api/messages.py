"""Messages of API functions: warnings and notes go to the logger `treeopt`; progress goes to a callback.

`logging` prints warnings on stderr unless a program sets it up otherwise; notes, such as the profile that was found,
have level INFO and are hidden by default. The command line prints both.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

LOG = logging.getLogger("treeopt")

# Called with a label and the number of pieces; its block calls the yielded function with pieces that are done.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


def warn(sentences: Iterable[str]) -> None:
    """Log warnings, sentences without a full stop; empty ones are skipped."""
    for sentence in filter(None, sentences):
        LOG.warning("%s", sentence)


def note(lines: Iterable[str | None]) -> None:
    """Log notes; None is skipped."""
    for line in lines:
        if line is not None:
            LOG.info("%s", line)


def silent(label: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
    """Show no progress."""
    return nullcontext(lambda pieces: None)
