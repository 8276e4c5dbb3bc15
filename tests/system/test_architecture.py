"""The house as design.md §3 draws it: who may import whom, what importing loads, what things are called."""

import ast
import importlib
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import treeopt
from simulate.profiles.profile import BatchTimes, Profile, save_profile
from tests.helpers.strategies import drawn_trace
from treeopt.cli.commands import COMMANDS
from treeopt.traces.trace_files import save_trace

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("treeopt", "simulate", "executor")

# The room rule: a room imports rooms that stand before it, in its own package or in one before; never a later one.
ROOMS = """
treeopt: errors registry settings acceptance_rule_entries defaults storage display_methods tree statistics traces
    traces.importers traces.importers.sources tree_files policies
    cost_model constraints replay searchers
    plans planning comparison engines engines.connections engines.* monitoring results terminal charts report
simulate: model_sizes drafter_kinds device_memory roofline profiles paper_formulas runs validation whatif
executor: device kernels prompts verification target drafters.base models checkpoints.tensors
    drafters.* drafters checkpoints decoding runners
    recording profiling validation train
"""
ROOF = (
    "treeopt",
    "treeopt.__main__",
    "treeopt.api",
    "treeopt.notebook",
    "treeopt.explore",
    "treeopt.cli",
    "treeopt.cli.options",
    "treeopt.cli.commands",
)  # imports every room; no room imports it
EXECUTOR_ONLY = {"torch", "transformers", "tokenizers", "safetensors", "accelerate", "peft"}
# Loaded inside functions, where they are needed: each takes 0.1 s to seconds.
LONGEST_COMMAND = 60  # lines
LAZY = {"pandas", "ortools", "matplotlib", "scipy", "peft", "datasets", "jinja2", "altair", "vl_convert"}
LAZY |= {"prometheus_client", "pyarrow", "marimo", "uvicorn", "starlette", "ray", "fsspec"}
# Only the server of the page loads these.
PAGE = {f"treeopt.explore.{name}" for name in ("marimo_page", "controls", "answer_parts")}


@dataclass(frozen=True)
class Import:
    """One imported name: `module` is what the statement names, `inside` whether it stands in a function."""

    module: str
    name: str | None
    inside: bool
    types_only: bool = False

    @property
    def top(self) -> str:
        return self.module.split(".")[0]


def last_name(node: ast.expr) -> str | None:
    """`c` of `a.b.c` or of `c`; writing each expression out would take a second."""
    return getattr(node, "attr", getattr(node, "id", None))


