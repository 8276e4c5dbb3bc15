"""Lines of llama-server with LLAMA_TRACE=1, one for each step: a trace holds exactly the anchors that the run visited.

Source: tools/server/server-context.cpp of llama.cpp (b11434).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from treeopt.traces.importers.chain_counts import Chain, chain_from_steps
from treeopt.traces.importers.trace_source import Content, Output, TraceSource

# `slot update_slots: id  3 | task 0 | accepted  1/ 5 draft tokens`; the debug line with `new n_tokens` repeats it.
_STEP = re.compile(
    r"task\s+(\d{1,12})\s*\|\s*accepted\s+(\d{1,6})/\s*(\d{1,6}) draft tokens"
    r"(?P<restored> \(restore checkpoint\))?\s*$",
    re.MULTILINE,
)
_TOKENS = re.compile(r"task\s+(\d{1,12})\s*\|\s*eval time =[^/]*/\s*(\d{1,12}) tokens")
_END = re.compile(r"task\s+(\d{1,12})\s*\|\s*stop processing")


@dataclass
class _Task:
    """The steps of a task so far; `tokens` as its last line counts them, if it was printed."""

    accepted: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    tokens: int | None = None
    restored: bool = False

    def add(self, accepted: int, drafted: int, restored: bool) -> None:
        """Add a line; the one after a rollback verifies the accepted tokens again and drafts nothing."""
        if self.restored and accepted == drafted == self.accepted[-1] + 1:
            accepted = drafted = 0
        self.accepted.append(accepted)
        self.drafted.append(drafted)
        self.restored = restored


def holds_lines(content: Content) -> bool:
    """Return True if lines of LLAMA_TRACE=1 are in the text."""
    return content.values is None and _STEP.search(content.text) is not None


def read_lines(content: Content, *, depth: int | None = None) -> Chain:
    """Return the chain of the lines that llama-server prints with LLAMA_TRACE=1, one per step.

    A draft that was rolled back is verified once more, shortened to its accepted tokens: this second line is a step
    that drafted nothing. Each task is a request.

    >>> read_lines(Content("slot update_slots: id  3 | task 0 | accepted  1/ 5 draft tokens")).requests
    ((1,),)

    Raises:
        TraceError: no such line, or a step that accepted more than it drafted.
    """
    tasks = _tasks(content.text)
    longest = max((max(task.drafted) for task in tasks), default=0)
    return chain_from_steps(
        [task.accepted for task in tasks],
        drafted=[task.drafted for task in tasks],
        depth=max(longest, 1) if depth is None else depth,
        assumed=[*_cut(tasks, longest), *_plain(tasks)],
    )


def _tasks(text: str) -> list[_Task]:
    """Return the tasks that have steps; a number that is used again after its end is another task."""
    tasks: list[_Task] = []
    running: dict[str, _Task] = {}
    for line in text.splitlines():
        if match := _STEP.search(line):
            if match[1] not in running:
                running[match[1]] = _Task()
                tasks.append(running[match[1]])
            running[match[1]].add(int(match[2]), int(match[3]), match["restored"] is not None)
        elif (match := _TOKENS.search(line)) and match[1] in running:
            running[match[1]].tokens = int(match[2])
        elif match := _END.search(line):
            running.pop(match[1], None)
    return tasks


def _cut(tasks: Sequence[_Task], longest: int) -> list[str]:
    """Return a sentence about drafts that were shorter than the longest."""
    full = longest * sum(tokens > 0 for task in tasks for tokens in task.drafted)
    missing = full - sum(sum(task.drafted) for task in tasks)
    if not missing:
        return []
    return [
        f"{missing / full:.1%} of the tokens that drafts of {longest} would have were not drafted (llama.cpp cuts "
        "drafts at max_tokens, and where the drafter is not sure): they count as rejected"
    ]


def _plain(tasks: Sequence[_Task]) -> list[str]:
    """Return a sentence about steps that drafted nothing, which print no line; the first token is the prefill's."""
    ended = [task for task in tasks if task.tokens is not None]
    steps = sum(len(task.accepted) for task in ended)
    plain = sum((task.tokens or 0) - 1 - sum(task.accepted) - len(task.accepted) for task in ended)
    if plain <= 0:
        return []
    return [f"{plain} of {plain + steps} steps drafted nothing; no line says where, so they are not in the trace"]


ENTRY = TraceSource(
    name="llama-trace",
    title="LLAMA_TRACE lines",
    settings={"depth": "length of the chain; default the longest draft"},
    holds=holds_lines,
    chain=read_lines,
    outputs=(Output("llama.cpp", "every step", "llama-server's log with `LLAMA_TRACE=1` in its environment", first=0),),
)
