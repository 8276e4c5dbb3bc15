"""The interface of every engine driver, and the values that pass through it: requests, draft settings, steps.

A driver starts an engine, or is given the address of one that runs; decodes token ids at a concurrency with one draft
setting; yields each step of each request in order; and stops what it started, leaving no process, socket or file.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from treeopt.policies import DynamicTree

Count = Callable[[str], int]  # tokens of a text
Draft = int | DynamicTree  # the length of a chain, 0 for plain decoding; or the settings of a dynamic tree


@dataclass(frozen=True)
class EngineRequest:
    """A prompt to continue.

    Attributes:
        tokens: token ids of the prompt; empty if only its text is at hand.
        new_tokens: tokens to decode; the first of them comes from the prefill.
        ignore_stop: go on after the end-of-text token, so that the length is known beforehand.
        text: the prompt as text, for servers whose tokenizer is not at hand; None: `tokens` are sent.
    """

    tokens: tuple[int, ...]
    new_tokens: int
    ignore_stop: bool = False
    text: str | None = None


@dataclass(frozen=True)
class EngineStep:
    """A step of one request: the prefill, or one cycle of draft and verify.

    Attributes:
        request: number of the request, counted from 0 in the order given.
        committed: tokens that the step emitted, at least 1.
        at_s: seconds from the start of the run to the end of the step, as the driver saw it.
        tokens: the token ids; None where the engine does not report them.
        drafted: tokens drafted; 0 if the drafter proposed nothing, None where the engine does not report it.
        prefill: True for the step that read the prompt: it emits one token and verifies no draft.
        ended: True for the last step of the request.
    """

    request: int
    committed: int
    at_s: float
    tokens: tuple[int, ...] | None = None
    drafted: int | None = None
    prefill: bool = False
    ended: bool = False


class Driver(Protocol):
    """A driver of one engine, as a context: leaving it stops what it started.

    Attributes:
        tree_requests: most requests in flight with a dynamic tree; 0: the driver runs chains alone.
    """

    tree_requests: int

    @property
    def meta(self) -> Mapping[str, Any]:
        """The engine's name, version and launch options, for provenance."""

    def decode(self, requests: Sequence[EngineRequest], *, draft: Draft, concurrency: int) -> Iterator[EngineStep]:
        """Decode the requests, `concurrency` of them at a time, and yield their steps; those of a request in order.

        Closing the iterator early cancels the requests that are under way.

        Raises:
            EngineError: the engine cannot run this draft setting, does not start, or fails; holds its own words.
        """

    def __enter__(self) -> Self:
        """Return the driver."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop what the driver started."""