class Imports(ast.NodeVisitor):
    """Collects imports wherever they stand, also inside functions and for types alone."""

    def __init__(self) -> None:
        self.found: list[Import] = []
        self.depth = 0
        self.typing = 0

    def visit_If(self, node: ast.If) -> None:
        types = last_name(node.test) == "TYPE_CHECKING"
        self.typing += types
        for child in node.body:
            self.visit(child)
        self.typing -= types
        for child in node.orelse:
            self.visit(child)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Import(self, node: ast.Import) -> None:
        self.found += [Import(alias.name, None, self.depth > 0, self.typing > 0) for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        inside, module = self.depth > 0, node.module or ""
        self.found += [Import(module, alias.name, inside, self.typing > 0) for alias in node.names]

    def visit_Call(self, node: ast.Call) -> None:
        """`import_module("name")` and `__import__("name")` are imports too."""
        if last_name(node.func) in ("import_module", "__import__") and isinstance(node.args[0], ast.Constant):
            self.found.append(Import(str(node.args[0].value), None, self.depth > 0))
        self.generic_visit(node)


parsed = cache(ast.parse)


@cache
def imports_of(source: str) -> list[Import]:
    visitor = Imports()
    visitor.visit(parsed(source))
    return visitor.found


@cache
def modules() -> dict[str, Path]:
    """Every module of the three packages: dotted name -> file."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def sources() -> dict[str, str]:
    return {name: path.read_text("utf-8") for name, path in modules().items()}


def all_imports() -> Iterator[tuple[str, Import]]:
    for name, source in sources().items():
        for found in imports_of(source):
            yield name, found


def own_imports() -> Iterator[tuple[str, str]]:
    """(importer, imported) among our modules; a name of a package that is a module stands for that module."""
    for name, found in all_imports():
        if found.top in PACKAGES:
            member = f"{found.module}.{found.name}"
            yield name, member if member in modules() else found.module


# --- import direction


def test_imports_are_found_wherever_they_stand():
    source = """
import torch
from treeopt import tree
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import pandas
else:
    import scipy
def f():
    from executor.decoding.decoder import Decoder
    class C:
        async def g(self):
            import matplotlib.pyplot as plt
            importlib.import_module("ortools.sat")
"""
    assert imports_of(source) == [
        Import("torch", None, False),
        Import("treeopt", "tree", False),
        Import("typing", "TYPE_CHECKING", False),
        Import("pandas", None, False, True),
        Import("scipy", None, False),
        Import("executor.decoding.decoder", "Decoder", True),
        Import("matplotlib.pyplot", None, True),
        Import("ortools.sat", None, True),
    ]


def kinds_in(package: str, listed: str) -> list[str]:
    """The folders of a package that are not listed by name: one for each entry of a registry."""
    folders = (name for name, path in modules().items() if path.name == "__init__.py")
    return [name for name in folders if name.rpartition(".")[0] == package and name.partition(".")[2] not in listed]


def is_kind(room: str) -> bool:
    shared = ("executor.drafters.base", "treeopt.engines.connections")
    return room.startswith(("executor.drafters.", "treeopt.engines.")) and room not in shared


def rooms() -> list[str]:
    """All rooms in the order of import; a package's root is a room of its own, before its other rooms."""
    ordered = []
    for line in re.split(r"\n(?=\w)", ROOMS.strip()):
        package, names = line.split(":")
        for name in (f"{package}.{name}" for name in names.split()):
            ordered += [name] if not name.endswith(".*") else kinds_in(name.removesuffix(".*"), names)
    return [*ordered, "simulate", "executor", *ROOF]


def room_of(module: str) -> str:
    """The folder of a module; a module in the root of a package is a room of its own."""
    folder = module if modules()[module].name == "__init__.py" else module.rpartition(".")[0]
    return module if folder in PACKAGES else folder


def test_every_folder_is_a_room_and_every_room_a_folder():
    assert sorted({room_of(name) for name in modules()}) == sorted(rooms())


def test_rooms_import_only_rooms_before_them():
    place = {name: number for number, name in enumerate(rooms())}
    drafters = [name for name in place if is_kind(name) and name.startswith("executor")]
    place |= dict.fromkeys(drafters, place["executor.drafters"])  # they may read one another
    wrong = {
        (name, other)
        for name, other in own_imports()
        if place[room_of(other)] > place[room_of(name)] and not (room_of(name) in ROOF and room_of(other) in ROOF)
    }
    assert sorted(wrong) == []


def test_simulate_knows_nothing_of_terminals_and_pages():
    shown = ("treeopt.terminal", "treeopt.charts", "treeopt.report")
    wrong = {(name, other) for name, other in own_imports() if name.startswith("simulate.") and room_of(other) in shown}
    assert sorted(wrong) == []


def test_no_module_lies_on_a_circle_of_imports():
    """Imports inside functions and under TYPE_CHECKING count."""
    graph = {name: set() for name in modules()}
    for name, other in own_imports():
        if other != name and modules()[other].name != "__init__.py":
            graph[name].add(other)
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def is_entry(path: Path) -> bool:
    """Entries of a registry list themselves: they need no line in the docstring of their room."""
    return re.search(r"^ENTRY = ", path.read_text("utf-8"), re.MULTILINE) is not None


def test_the_docstring_of_a_room_is_its_map():
    """It names every file and folder of the room but a registry's entries; names that are no file are stale."""
    for room in (name for name, path in modules().items() if path.name == "__init__.py"):
        folder, text = modules()[room].parent, ast.get_docstring(parsed(sources()[room])) or ""
        inside = {path.stem: path for path in folder.glob("*.py") if not path.name.startswith("__")}
        inside |= {path.parent.name: path for path in folder.glob("*/__init__.py")}
        lines = re.findall(r"^\* (.*?):", text, re.MULTILINE)
        listed = {name.rstrip("/") for line in lines for name in re.findall(r"`([\w/]+)`", line)}
        unlisted = [name for name in inside.keys() - listed if not is_entry(inside[name])]
        assert (room, unlisted, listed - inside.keys()) == (room, [], set())


def test_rooms_hold_at_most_twenty_files():
    crowded = Counter(path.parent for path in modules().values() if not is_entry(path))
    assert [(str(folder), count) for folder, count in crowded.items() if count > 20] == []


def test_no_two_modules_share_a_name():
    """But drafters, engines and commands, which are named after what they are."""
    may = ("executor.drafters.", "executor.checkpoints.", "treeopt.engines.", "treeopt.results.")
    may += ("treeopt.cli.commands.",)
    named = defaultdict(list)
    for name, path in modules().items():
        if path.name != "__init__.py" and not name.startswith(may):
            named[path.stem].append(name)
    assert [names for names in named.values() if len(names) > 1] == []


@pytest.mark.parametrize(
    ("room", "libraries"),
    [("executor", EXECUTOR_ONLY), ("treeopt.cli", {"click", "click_didyoumean", "cloup"})],
)
def test_libraries_of_one_room_are_imported_there_alone(room, libraries):
    """Types of torch may be named elsewhere."""
    found = ((name, each) for name, each in all_imports() if each.top in libraries and not name.startswith(room))
    assert [(name, each) for name, each in found if room != "executor" or not each.types_only] == []


def test_matplotlib_is_imported_only_by_functions_of_the_charts():
    wrong = [
        (name, found)
        for name, found in all_imports()
        if found.top == "matplotlib"
        and not found.types_only
        and not (found.inside and name.startswith("treeopt.charts"))
    ]
    assert wrong == []


def test_slow_libraries_are_imported_inside_functions():
    found = ((n, f.module) for n, f in all_imports() if f.top in LAZY and not f.inside and not f.types_only)
    assert [pair for pair in found if pair[0] not in PAGE] == []


# --- what importing and searching load


def python(code: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment,
        check=False,
    )


def test_importing_treeopt_loads_nothing_heavy_and_prints_nothing(tmp_path):
    code = "import sys, treeopt; sys.exit(sorted(set(sys.argv[1:]) & set(sys.modules)) or None)"
    heavy = ("torch", "transformers", "ortools", "pandas", "matplotlib", "rich", "scipy", "numpy", "click", "msgspec")
    done = python(code, *heavy, cwd=tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_searching_loads_nothing_heavy(tmp_path):
    rng = np.random.default_rng(0)
    save_trace(drawn_trace([[0.6, 0.2]], [20] * 6, depth=3, rng=rng), tmp_path / "t.npz")
    times = BatchTimes(1, 0.01, ((1, 1e-3), (3, 2e-3)), ((2, 0.01), (64, 0.02)))
    save_profile(Profile((times,), (0, 100), 0.02), tmp_path / "p.json")
    code = """
import sys
from treeopt.cli import main
words = ["search", "--trace", "t.npz", "--profile", "p.json", "--batch", "1", "--output", "plan.json"]
for more in (["--method", "renewal"], ["--method", "best-first", "--json"], ["--method", "hydra"]):
    try:
        main(words + more)
    except SystemExit as end:
        if end.code:
            raise
print("searched three times")
loaded = sorted(set(sys.argv[1:]) & set(sys.modules))
sys.exit("loaded " + " ".join(loaded) if loaded else 0)
"""
    done = python(code, "torch", "transformers", "ortools", "pandas", "matplotlib", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("chosen tree") == 3
    assert done.stdout.endswith("searched three times\n")
    assert (tmp_path / "plan.json").stat().st_size > 0


# --- what things are called


def test_every_module_says_what_it_knows():
    texts = {name: ast.get_docstring(parsed(source)) or "" for name, source in sources().items()}
    summaries = {name: text.split("\n\n")[0] for name, text in texts.items()}
    assert {name: text for name, text in summaries.items() if not text.endswith(".") or len(text) <= 20} == {}


def test_no_module_is_called_after_nothing():
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "tools"}
    assert [name for name in modules() if vague & set(name.split("."))] == []


def test_only_commands_are_named_like_their_module():
    named = set()
    for name, source in sources().items():
        last = name.split(".")[-1]
        for node in parsed(source).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == last:
                named.add(name)
    assert {name for name in named if not name.startswith("treeopt.cli.commands.")} == set()
    assert set(COMMANDS.values()) <= named


def test_a_command_s_function_has_at_most_sixty_lines():
    long = [
        (name, node.name, node.end_lineno - node.lineno + 1)
        for name, source in sources().items()
        if name.startswith("treeopt.cli.commands.")
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno + 1 > LONGEST_COMMAND
    ]
    assert long == []


def test_treeopt_exposes_what_it_says():
    """Each name is loaded from its module when it is asked for; type checkers and editors see the same names."""
    assert list(treeopt.__all__) == sorted(treeopt.__all__)
    assert all((getattr(treeopt, name).__doc__ or "").strip() for name in treeopt.__all__)
    typed = {(found.name, found.module) for found in imports_of(sources()["treeopt"]) if found.types_only}
    assert typed == set(treeopt._MODULES.items())
    assert set(treeopt._MODULES) == set(treeopt.__all__) <= set(dir(treeopt))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        treeopt.nothing  # noqa: B018


def test_every_function_of_the_api_has_an_example():
    """Values and readers of values have their own; examples run as doctests."""
    functions = ["compare", "import_trace", "load_plan", "load_profile", "load_record", "load_trace", "load_tree"]
    functions += ["load_validation", "search", "simulate", "validate"]
    assert [name for name in (*functions, "whatif") if ">>> " not in getattr(treeopt, name).__doc__] == []


def test_what_treeopt_exposes_is_no_module():
    """`treeopt.search` is the function even after a module of that name could have taken its place."""
    for name in modules():
        if name.startswith("treeopt"):
            importlib.import_module(name)
    assert [name for name in treeopt.__all__ if isinstance(getattr(treeopt, name), ModuleType)] == []
