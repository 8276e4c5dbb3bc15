"""Gather the inputs of `frozen_behaviour`: what the readers read while the tests run, and damaged inputs.

    python -m tests.benchmarks.frozen_inputs FOLDER [PYTEST ARGUMENT ...]

runs the tests of the tree that PYTHONPATH names, notes every file and value that a reader of `READERS` is called with,
and copies each different one into FOLDER/KIND/HASH with a `call.json`: the file's name, the arguments and the test.
The readers of `tests.system.test_fuzz` get damaged inputs of fixed seeds. A tree whose readers have other names needs
its own table `READERS`; the gathered folder stays as it is.
"""

import hashlib
import importlib
import json
import os
import random
import shutil
import sys
import tempfile
import types
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

LARGEST = 2_000_000  # bytes of a file or folder that is copied
FUZZED = 60  # damaged inputs of each reader
MOST = 700  # inputs of a kind: those of the lowest hashes

# Reader -> kind, and which of its arguments are kept; the first is the file.
READERS = {
    "treeopt.tree_files.choice_lists:read_tree": "tree",
    "treeopt.cli.options.what_to_draft:Static.convert": "tree-word",
    "treeopt.traces.importers.readers.formats:import_trace": "import",
    "treeopt.traces.resumable_shards:load_file_or_shards": "trace",
    "treeopt.traces.trace:load_trace": "trace",
    "treeopt.plans.plan_json:load_plan": "plan",
    "simulate.profiles.profile:load_profile": "profile",
    "simulate.validation.predictions:load_predictions": "predictions",
    "treeopt.notebook.value_files:load_record": "record",
    "treeopt.notebook.value_files:load_validation": "record",
    "treeopt.api.page.result_files:read_files": "report",
    "simulate.profiles.engine_times_csv:read_times": "times",
    "simulate.model_sizes.model_shape:Shape.from_config": "config",
    "simulate.model_sizes.hf_config:context_limit": "config",
    "simulate.model_sizes.hf_config:quant_method": "config",
    "simulate.model_sizes.drafter_sizes:DrafterShape.from_config": "drafter-config",
    "simulate.roofline.data_sheets:load_hardware": "hardware",
    "simulate.runs.server_load:read_requests": "requests",
    "executor.prompts.prompt_files:read_prompts": "prompts",
    "executor.train.text_files:read_texts": "data",
    "executor.checkpoints:load_drafter": "drafter",
    "executor.target.load_hf_model:load_target": "target",
}
# Damaged inputs: reader of the fuzzer -> kind and arguments.
DAMAGED: dict[str, tuple[str, dict[str, Any]]] = {
    "trace": ("trace", {}),
    "plan": ("plan", {}),
    "profile": ("profile", {}),
    "validation": ("record", {}),
    "predictions": ("predictions", {}),
    "configuration": ("config", {}),
    "data": ("data", {}),
    "data list": ("data", {}),
    "prompts": ("prompts", {}),
    "text": ("data", {}),
    "tree": ("tree", {}),
    "tree word": ("tree-word", {}),
    "engine output": ("import", {"kind": "engine"}),
    "numbers": ("import", {"kind": "table", "settings": {"column": "rank"}, "requests": 3, "length": 8}),
    "npy": ("import", {"kind": "sequoia-vector", "requests": 3, "length": 8}),
    "times": ("times", {"device": "d", "context": [1, 100]}),
    "requests": ("requests", {}),
    "hardware": ("hardware", {}),
}


