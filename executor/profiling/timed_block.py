"""Timed blocks: a few consecutive steps of one configuration."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from executor.decoding.decoder import Decoder, NewTokens
from executor.decoding.step_results import Step
from treeopt.errors import UsageError, counted
from treeopt.storage.json_records import RecordError, get, of_kind
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

WARM_UP = 1  # steps at the beginning of a block that do not count

Tokens = Sequence[int]


@dataclass(frozen=True)
class Block:
    """Consecutive steps of one configuration.

    Attributes:
        draft_s: seconds of drafting of each step.
        rest_s: seconds of everything else.
        committed: tokens per sequence and step, mean.
        length: tokens per sequence in the cache, mean; for real prompts that of the shortest.
        took_s: seconds of the whole block, prompts and warm-up included.
    """

    draft_s: tuple[float, ...]
    rest_s: tuple[float, ...]
    committed: float
    length: float
    took_s: float

    @classmethod
    def of(cls, steps: Sequence[Step], *, prompt: int, took_s: float) -> "Block":
        """Return the block of `steps`, after prompts of `prompt` tokens."""
        committed = float(np.mean([len(row) for step in steps for row in step.committed]))
        length = prompt - 1 + committed * (WARM_UP + (len(steps) - 1) / 2)
        drafts, rests = tuple(step.draft_s for step in steps), tuple(step.rest_s for step in steps)
        return cls(drafts, rests, committed, length, took_s)

    @classmethod
    def read(cls, record: Any) -> "Block":
        """Read a block from its JSON fields.

        Raises:
            RecordError: names the field.
        """
        drafts, rests = (_seconds(record, name) for name in ("draft_s", "rest_s"))
        if not rests or len(drafts) != len(rests) or min(rests) <= 0:
            raise RecordError(f"block: `rest_s` must be as long as `draft_s` and above 0, found {list(rests)!r:.60}")
        committed, length, took_s = (get(record, name, float, "block") for name in ("committed", "length", "took_s"))
        if committed < 1 or min(length, took_s) < 0:
            raise RecordError(f"block: `committed`, `length` or `took_s` is too small: {committed}, {length}, {took_s}")
        return cls(drafts, rests, committed, length, took_s)

    def scaled(self, factor: float) -> "Block":
        """Return the block with all step times multiplied by `factor`."""
        drafts, rests = (tuple(s * factor for s in seconds) for seconds in (self.draft_s, self.rest_s))
        return replace(self, draft_s=drafts, rest_s=rests)

    @property
    def step_s(self) -> float:
        """Median seconds of a step."""
        return float(np.median(np.add(self.draft_s, self.rest_s)))


def _seconds(record: Any, name: str) -> tuple[float, ...]:
    values = get(record, name, list, "block")
    seconds = tuple(of_kind(value, float, f"block: `{name}`[{i}]") for i, value in enumerate(values))
    if any(value < 0 for value in seconds):
        raise RecordError(f"block: `{name}` must be 0 or more, found {min(seconds)}")
    return seconds


def run_block(
    decoder: Decoder, prompts: Sequence[Tokens], *, steps: int, new_tokens: NewTokens, long_s: float = math.inf
) -> list[Step]:
    """Return `steps` steps with every row busy, after one that warms up.

    There are fewer if prompts run out, or once they have taken more than `long_s`.
    """
    full = (step for step in decoder.steps(prompts, new_tokens=new_tokens) if step.full)
    timed, took_s = list[Step](), 0.0
    for number, step in enumerate(islice(full, steps + WARM_UP)):
        if number >= WARM_UP:
            timed.append(step)
            took_s += step.draft_s + step.rest_s
        if took_s > long_s:
            break
    if not timed:
        longest = new_tokens if isinstance(new_tokens, int) else max(new_tokens)
        raise UsageError(
            f"{counted(len(prompts), 'prompt')} and new-tokens {longest} make fewer than 2 steps of a full batch"
        )
    return timed


def imposed_trace(accepted: int, tree: Tree, requests: int, length: int) -> Trace:
    """Return a trace in which the first ranks are right for exactly `accepted` levels, except at ends of requests."""
    depth, width = tree.depth, 1 + max(tree.ranks)
    rank = np.full((requests, length, depth), -1, dtype=np.int16)
    rank[..., :accepted] = 0
    beyond = np.arange(length)[:, None] + np.arange(depth) >= length
    rank[:, beyond] = -2
    position = np.tile(np.arange(length, dtype=np.int32), requests)
    request = np.repeat(np.arange(requests, dtype=np.int32), length)
    return Trace(request, position, rank.reshape(-1, depth), width)
