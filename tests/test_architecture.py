"""The house as design.md §3 draws it: who may import whom, what importing loads, what things are called."""

import ast
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import treeopt
from simulate.profile import BatchTimes, Profile, save_profile
from tests.strategies import drawn_trace
from treeopt.cli import COMMANDS
from treeopt.trace import save_trace

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("treeopt", "simulate", "executor")

# A module imports only what stands above it. A new module must be given its place here.
ORDER = [
    "treeopt.errors",
    "treeopt.files",
    "treeopt.records",
    "treeopt.lines",
    "treeopt.tree",
    "treeopt.arrays",
    "treeopt.checks",
    "treeopt.trace",
    "treeopt.walk",
    "treeopt.curve",
    "treeopt.drafting",
    "treeopt.shortlist",
    "treeopt.policies.base",
    "treeopt.policies.dynamic",
    "treeopt.policies.opt_tree",
    "treeopt.policies.cost_aware",
    "treeopt.policies",
    "treeopt.policies.stored",
    "treeopt.replayer",
    "treeopt.growth",
    "treeopt.estimate",
    "treeopt.objective",
    "treeopt.cost",
    "treeopt.constraints.base",
    "treeopt.constraints.counts",
    "treeopt.constraints.ranks",
    "treeopt.constraints.families",
    "treeopt.constraints",
    "treeopt.searchers",
    "treeopt.searchers.back_off",
    "treeopt.searchers.best_first",
    "treeopt.searchers.shrinkage",
    "treeopt.searchers.closed",
    "treeopt.searchers.values",
    "treeopt.searchers.climb",
    "treeopt.searchers.nodes",
    "treeopt.searchers.padding",
    "treeopt.searchers.knapsack",
    "treeopt.searchers.uniform",
    "treeopt.searchers.growing",
    "treeopt.searchers.constrained",
    "treeopt.searchers.formulation",
    "treeopt.searchers.integer",
    "treeopt.searchers.renewal",
    "treeopt.searchers.pricing",
    "treeopt.searchers.cost_aware",
    "treeopt.searchers.oracle",
    "treeopt.searchers.sweep",
    "treeopt.searchers.dynamic",
    "treeopt.plan",
    "treeopt.planfile",
    "treeopt.portfolio",
    "treeopt.published",
    "treeopt.provenance",
    "treeopt.parts",
    "treeopt.shards",
    "treeopt.learning",
    "treeopt.judge",
    "treeopt.ask",
    "treeopt.proposals",
    "treeopt.choosing",
    "treeopt.rivals",
    "treeopt.imports",
    "treeopt.imports.sources",
    "treeopt.imports.growmaps",
    "treeopt.imports.trees",
    "treeopt.imports.accuracy",
    "treeopt.imports.drawing",
    "treeopt.imports.tables",
    "treeopt.imports.chains",
    "treeopt.imports.prometheus",
    "treeopt.imports.counters",
    "treeopt.imports.responses",
    "treeopt.imports.logs",
    "treeopt.optimize",
    "treeopt.sized",
    "treeopt.pairing",
    "treeopt.comparison",
    "treeopt",
    "treeopt.engines.base",
    "treeopt.engines.imposed",
    "treeopt.engines.medusa",
    "treeopt.engines.hydra",
    "treeopt.engines.eagle",
    "treeopt.engines.sequoia",
    "treeopt.engines.specinfer",
    "treeopt.engines.tensorrt_llm",
    "treeopt.engines.mlc",
    "treeopt.engines.llama_cpp",
    "treeopt.engines.lmdeploy",
    "treeopt.engines.tgi",
    "treeopt.engines.transformers",
    "treeopt.engines.sglang",
    "treeopt.engines.vllm",
    "treeopt.engines",
    "treeopt.report",
    "treeopt.report.tables",
    "treeopt.report.validation",
    "treeopt.report.plots",
    "treeopt.report.runs",
    "treeopt.report.curves",
    "treeopt.report.scenarios",
    "treeopt.report.comparisons",
    "treeopt.report.page",
    "treeopt.report.sections",
    "treeopt.report.health",
    "simulate",
    "simulate.link",
    "simulate.hardware",
    "simulate.experts",
    "simulate.shapes",
    "simulate.forwards",
    "simulate.drafters",
    "simulate.kernels",
    "simulate.roofline",
    "simulate.closed_form",
    "simulate.predictions",
    "simulate.agreement",
    "simulate.published",
    "simulate.calibration",
    "simulate.basis",
    "simulate.jackknife",
    "simulate.tables",
    "simulate.prefill",
    "simulate.profile",
    "simulate.growing",
    "simulate.cells",
    "simulate.engine_times",
    "simulate.utilisation",
    "simulate.timeline",
    "simulate.sampling",
    "simulate.decode",
    "simulate.whole",
    "simulate.timetable",
    "simulate.scenarios",
    "simulate.rent",
    "simulate.workload",
    "simulate.switching",
    "simulate.serving",
    "simulate.levels",
    "simulate.capacity",
    "executor",
    "executor.topology",
    "executor.sampling",
    "executor.verdict",
    "executor.rejection",
    "executor.acceptance",
    "executor.memory",
    "executor.upload",
    "executor.cache",
    "executor.architectures",
    "executor.attention",
    "executor.packing",
    "executor.logits",
    "executor.features",
    "executor.target",
    "executor.parallel",
    "executor.quantization",
    "executor.loading",
    "executor.conversations",
    "executor.prompts",
    "executor.drafters",
    "executor.drafters.base",
    "executor.drafters.medusa",
    "executor.drafters.language_model",
    "executor.drafters.context",
    "executor.drafters.counts",
    "executor.drafters.ngram",
    "executor.drafters.prompt_lookup",
    "executor.drafters.layer",
    "executor.drafters.hydra",
    "executor.drafters.recurrent",
    "executor.drafters.eagle",
    "executor.drafters.eagle3",
    "executor.fingerprint",
    "executor.reading",
    "executor.shaped",
    "executor.saved",
    "executor.checkpoints.stored",
    "executor.checkpoints.files",
    "executor.checkpoints.written",
    "executor.checkpoints.layouts",
    "executor.checkpoints.shared",
    "executor.checkpoints.ngram",
    "executor.checkpoints.medusa",
    "executor.checkpoints.modules",
    "executor.checkpoints.llama",
    "executor.checkpoints.hydra",
    "executor.checkpoints.eagle",
    "executor.checkpoints.taps",
    "executor.checkpoints.vocabulary",
    "executor.checkpoints.eagle3",
    "executor.checkpoints",
    "executor.checkpoints.convert",
    "executor.pool",
    "executor.growth",
    "executor.imposed",
    "executor.rows",
    "executor.steps",
    "executor.clock",
    "executor.graphs",
    "executor.decode",
    "executor.audit",
    "executor.trial",
    "executor.led",
    "executor.odds",
    "executor.forced",
    "executor.candidates",
    "executor.recording",
    "executor.record",
    "executor.anew",
    "executor.ways",
    "executor.schedule",
    "executor.settings",
    "executor.blocks",
    "executor.pace",
    "executor.prefill",
    "executor.openings",
    "executor.measure",
    "executor.validate",
    "executor.train",
    "executor.train.losses",
    "executor.train.recipes",
    "executor.train.data",
    "executor.train.rows",
    "executor.train.feature_store",
    "executor.train.lesson",
    "executor.train.trainer",
    "executor.train.backbone",
    "executor.train.fresh",
    "executor.train.job",
    "executor.train.self_distill",
    "executor.train.corpus",
    "executor.train.ngram",
    "executor.train.shipped",
    "executor.train.traces",
    "treeopt.cli.options",
    "treeopt.cli.inputs",
    "treeopt.cli.matching",
    "treeopt.cli.sampling",
    "treeopt.cli.trees",
    "treeopt.cli.search",
    "treeopt.cli.compare",
    "treeopt.cli.prefill",
    "treeopt.cli.serving",
    "treeopt.cli.simulate",
    "treeopt.cli.devices",
    "treeopt.cli.scenarios",
    "treeopt.cli.whatif",
    "treeopt.cli.export",
    "treeopt.cli.imports",
    "treeopt.cli.trace",
    "treeopt.cli.profile",
    "treeopt.cli.times",
    "treeopt.cli.predicting",
    "treeopt.cli.validate",
    "treeopt.cli.results",
    "treeopt.cli.decode",
    "treeopt.cli.train",
    "treeopt.cli.report",
    "treeopt.cli.doctor",
    "treeopt.cli",
]
EXECUTOR_ONLY = {"torch", "transformers", "tokenizers", "safetensors", "accelerate", "peft"}
# Loaded inside functions, where they are needed: each takes 0.1 s to seconds.
LAZY = {"pandas", "ortools", "matplotlib", "scipy", "peft", "simpy"}