class Gatherer:
    """Copies of inputs, each once."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.test, self.inside, self.failed = folder, "", False, Counter[str]()

    def keep(self, kind: str, content: Path | str | Mapping[str, Any], call: dict[str, Any], beside: Any = ()) -> None:
        """Copy a file, a folder, or a value, and the further files of the call."""
        files: dict[str, bytes] = {}
        if isinstance(content, Path):
            for path in (content, *beside):
                files |= _files(path)
            call["file"] = content.name
        elif isinstance(content, str):
            files["word"] = content.encode("utf-8", "surrogatepass")
            call["file"] = "word"
        else:
            files["config.json"] = json.dumps(content, default=str).encode()
            call["file"] = "config.json"
        if sum(map(len, files.values())) > LARGEST:
            return
        sha = hashlib.sha256(json.dumps(call, sort_keys=True, default=str).encode())
        for name, data in sorted(files.items()):
            sha.update(name.encode() + b"\0" + data + b"\0")
        place = self.folder / kind / sha.hexdigest()[:12]
        if place.exists():
            return
        for name, data in files.items():
            (place / "files" / name).parent.mkdir(parents=True, exist_ok=True)
            (place / "files" / name).write_bytes(data)
        (place / "files").mkdir(parents=True, exist_ok=True)
        text = json.dumps(call | {"test": self.test}, default=str, indent=1)
        (place / "call.json").write_text(text + "\n", "utf-8", "backslashreplace")

    def called(self, reader: str, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep what a reader is called with; whatever cannot be kept is counted."""
        if self.inside or not self.test:
            return
        self.inside = True
        try:
            self._keep_call(reader, kind, args, kwargs)
        except Exception as error:  # noqa: BLE001 - gathering must not fail a test
            self.failed[f"{reader}: {type(error).__name__}: {str(error)[:80]}"] += 1
        finally:
            self.inside = False

    def _keep_call(self, reader: str, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if reader.endswith((".from_config", ".convert")):
            args = args[1:]
        first = args[0] if args else next(iter(kwargs.values()))
        if kind == "tree-word":
            if isinstance(first, str):
                beside = [Path(word) for word in (first, first.rpartition(":")[0]) if word and Path(word).is_file()]
                if not beside:
                    self.keep(kind, first, {})
        elif kind == "import":
            settings = dict(args[1] if len(args) > 1 else kwargs["settings"])
            beside = [settings["before"]] if isinstance(settings.get("before"), Path) else []
            if beside:
                settings["before"] = beside[0].name
            call = {"kind": first.kind, "settings": settings}
            call |= {name: getattr(first, name) for name in ("requests", "length", "seed")}
            self.keep(kind, Path(first.path), call, beside)
        elif kind == "report":
            for path in first:
                self.keep(kind, Path(path), {})
        elif kind in ("config", "drafter-config"):
            call = {}
            if kind == "drafter-config":
                from dataclasses import asdict

                target = kwargs.get("target")
                call = {"kind": kwargs["kind"], "target": None if target is None else asdict(target)}
            path = Path(first) if isinstance(first, str | Path) else None
            if path is not None and path.is_dir():
                path = path / "config.json"
            self.keep(kind, first if path is None else path, call)
        elif kind in ("prompts", "data"):
            report = args[1] if len(args) > 1 else kwargs.get("report")
            call = {"leave_out": sorted(report.leave_out) if report is not None else []}
            paths = [Path(path) for path in first] if kind == "data" else [Path(first)]
            for path in paths:
                self.keep(kind, path, dict(call))
        elif kind == "drafter":
            target = args[1] if len(args) > 1 else kwargs["target"]
            if not str(first).startswith("prompt-lookup"):
                self.keep(kind, Path(first), {"target": self._target(target)})
        elif kind == "times":
            self.keep(kind, Path(first), {"device": kwargs["device"], "context": kwargs.get("context")})
        elif kind == "target":
            self.keep(kind, Path(first), {"drafter": bool(kwargs.get("drafter"))})
        else:
            path = Path(first)
            self.keep(kind, path, {name: value for name, value in kwargs.items() if name == "name"})

    def _target(self, target: Any) -> str:
        """Save the target of a drafter, each different one once; return its name."""
        import torch

        sha = hashlib.sha256(json.dumps(target.model.config.to_diff_dict(), sort_keys=True, default=str).encode())
        for name, tensor in sorted(target.model.state_dict().items()):
            sha.update(name.encode() + tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        name = sha.hexdigest()[:12]
        place = self.folder / "targets" / name
        if not place.exists():
            target.model.save_pretrained(place)
        return name

    # --- hooks of pytest

    def pytest_sessionstart(self) -> None:
        watch(self)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        self.test = item.nodeid
        return (yield)


def _files(path: Path) -> dict[str, bytes]:
    if path.is_dir():
        inside = [file for file in sorted(path.rglob("*")) if file.is_file()][:200]
        if sum(file.stat().st_size for file in inside) > LARGEST:
            raise ValueError("large")
        return {f"{path.name}/{file.relative_to(path)}": file.read_bytes() for file in inside}
    if path.is_file():
        if path.stat().st_size > LARGEST:
            raise ValueError("large")
        return {path.name: path.read_bytes()}
    return {}


def watch(gatherer: Gatherer) -> None:
    """Let every reader tell the gatherer what it is called with, wherever it was imported from: by its code."""
    for reader, kind in READERS.items():
        module, _, name = reader.partition(":")
        owner: Any = importlib.import_module(module)
        for part in name.split("."):
            owner = getattr(owner, part)
        function = getattr(owner, "__func__", owner)
        kept = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        kept.__kwdefaults__ = function.__kwdefaults__
        key = "_gathered_" + "".join(c if c.isalnum() else "_" for c in reader)

        def told(
            args: Any, kwargs: Any, reader: str = reader, kind: str = kind, kept: Callable[..., Any] = kept
        ) -> Any:
            gatherer.called(reader, kind, args, kwargs)
            return kept(*args, **kwargs)

        function.__globals__[key] = told
        made: dict[str, Any] = {}
        exec(f"def door(*args, **kwargs):\n    return {key}(args, kwargs)\n", function.__globals__, made)
        function.__code__ = made["door"].__code__
        function.__defaults__ = function.__kwdefaults__ = None


def damaged(gatherer: Gatherer) -> None:
    """Keep damaged inputs of fixed seeds."""
    from tests.system import test_fuzz

    for name, reader in test_fuzz.readers().items():
        if name not in DAMAGED:
            continue
        kind, call = DAMAGED[name]
        gatherer.test = f"fuzz {name}"
        for seed in range(FUZZED):
            with tempfile.TemporaryDirectory() as folder:
                content = reader.make(random.Random(seed))
                for suffix in (".json", ".csv") if name == "numbers" else ("",):
                    path = Path(folder) / (reader.name + suffix)
                    path.write_bytes(content)
                    if kind == "tree-word":
                        gatherer.keep(kind, content.decode("utf-8", "replace"), dict(call))
                    else:
                        gatherer.keep(kind, path, dict(call))
    kept = os.environ.get("TREEOPT_FUZZ_KEPT", "build/fuzz")
    names = {reader.name: DAMAGED[name] for name, reader in test_fuzz.readers().items() if name in DAMAGED}
    for path in sorted(Path(kept).glob("*-*")):
        kind, call = names.get(path.name.partition("-")[2], ("", {}))
        if kind:
            gatherer.keep(kind, path, dict(call))


def trim(folder: Path) -> None:
    """Leave at most `MOST` inputs of each kind."""
    for kind in sorted(folder.iterdir()):
        if kind.name != "targets":
            for place in sorted(kind.iterdir())[MOST:]:
                shutil.rmtree(place)
            print(kind.name, len(list(kind.iterdir())))


def main() -> int:
    """Run the tests, then damage inputs."""
    folder, arguments = Path(sys.argv[1]).resolve(), sys.argv[2:]
    gatherer = Gatherer(folder)
    status = pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments], plugins=[gatherer])
    damaged(gatherer)
    trim(folder)
    for reason, count in gatherer.failed.most_common(40):
        print(f"not kept: {count} {reason}")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
