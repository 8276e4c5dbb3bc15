"""Parts of a command on Ray: workers with the resources that are named; the part of a lost worker is made again."""

import logging
import os
import re
import socket
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any, NamedTuple

from treeopt.api.messages import LOG
from treeopt.errors import ExecutorError, TreeoptError, UsageError, counted, root_cause
from treeopt.settings import Settings, setting
from treeopt.storage.hub_models import folder_name

TRIES = 3  # times that a lost worker is started again
CONNECT_S = 5.0
WAIT_S = 30.0  # between looks at the nodes of the cluster, which may leave
SHARED = ("target", "drafter", "prompts", "data")  # settings that name files
RESOURCES = {"cpus": "CPU", "gpus": "GPU", "memory": "memory"}  # by Ray's names
# Quiet; a user's own settings win.
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}

# Of settings: what the driver must know, what must be equal in all workers, and a function that makes a part.
Make = Callable[[Any], tuple[Any, Mapping[str, Any], Callable[..., Any]]]
Parts = Callable[..., Iterator[Any]]  # takes what `map` takes after the function
Files = Mapping[Path, Mapping[str, Any]]  # references to the contents of files, by their names below a path


@dataclass(frozen=True, kw_only=True)
class RaySetup(Settings):
    """Where parts of a command run."""

    ray: str | None = setting(
        None,
        help="Run on a cluster of Ray: HOST:PORT of its head, or local for this machine. Files that a worker lacks are "
        "sent to it.",
    )
    ray_needs: tuple[str, ...] = setting(
        (),
        help="Reserve this for a worker, such as gpus=1: cpus (default 1), gpus, memory in bytes, another resource of "
        "the cluster (NAME=NUMBER), or a label of its nodes (NAME=TEXT); may be given several times.",
    )

    def check(self) -> None:
        """Raise UsageError for an address or needs without meaning."""
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
            name, _, value = need.partition("=")
            if re.fullmatch(r"\d+(\.\d+)?(e\d{1,2})?", value) and name:
                resources[RESOURCES.get(name, name)] = float(value)
            elif not name or not value or name in RESOURCES:
                raise UsageError(f"--ray-needs {need}: must be NAME=VALUE, such as gpus=1 or memory=16e9")
            else:
                labels[name] = value
        return resources, labels


class _Missing(NamedTuple):
    """The files and folders that a worker lacks."""

    paths: list[Path]


class _Worker:
    """A process of Ray; `paths` are those of the driver, by setting."""

    def __init__(self, make: Make, settings: Settings, paths: Mapping[str, Sequence[Path]]) -> None:
        self._make, self._settings, self._paths = make, settings, paths
        self._made: Any = None

    def run(self, files: Files, same: Mapping[str, Any] | None, *call: Any) -> Any:
        """Return a part, without a `call` what was made and the messages of making it; or what is missing."""
        if self._made is None:
            missing = [path for own in self._paths.values() for path in own if not path.exists() and path not in files]
            if missing:
                return _Missing(missing)
            LOG.addHandler(held := MemoryHandler(10**6, flushLevel=logging.CRITICAL + 1))
            with tempfile.TemporaryDirectory(prefix="treeopt-ray-") as folder:
                here = {name: [_placed(path, files, folder) for path in own] for name, own in self._paths.items()}
                changes = {name: tuple(own) if name == "data" else own[0] for name, own in here.items()}
                self._made = *self._make(self._settings.changed(**changes)), held.buffer
        head, own, part, messages = self._made
        for name, first in (same or {}).items():
            if own[name] != first:
                raise UsageError(
                    f"the worker on {socket.gethostname()} has {name} {own[name]!r:.80}, the first one {first!r:.80}: "
                    "workers must be alike: choose their nodes with --ray-needs"
                )
        return part(*call) if call else (head, own, [(each.levelno, each.getMessage()) for each in messages])


def _placed(path: Path, files: Files, folder: str) -> Path:
    """Return a path that exists on this machine: as it is, or written below a folder."""
    import ray

    place = Path(tempfile.mkdtemp(dir=folder), folder_name(path))
    for name, content in {} if path.exists() else files[path].items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        ray.get(content).tofile(place / name)
    return place if place.exists() else path


def _stored(path: Path) -> dict[str, Any]:
    """Store a file, or each file below a folder, for all workers, by its name there."""
    import numpy as np
    import ray

    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return {str(file.relative_to(path)): ray.put(np.fromfile(file, np.uint8)) for file in files}


@contextmanager
def on_ray(setup: RaySetup, make: Make, settings: Settings) -> Iterator[tuple[Any, Parts]]:
    """Yield the head that a first worker makes, and a `map` of the function that makes parts.

    The function's first argument names a part: the worker that made it also makes the next one of this name.

    Workers end with the context, and with `--ray local` all of Ray.

    Args:
        setup: where the workers run.
        make: a function of a module that workers can import.
        settings: what it takes. Workers get the files sent that it names and they lack.

    Raises:
        UsageError: no cluster, or one without room for a worker.
        TreeoptError: of the first worker that failed.
    """
    import ray

    with ExitStack() as stack:
        # Ray prints remarks of its own there, from a thread.
        stack.enter_context(redirect_stdout(stack.enter_context(Path(os.devnull).open("w"))))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="treeopt-", ignore_cleanup_errors=True))
        stack.callback(ray.shutdown)
        _connect(setup.ray or "", folder)
        workers = _Workers(setup, make, settings)
        yield workers.head(), workers.parts


