"""An engine that another package adds: one entry, and search, export, options and driver know it."""

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import pytest

import treeopt
from tests.helpers.command_line import done, read_json, refused, run
from tests.helpers.fake_engine import steps_of
from tests.helpers.small_plans import BUSHY, entry, plan_of
from treeopt import registry
from treeopt.constraints import broken, depth_at_most
from treeopt.cost_model import StepShape
from treeopt.engines import ENGINES, engine_rules
from treeopt.engines.driver import DriverSettings, EngineStep
from treeopt.engines.engine import SHARED, Engine, ExportJob, Method, Option
from treeopt.engines.export import Export
from treeopt.errors import EngineError, UsageError
from treeopt.traces.trace_files import load_trace
from treeopt.tree import Tree

RULE = depth_at_most(2, source="toy/limits.py")


def write(job: ExportJob) -> Export:
    """A toy's own text: the paths of its tree."""
    (at,) = job.static()
    paths = () if at.tree is None else at.tree.paths
    if job.options.get("spice"):
        job.notes.append(f"spiced with {job.options['spice']}")
    return Export(json.dumps({"method": job.method, "paths": paths}), ".json", launch=f"toy {job.target}")


class Toy:
    """Accepts 0, 1, 2, 0, ... drafted tokens."""

    tree_requests, longest, alive = 0, 0, 1

    def launch(self, draft):
        return draft

    def __init__(self, settings: DriverSettings) -> None:
        self.meta = {"name": settings.engine, "target": settings.target}

    def decode(self, requests: Any, *, draft: Any, concurrency: int) -> Iterator[EngineStep]:
        for number, request in enumerate(requests):
            steps = steps_of(list(request.tokens), request.new_tokens, drafted=draft)
            for place, tokens in enumerate(steps):
                last = place == len(steps) - 1
                yield EngineStep(number, len(tokens), 0.001 * (place + 1), tuple(tokens), draft, place == 0, last)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


TOY = Engine(
    name="toy",
    title="Toy 1.0",
    rules=(RULE,),
    methods={"copy": Method.of("medusa"), "read": Method.of("eagle", model="required")},
    write=write,
    checked="toy's own parser",
    takes=SHARED,
    options=(Option("spice", "What it is spiced with.", ("salt", "pepper")),),
    driver=f"{__name__}:Toy",
)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for command in ("export", "search"):
        import_module(f"treeopt.cli.commands.{command}")  # help texts are made once, without the toy
    with ENGINES.registered(TOY):
        yield


def test_search_chooses_trees_that_it_runs() -> None:
    plan = treeopt.search("data/traces/medusa-t0.npz", batch=(1, 4), max_nodes=8, solver_work=0, engine="toy")
    assert plan.meta["search"]["engine"] == "toy"
    trees = [entry.choice.tree for entry in plan.entries]
    assert trees
    assert all(broken(tree, engine_rules("toy", load_trace("data/traces/medusa-t0.npz"))) is None for tree in trees)
    assert json.loads(TOY.export(plan, batch=1).text)["paths"] == [list(path) for path in trees[0].paths]


def test_a_plan_is_written_with_the_notes_that_all_exports_have() -> None:
    plan = plan_of(entry(4, Tree.full(2, 2)), drafter={"kind": "medusa"})
    result = TOY.export(plan, spice="salt", target="t")
    assert json.loads(result.text)["method"] == "copy"
    assert (result.launch, result.notes[:3]) == (
        "toy t",
        ("spiced with salt", "format checked against toy's own parser", result.notes[2]),
    )
    assert "planned for batch 4 only" in result.notes[2]
    assert "does not hold" in TOY.export(plan, method="READ", model="m").notes[0]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"method": "write"}, EngineError, "Toy 1.0 cannot run method write: .*; nearest: copy, read$"),
        ({"method": "read"}, UsageError, "method read needs a model, the drafter's checkpoint: give --model$"),
        ({"heads": 3}, UsageError, "--heads does not apply to --format toy: omit it; it takes --method, .*--spice$"),
        ({"method": "copy", "nearest": "triple"}, UsageError, "has no dynamic tree: nearest must be chain$"),
        ({"method": "copy"}, EngineError, r"toy/limits.py\); nearest: no chain that the plan compared$"),
    ],
)
def test_what_it_cannot_run_is_refused(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        TOY.export(plan_of(entry(1, BUSHY)), **settings)


def test_its_driver_is_made_from_settings() -> None:
    with TOY.start(DriverSettings("toy", "model")) as driver:
        assert driver.meta == {"name": "toy", "target": "model"}
    with pytest.raises(UsageError, match="--url is for --engine openai: toy is started here"):
        TOY.start(DriverSettings("toy", "model", urls={1: "http://127.0.0.1"}))


def test_other_packages_add_engines_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name = "toast"

        def load(self) -> Engine:
            return Engine(name="toast", title="Toast 2", rules=())

    monkeypatch.setattr(registry, "entry_points", lambda group: [Point()] if group == "treeopt.engines" else [])
    with ENGINES.registered():
        assert ENGINES["toast"].title == "Toast 2"
    with pytest.raises(UsageError, match=r"engine must be one of .*toy"):
        ENGINES["tost"]


def test_the_command_line_knows_it(tmp_path: Path) -> None:
    plan, search = tmp_path / "plan.json", ("search", "--trace", "data/traces/medusa-t0.npz", "--max-nodes", "6")
    result = done(*search, "--batch", "1", "--for", "toy", "--output", plan)
    assert "treeopt export" in result.stdout
    assert "--format toy" in result.stdout
    text = done("export", plan, "--format", "toy").stdout
    assert all(len(path) <= 2 for path in read_json(text)["paths"])
    refused(run("export", plan, "--format", "toy", "--heads", "2"), "toy", "--heads", code=2)


def test_it_is_recorded_timed_and_validated(tmp_path: Path) -> None:
    trace, profile = tmp_path / "t.npz", tmp_path / "p.json"
    common = ("--engine", "toy", "--target", "data/models/stdlib-llama", "--prompts", "data/prompts/stdlib.jsonl")
    common += ("--requests", "8", "--new-tokens", "24")
    done("trace", "collect", *common, "--depth", "2", "--output", trace)
    assert load_trace(trace).meta["engine"]["name"] == "toy"
    done("profile", *common, "--batch", "1", "--max-depth", "2", "--output", profile)
    measured = treeopt.load_profile(profile).step_s([StepShape(1, 3, (1, 1), 30)])
    assert measured[0] == pytest.approx(0.001, rel=1e-6)
    words = ("--trace", trace, "--profile", profile, "--batch", "1", "--shapes", "chain:2")
    assert "chain of 2" in done("validate", *common, *words, "--output", tmp_path / "v.json").stdout
