"""Read records of steps in their order: llama-server's trace lines, OpenVINO's step lists, Spec-Bench's answers.

A trace made of them holds exactly the anchors that the run visited. Sources: tools/server/server-context.cpp of
llama.cpp (b11434), `RawPerfMetrics.m_batch_sizes` of OpenVINO GenAI 2026.4, evaluation/eval.py of Spec-Bench.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from treeopt.errors import TraceError
from treeopt.traces.importers.chain_counts import Chain, chain_from_steps

LENGTHS = "accept_lengths"
BATCH_SIZES = "m_batch_sizes"
LONGEST = "the longest draft that a step accepted is taken to be the length of the chain; give another with --depth"
TREES = "Spec-Bench's drafters may draft trees: accepted lengths are depths within them"
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


def holds_llama_trace(text: str) -> bool:
    """Return True if lines of LLAMA_TRACE=1 are in the text."""
    return _STEP.search(text) is not None


def llama_trace(text: str, *, depth: int | None = None) -> Chain:
    """Return the chain of the lines that llama-server prints with LLAMA_TRACE=1, one per step.

    A draft that was rolled back is verified once more, shortened to its accepted tokens: this second line is a step
    that drafted nothing. Each task is a request.

    >>> llama_trace("slot update_slots: id  3 | task 0 | accepted  1/ 5 draft tokens").requests
    ((1,),)

    Raises:
        TraceError: no such line, or a step that accepted more than it drafted.
    """
    tasks = _tasks(text)
    longest = max((max(task.drafted) for task in tasks), default=0)
    return chain_from_steps(
        [task.accepted for task in tasks],
        drafted=[task.drafted for task in tasks],
        depth=max(longest, 1) if depth is None else depth,
        ordered=True,
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


def openvino_steps(value: Any) -> list[list[int]]:
    """Return every list of tokens committed step by step in a JSON value, of target models only.

    >>> openvino_steps({"main_model_metrics": {"m_batch_sizes": [1, 3]}, "draft_model_metrics": {"m_batch_sizes": [1]}})
    [[1, 3]]
    """
    found, stack = [], [value]
    while stack:
        inner = stack.pop()
        if isinstance(inner, dict):
            found += [inner[BATCH_SIZES]] if isinstance(inner.get(BATCH_SIZES), list) else []
            stack += [
                part for name, part in reversed(inner.items()) if name not in (BATCH_SIZES, "draft_model_metrics")
            ]
        elif isinstance(inner, list):
            stack += inner[::-1]
    return found


def openvino_chain(lists: Sequence[Sequence[Any]], *, depth: int | None = None) -> Chain:
    """Return the chain of OpenVINO's step lists, each a request; entry 0 is the prefill.

    Raises:
        TraceError: names the list and the entry that is no number of tokens.
    """
    requests = [_accepted(sizes, f"list {number}", BATCH_SIZES)[1:] for number, sizes in enumerate(lists)]
    return chain_from_steps(requests, depth=depth, ordered=True, assumed=() if depth else (LONGEST,))


def spec_bench_chain(records: Iterable[Mapping[str, Any]], *, depth: int | None = None) -> Chain:
    """Return the chain of Spec-Bench's answers: `accept_lengths`, bonus counted; each turn is a request.

    Raises:
        TraceError: names the answer and the entry that is no number of tokens.
    """
    requests: list[list[int]] = []
    for number, record in enumerate(record for record in records if record.get(LENGTHS) is not None):
        steps = _accepted(record[LENGTHS], f"answer {number}", LENGTHS)
        turns = record.get("decoding_steps")
        parts = turns if isinstance(turns, list) and all(type(n) is int and n > 0 for n in turns) else [len(steps)]
        for size in parts if sum(parts) == len(steps) else [len(steps)]:
            requests.append(steps[:size])
            steps = steps[size:]
    return chain_from_steps(requests, depth=depth, ordered=True, assumed=(TREES, *(() if depth else (LONGEST,))))


def _accepted(committed: Any, where: str, key: str) -> list[int]:
    """Return the drafts accepted in each step from the tokens that it committed."""
    if not isinstance(committed, list):
        raise TraceError(f"{where}: `{key}` must be a list, found {committed!r:.40}")
    for step, tokens in enumerate(committed):
        if type(tokens) is not int or tokens < 1:
            raise TraceError(
                f"{where}: {key}[{step}] must be the tokens that a step committed, at least 1 (bonus counted), "
                f"found {tokens!r:.40}"
            )
    return [tokens - 1 for tokens in committed]
