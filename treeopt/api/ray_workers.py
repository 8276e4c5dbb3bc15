"""Parts of a command on Ray: workers with the resources that are named; the part of a lost worker is made again."""

import contextlib
import logging
import os
import re
import socket
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any, Protocol, Self

from treeopt.api.messages import LOG
from treeopt.engines.connections.servers import root_cause
from treeopt.errors import ExecutorError, TreeoptError, UsageError, counted
from treeopt.settings import Settings, setting
from treeopt.storage.hub_models import folder_name

TRIES = 3  # times that a lost worker is started again
CONNECT_S = 5.0
WAIT_S = 30.0  # between looks at the nodes of the cluster, which may leave
SEVERAL = ("data",)  # fields of several paths
OWN_NAMES = {"cpus": "CPU", "gpus": "GPU", "memory": "memory"}  # Ray's names of resources
# Quiet; a user's own settings win.
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}


@dataclass(frozen=True, kw_only=True)
class RaySetup(Settings):
    """Where parts of a command run, in words."""

    ray: str | None = setting(
        None,
        help="Run on a cluster of Ray: HOST:PORT of its head, or local for this machine. Files that a worker lacks are "
        "sent to it.",
    )
    ray_needs: tuple[str, ...] = setting(
        (),
        help="What a worker takes, such as gpus=1: cpus (default 1), gpus, memory in bytes, another resource of the "
        "cluster (NAME=NUMBER), or a label of its nodes (NAME=TEXT); may be given several times.",
    )

    def check(self) -> None:
        """Raise UsageError for needs without meaning, or an address that is none."""
        if self.ray_needs and self.ray is None:
            raise UsageError("--ray-needs applies only to --ray")
        if self.ray is not None and not re.fullmatch(r"local|[^\s:/@]+:\d{1,5}", self.ray):
            raise UsageError("--ray must be local or HOST:PORT, such as 10.0.0.1:6379")
        self.needs()

    def needs(self) -> tuple[dict[str, float], dict[str, str]]:
        """Return the resources of a worker, by Ray's names, and the labels of its node.

        >>> RaySetup(ray="local", ray_needs=("gpus=1", "memory=16e9", "disk=ssd")).needs()
        ({'CPU': 1.0, 'GPU': 1.0, 'memory': 16000000000.0}, {'disk': 'ssd'})
        """
        resources, labels = {"CPU": 1.0}, dict[str, str]()
        for need in self.ray_needs:
            name, equals, value = need.partition("=")
            number = re.fullmatch(r"\d+(\.\d+)?(e\d{1,2})?", value)
            if not name or not equals or not value or (name in OWN_NAMES and not number):
                raise UsageError(f"--ray-needs {need}: must be NAME=VALUE, such as gpus=1 or memory=16e9")
            if number:
                resources[OWN_NAMES.get(name, name)] = float(value)
            else:
                labels[name] = value
        return resources, labels


class Made(Protocol):
    """What a worker makes once from settings, and makes its parts with.

    Attributes:
        head: what the driver must know of all parts.
        same: what must be equal in all workers.
    """

    head: Any

    @property
    def same(self) -> Mapping[str, Any]:
        """See above."""

    def parts(self, starts: Iterable[int], *given: Any) -> Iterator[Any]:
        """Return the parts that begin there."""


Make = Callable[[Any], Made]  # of the settings
Paths = Mapping[str, tuple[Path, ...]]  # of fields of the settings
Files = dict[Path, dict[str, Any]]  # references to the content of each file below a path, by its name there


@dataclass(frozen=True)
class _Missing:
    """The paths that a worker lacks."""

    paths: list[Path]


@dataclass(frozen=True)
class _Head:
    """What the first worker made: see `Made`; and the messages of making it, with their levels."""

    head: Any
    same: Mapping[str, Any]
    messages: list[tuple[int, str]]


class _Worker:
    """A process of Ray."""

    def __init__(self, make: Make, settings: Settings, paths: Paths) -> None:
        self._make, self._settings, self._paths = make, settings, paths
        self._made: Made | None = None

    def run(self, start: int | None, given: tuple[Any, ...], same: Mapping[str, Any] | None, files: Files) -> Any:
        """Return the part from `start` on, without it the head; or what is missing."""
        held = MemoryHandler(10**6, flushLevel=logging.CRITICAL + 1)
        LOG.addHandler(held)
        if self._made is None:
            missing = [path for own in self._paths.values() for path in own if not path.exists() and path not in files]
            if missing:
                return _Missing(missing)
            with tempfile.TemporaryDirectory(prefix="treeopt-ray-") as folder:
                self._made = self._make(_with_paths(self._settings, self._paths, files, Path(folder)))
        own = self._made.same
        for name, first in (same or {}).items():
            if own[name] != first:
                raise UsageError(
                    f"the worker on {socket.gethostname()} has {name} {own[name]!r:.80}, the first one "
                    f"{first!r:.80}: workers must be alike: choose their nodes with --ray-needs"
                )
        if start is None:
            return _Head(self._made.head, own, [(record.levelno, record.getMessage()) for record in held.buffer])
        return next(iter(self._made.parts([start], *given)))


def _with_paths(settings: Settings, paths: Paths, files: Files, folder: Path) -> Settings:
    """Return settings whose paths exist on this machine; files that it lacks are written below `folder`."""
    import ray

    changes: dict[str, Any] = {}
    for field, own in paths.items():
        here = list(own)
        for number, path in enumerate(own):
            if not path.exists():
                here[number] = folder / f"{field}-{number}" / folder_name(path)
                for name, reference in files[path].items():
                    place = here[number] / name
                    place.parent.mkdir(parents=True, exist_ok=True)
                    ray.get(reference).tofile(place)
        changes[field] = tuple(here) if field in SEVERAL else here[0]
    return settings.changed(**changes)