class _Workers:
    """Workers, and the files that were stored for them."""

    def __init__(self, setup: RaySetup, make: Make, settings: Settings) -> None:
        holders = [each for each in (settings, *vars(settings).values()) if isinstance(each, Settings)]
        named = {name: vars(each)[name] for each in holders for name in SHARED if vars(each).get(name)}
        several = {name: own if isinstance(own, tuple) else (own,) for name, own in named.items()}
        here = {name: own for name, own in several.items() if all(path.exists() for path in own)}
        paths = {name: [path.absolute() for path in own] for name, own in here.items()}
        self._setup, self._make = setup, (make, settings.changed(ray=None, ray_needs=()), paths)
        self._files: dict[Path, dict[str, Any]] = {}
        self._same: Any = None
        self._workers: list[Any] = []
        self._made_by: dict[Any, Any] = {}  # workers by names of parts

    def head(self) -> Any:
        """Let one worker make its head."""
        _, (head, self._same, messages) = next(self._results([()]))
        for level, message in messages:
            LOG.log(level, "%s", message)
        return head

    def parts(self, names: Iterable[Any], *given: Iterable[Any]) -> Iterator[Any]:
        """Yield parts in order."""
        calls, made = list(zip(names, *given, strict=False)), dict[Any, Any]()
        results = self._results(calls)
        for name, *_ in calls:
            while name not in made:
                call, part = next(results)
                made[call[0]] = part
            yield made.pop(name)

    def _start(self, count: int) -> None:
        """Start workers until there are as many, or the cluster's nodes hold no more."""
        import ray

        resources, labels = self._setup.needs()
        nodes = [node for node in ray.nodes() if node["Alive"]]
        fitting = [node["Resources"] for node in nodes if labels.items() <= node["Labels"].items()]
        needs = [(name, need) for name, need in resources.items() if need]
        room = sum(int(min((own.get(name, 0) // need for name, need in needs), default=1)) for own in fitting)
        if not room:
            most = {name: max(node["Resources"].get(name, 0) for node in nodes) for name in resources}
            raise UsageError(
                f"--ray {self._setup.ray}: no node holds a worker of {' '.join(self._setup.ray_needs) or 'cpus=1'}; "
                f"most of {counted(len(nodes), 'node')}: {', '.join(f'{name} {n:g}' for name, n in most.items())}"
            )
        cpus, gpus, memory = (resources.pop(name, None) for name in RESOURCES.values())
        how = {"num_cpus": cpus, "num_gpus": gpus, "memory": memory, "resources": resources, "label_selector": labels}
        worker = ray.remote(_Worker).options(**how, max_restarts=TRIES, max_task_retries=TRIES)
        while len(self._workers) < min(room, count):
            self._workers.append(worker.remote(*self._make))

    def _results(self, calls: Sequence[tuple[Any, ...]]) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """Yield each call with its result as they come; a worker gets the next one when it has made one."""
        import ray

        self._start(len(calls))
        todo, idle, running = deque(calls), list(self._workers), dict[Any, tuple[Any, Any]]()
        while todo or running:
            for worker in idle.copy():
                call = next((each for each in todo if self._made_by.get(each[:1], worker) is worker), None)
                if call is not None:
                    todo.remove(call)
                    idle.remove(worker)
                    self._made_by[call[:1]] = worker
                    running[worker.run.remote(self._files, self._same, *call)] = worker, call
            ready, _ = ray.wait(list(running), timeout=WAIT_S)
            if not ready:
                self._start(0)  # nodes may have left
                continue
            worker, call = running.pop(ready[0])
            idle.append(worker)
            if isinstance(result := _result(ready[0]), _Missing):
                self._files |= {path: _stored(path) for path in result.paths if path not in self._files}
                todo.appendleft(call)
            else:
                yield call, result


def _connect(address: str, folder: str) -> None:
    """Connect to a cluster, or start one on this machine, whose files are below `folder`."""
    import ray

    os.environ.update({name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()})
    how: dict[str, Any] = {"include_dashboard": False, "_temp_dir": folder} if address == "local" else {}
    stderr, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)  # a connection that fails takes Ray several lines
    try:
        if address != "local":
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), CONNECT_S).close()  # Ray itself waits for two minutes
        ray.init(address, **how, log_to_driver=False, logging_level=logging.CRITICAL)
    except (OSError, RuntimeError, ValueError, OverflowError, SystemExit, ray.exceptions.RayError) as error:
        reason = f"{' '.join(str(error).split()):.300}"
        token = "; a cluster that asks for a token needs RAY_AUTH_MODE=token" if "to Ray cluster" in reason else ""
        raise UsageError(f"--ray {address}: cannot connect: {reason}{token}") from error
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nothing)


def _result(reference: Any) -> Any:
    """Return the result of a worker; raise TreeoptError if it failed, or was lost too often."""
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, TreeoptError):
            raise error.cause from None
        reason = f"{type(error.cause).__name__}: {error.cause}"
    except ray.exceptions.RayError as error:
        reason = root_cause(str(error))
    raise ExecutorError(f"a worker on Ray failed, or was lost {TRIES + 1} times: {' '.join(reason.split()):.300}")
