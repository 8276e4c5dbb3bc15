"""The interface of every engine driver, its settings, and the values that pass through it: requests, drafts, steps.

A driver starts an engine, or is given the address of one that runs; decodes token ids at a concurrency with one draft
setting; yields each step of each request in order; and stops what it started, leaving no process, socket or file.
Provenance names the models that an engine loads itself, and holds a hash of their files.
"""

import hashlib
import shlex
import shutil
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from treeopt.errors import UsageError
from treeopt.policies import DynamicTree
from treeopt.registry import load
from treeopt.storage.hub_models import folder_name

ENDS = 2**20  # bytes that are hashed at either end of a file: whole weights take minutes to read
Count = Callable[[str], int]  # tokens of a text
LOOKUP_RULE = "executor.drafters.prompt_lookup.engine_rules:engine_rule"  # reads the name of a prompt lookup
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


@dataclass(frozen=True)
class DriverSettings:
    """Settings of a driver in words, as a command line gives them: which engine, where it is, how it is started.

    Attributes:
        engine: name of the engine.
        target: the target as the engine reads it: a folder, a GGUF file, or a name.
        drafter: the drafter as the engine reads it; None: no drafter, or one without a file.
        method: how the engine drafts, in its own word; vllm also takes the JSON of its `--speculative-config`.
        urls: addresses of servers that run already, by draft length; several between blanks share the requests.
        python: interpreter of the environment that holds the engine.
        arguments: further arguments of its launch, as one line.
        servers: servers alive at a time; None: the driver decides.
        timeout_s: longest time that an engine may take to start, and then to send anything.
        concurrency: largest number of requests in flight.
        count: counts the tokens of a text, for servers that do not report them.
        lookup: name of a prompt lookup that the engine drafts by, such as prompt-lookup:vllm:1-3.
    """

    engine: str
    target: str
    drafter: str | None = None
    method: str | None = None
    urls: Mapping[int, str] | None = None
    python: Path | None = None
    arguments: str = ""
    servers: int | None = None
    timeout_s: float = 600.0
    concurrency: int = 1
    count: Count | None = None
    lookup: str | None = None

    @property
    def words(self) -> list[str]:
        """The further arguments, split as a shell splits them.

        Raises:
            UsageError: an open quote.
        """
        try:
            return shlex.split(self.arguments)
        except ValueError as error:
            raise UsageError(f"--engine-args: {error}: {self.arguments!r:.80}") from error

    @property
    def interpreter(self) -> str:
        """The interpreter of the engine's environment.

        Raises:
            UsageError: it is not given, or not there.
        """
        if self.python is None:
            raise UsageError(
                f"--engine {self.engine} needs --engine-python, the interpreter of the environment that holds it"
            )
        if shutil.which(self.python) is None:
            raise UsageError(f"--engine-python {self.python}: cannot be run")
        return str(self.python)

    def lookup_rule(self, owner: str, *, methods: Sequence[str], method: str | None) -> Mapping[str, int] | None:
        """Return the sizes of the rule that the drafter's name states, if the engine drafts by it; else None.

        Args:
            owner: the engine whose rule it must be.
            methods: the words for prompt lookup in this engine.
            method: the word that is given; None: none.

        Raises:
            UsageError: the engine's prompt lookup is asked for, and another rule is named.
        """
        if self.lookup is None or method not in (None, *methods):
            return None
        rule = load(LOOKUP_RULE)(self.lookup)
        if rule is None:
            return None
        if rule.engine != owner:
            raise UsageError(
                f"--drafter {self.lookup} is the rule of {rule.engine}, which {self.engine} does not draft by; "
                f"name prompt-lookup:{owner}, or how {self.engine} drafts with --method"
            )
        sizes: Mapping[str, int] = rule.settings
        return sizes


class Driver(Protocol):
    """A driver of one engine, as a context: leaving it stops what it started.

    Attributes:
        tree_requests: most requests in flight with a dynamic tree; 0: the driver runs chains alone.
        alive: launches that may be alive at a time.
        longest: the longest draft that will be asked for, where the driver's user knows it; else 0.
    """

    tree_requests: int
    longest: int

    @property
    def alive(self) -> int:
        """See above."""

    def launch(self, draft: Draft) -> Hashable:
        """Return which launch runs a draft: drafts of equal launches take turns without a new one.

        Raises:
            UsageError: drafted tokens without a drafter; before anything is started.
        """

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


def model_record(model: Path | str) -> dict[str, Any]:
    """Return the name of a model and, if it is a file or folder here, the hash of its files.

    No path is recorded, since a record may be given to others.

    >>> model_record("meta-llama/Llama-3.1-8B")
    {'name': 'meta-llama/Llama-3.1-8B'}
    """
    path = Path(model)
    if not path.exists():
        return {"name": str(model)}
    return {"name": model_name(model), "files": files_hash(path)}


def model_name(model: Path | str) -> str:
    """Return what a model is called: the name of its folder, of the folder of its `model.gguf`, or as it is given."""
    path = Path(model)
    if not path.exists():
        return str(model)
    path = path.resolve()
    return f"{path.parent.name}/{path.name}" if path.is_file() else folder_name(path)


def files_hash(path: Path) -> str:
    """Return the SHA-256, in hex, of the names, sizes and ends of a model's files.

    Args:
        path: a file, or a folder; hidden files and folders in it are left out.

    Raises:
        OSError: a file cannot be read.
    """
    whole = path.is_dir()
    files = [file for file in sorted(path.iterdir()) if file.is_file() and file.name[0] != "."] if whole else [path]
    hashed = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        hashed.update(f"{file.name if whole else ''}\0{size}\0".encode())
        with file.open("rb") as opened:
            hashed.update(opened.read(ENDS))
            opened.seek(max(0, size - ENDS))
            hashed.update(opened.read(ENDS))
    return hashed.hexdigest()