def _references(path: Path) -> dict[str, Any]:
    """Store a file, or each file below a folder, for all workers."""
    import numpy as np
    import ray

    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return {str(file.relative_to(path)): ray.put(np.fromfile(file, np.uint8)) for file in files}


class RayWorkers:
    """Workers on Ray, as a context: leaving it ends them, and with `--ray local` all of Ray.

    Attributes:
        head: see `Made`.
    """

    head: Any

    def __init__(self, setup: RaySetup, make: Make, settings: Settings, paths: Mapping[str, Any]) -> None:
        """Start nothing yet.

        Args:
            setup: where the workers run.
            make: a function of a module that workers can import.
            settings: what it takes.
            paths: fields of the settings that name files; workers that lack them get them sent.
        """
        given = {name: (own if name in SEVERAL else (own,)) for name, own in paths.items()}
        known = {name: tuple(path.absolute() for path in own if path is not None) for name, own in given.items()}
        self._paths = {name: own for name, own in known.items() if own and all(path.exists() for path in own)}
        self._setup, self._make, self._settings = setup, make, settings.changed(ray=None, ray_needs=())
        self._files: Files = {}
        self._same: Mapping[str, Any] | None = None
        self._workers: list[Any] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Connect, and let a first worker make its head."""
        import ray

        with contextlib.ExitStack() as stack:
            # Ray prints remarks of its own there, from a thread.
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(Path(os.devnull).open("w"))))
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="treeopt-", ignore_cleanup_errors=True))
            stack.callback(ray.shutdown)
            _connect(self._setup.ray or "", folder)
            self._start(1)
            made = next(result for _, result in self._results([None], ()))
            self.head, self._same = made.head, made.same
            for level, message in made.messages:
                LOG.log(level, "%s", message)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers."""
        self._stack.close()

    def parts(self, starts: Iterable[int], *given: Any) -> Iterator[Any]:
        """Yield the parts that begin there, in order.

        Raises:
            TreeoptError: of the first worker that failed.
        """
        order, made = list(starts), dict[int, Any]()
        self._start(len(order))
        results = self._results(order, given)
        for start in order:
            while start not in made:
                made |= [next(results)]
            yield made.pop(start)

    def _start(self, parts: int) -> None:
        """Start as many workers as there are parts and the cluster's nodes hold."""
        import ray

        resources, labels = self._setup.needs()
        nodes = [node for node in ray.nodes() if node["Alive"]]
        fits = 0
        for node in nodes:
            if labels.items() <= node["Labels"].items():
                fits += int(min(node["Resources"].get(name, 0) // need for name, need in resources.items() if need))
        if not fits:
            largest = {name: max(node["Resources"].get(name, 0) for node in nodes) for name in resources}
            held = ", ".join(f"{name} {number:g}" for name, number in largest.items())
            raise UsageError(
                f"--ray {self._setup.ray}: no node holds a worker of {' '.join(self._setup.ray_needs) or 'cpus=1'}; "
                f"most of {counted(len(nodes), 'node')}: {held}"
            )
        own = {name: need for name, need in resources.items() if name not in OWN_NAMES.values()}
        worker = ray.remote(_Worker).options(
            num_cpus=resources["CPU"],
            num_gpus=resources.get("GPU", 0),
            memory=resources.get("memory"),
            resources=own,
            label_selector=labels,
            max_restarts=TRIES,
            max_task_retries=TRIES,
        )
        while len(self._workers) < min(fits, parts):
            self._workers.append(worker.remote(self._make, self._settings, self._paths))

    def _results(self, starts: Iterable[Any], given: tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
        """Yield each start and its result as they come; a worker gets a part when it has made the one before."""
        import ray

        todo, idle, running = deque(starts), list(self._workers), dict[Any, tuple[Any, Any]]()
        while todo or running:
            while todo and idle:
                worker, start = idle.pop(), todo.popleft()
                running[worker.run.remote(start, given, self._same, self._files)] = worker, start
            ready, _ = ray.wait(list(running), timeout=WAIT_S)
            if not ready:
                self._start(0)
                continue
            worker, start = running.pop(ready[0])
            idle.append(worker)
            result = _result(ready[0])
            if isinstance(result, _Missing):
                self._files |= {path: _references(path) for path in result.paths if path not in self._files}
                todo.appendleft(start)
            else:
                yield start, result


def _connect(address: str, folder: str) -> None:
    """Connect to a cluster, or start one on this machine, whose files are below `folder`.

    Raises:
        UsageError: nothing answers there, or what answers is of another version.
    """
    os.environ.update({name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()})
    import ray

    how: dict[str, Any] = {"address": address}
    try:
        if address == "local":
            how |= {"include_dashboard": False, "_temp_dir": folder}
        else:
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), CONNECT_S).close()  # Ray itself waits for two minutes
        ray.init(**how, log_to_driver=False, logging_level=logging.CRITICAL)
    except (OSError, RuntimeError, ValueError, OverflowError, SystemExit, ray.exceptions.RayError) as error:
        raise UsageError(f"--ray {address}: cannot connect: {' '.join(str(error).split()):.300}") from error


def _result(reference: Any) -> Any:
    """Return the result of a worker.

    Raises:
        TreeoptError: it failed, or was lost too often.
    """
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, TreeoptError):
            raise error.cause from None
        reason = f"{type(error.cause).__name__}: {error.cause}"
    except ray.exceptions.RayError as error:
        reason = root_cause(str(error))
    raise ExecutorError(f"a worker on Ray failed, {TRIES + 1} times if it was lost: {' '.join(reason.split()):.300}")