@dataclass(frozen=True)
class Import:
    """One imported name: `module` is what the statement names, `inside` whether it stands in a function."""

    module: str
    name: str | None
    inside: bool
    level: int

    @property
    def top(self) -> str:
        return self.module.split(".")[0]


class Imports(ast.NodeVisitor):
    """Collects imports wherever they stand, but under `if TYPE_CHECKING:`."""

    def __init__(self) -> None:
        self.found: list[Import] = []
        self.depth = 0

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in node.orelse:
                self.visit(other)
        else:
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Import(self, node: ast.Import) -> None:
        self.found += [Import(alias.name, None, self.depth > 0, 0) for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        inside = self.depth > 0
        self.found += [Import(node.module or "", alias.name, inside, node.level) for alias in node.names]

    def visit_Call(self, node: ast.Call) -> None:
        """`import_module("name")` and `__import__("name")` are imports too."""
        called, words = ast.unparse(node.func), node.args
        if called.split(".")[-1] in ("import_module", "__import__") and isinstance(words[0], ast.Constant):
            self.found.append(Import(str(words[0].value), None, self.depth > 0, 0))
        self.generic_visit(node)


def imports_of(source: str) -> list[Import]:
    visitor = Imports()
    visitor.visit(ast.parse(source))
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
    from executor.decode import Decoder
    class C:
        async def g(self):
            import matplotlib.pyplot as plt
            importlib.import_module("ortools.sat")
from . import near
"""
    assert imports_of(source) == [
        Import("torch", None, False, 0),
        Import("treeopt", "tree", False, 0),
        Import("typing", "TYPE_CHECKING", False, 0),
        Import("scipy", None, False, 0),
        Import("executor.decode", "Decoder", True, 0),
        Import("matplotlib.pyplot", None, True, 0),
        Import("ortools.sat", None, True, 0),
        Import("", "near", False, 1),
    ]


def test_every_module_has_its_place_in_the_order():
    assert len(set(ORDER)) == len(ORDER)
    assert sorted(set(modules()) - set(ORDER)) == [], "place these in ORDER"
    assert sorted(set(ORDER) - set(modules())) == [], "these are gone: take them out of ORDER"


def test_modules_import_only_what_stands_above_them():
    """An order of all modules also means that there is no cycle."""
    place = {name: number for number, name in enumerate(ORDER)}
    wrong = {
        (name, other) for name, other in own_imports() if place.get(other, len(ORDER)) >= place.get(name, len(ORDER))
    }
    assert sorted(wrong) == []


def test_the_three_packages_stand_apart():
    """Against a careless edit of ORDER: the rules between packages, in words of their own."""
    wrong = []
    for name, other in own_imports():
        package, imported = name.split(".")[0], other.split(".")[0]
        from_treeopt = package == "treeopt" and not name.startswith("treeopt.cli")
        if (from_treeopt and imported != "treeopt") or (package == "simulate" and imported == "executor"):
            wrong.append((name, other))
        if other.startswith("treeopt.cli") and not name.startswith("treeopt.cli"):
            wrong.append((name, other))
    assert wrong == []


def test_there_are_no_relative_imports():
    assert [(name, found) for name, found in all_imports() if found.level] == []


def test_only_the_executor_imports_torch_and_its_family():
    wrong = {(name, found.module) for name, found in all_imports() if found.top in EXECUTOR_ONLY}
    assert sorted((name, module) for name, module in wrong if not name.startswith("executor")) == []


def test_matplotlib_is_imported_only_by_functions_of_the_report():
    wrong = [
        (name, found)
        for name, found in all_imports()
        if found.top == "matplotlib" and not (found.inside and name.startswith("treeopt.report"))
    ]
    assert wrong == []


def test_slow_libraries_are_imported_inside_functions():
    assert [(name, f.module) for name, f in all_imports() if f.top in LAZY and not f.inside] == []


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
    heavy = ("torch", "transformers", "ortools", "pandas", "matplotlib", "rich", "scipy.stats")
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


@pytest.mark.parametrize("name", sorted(modules()))
def test_every_module_says_what_it_knows(name):
    summary = (ast.get_docstring(ast.parse(sources()[name])) or "").split("\n\n")[0].replace("\n", " ")
    assert summary.endswith("."), f"{name} opens with {summary!r}"
    assert len(summary) > 20


def test_no_module_is_called_after_nothing():
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "tools"}
    assert [name for name in modules() if vague & set(name.split("."))] == []


def test_only_commands_are_named_like_their_module():
    named = set()
    for name, source in sources().items():
        last = name.split(".")[-1]
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == last:
                named.add(name)
    commands = {module for command, module in COMMANDS.items() if module.split(".")[-1] == command}
    assert named == commands


def test_treeopt_exposes_what_it_says():
    public = {
        name for name, value in vars(treeopt).items() if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert public == set(treeopt.__all__)
    assert list(treeopt.__all__) == sorted(treeopt.__all__)
    assert all((getattr(treeopt, name).__doc__ or "").strip() for name in treeopt.__all__)


def test_what_treeopt_exposes_is_no_module():
    """`treeopt.search` is the function even after a module of that name could have taken its place."""
    for name in modules():
        if name.startswith("treeopt"):
            importlib.import_module(name)
    assert [name for name in treeopt.__all__ if isinstance(getattr(treeopt, name), ModuleType)] == []
