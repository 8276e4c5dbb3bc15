"""A live vLLM whose prompts change in the middle: `watch` notices, and not before."""

from types import SimpleNamespace

import numpy as np
import pytest

import treeopt
from executor.checkpoints.convert import rewrite
from simulate.profiles.engine_times_csv import read_times
from tests.benchmarks.openvino_runs import prompts
from tests.helpers.engine_setups import ENGINES, ENVIRONMENT, ROOT, SETUPS
from treeopt.engines.driver import DriverSettings, EngineRequest
from treeopt.engines.vllm.driver import VLLM
from treeopt.monitoring.prometheus_watch import totals_of
from treeopt.traces.importers.chain_counts import Chain, chain_trace

LENGTH, TOKENS, TOGETHER, AT_ONCE = 3, 24, 16, 4
ROUNDS = 12  # with the prompts that the plan was made from


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A vLLM with EAGLE-3: decodes rounds of requests, and has an address."""
    python = ENGINES / SETUPS["vllm"].python
    if not python.exists():
        pytest.skip("needs vllm below .engines")
    for variable, value in ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    models = ROOT / "data" / "models"
    drafter = tmp_path / "eagle3"
    rewrite(models / "stdlib-eagle3", models / "stdlib-llama", drafter, layout="eagle3-vllm", dtype="float32")
    settings = DriverSettings(
        "vllm",
        str(models / "stdlib-llama"),
        python=python,
        method="eagle3",
        drafter=str(drafter),
        arguments=SETUPS["vllm"].arguments,
        timeout_s=600,
    )
    with VLLM(settings) as engine:
        client = engine._servers.server(LENGTH).client

        def decode(texts):
            requests = [EngineRequest(tokens, TOKENS, ignore_stop=True) for tokens in texts]
            list(engine.decode(requests, draft=LENGTH, concurrency=AT_ONCE))

        yield SimpleNamespace(decode=decode, client=client, url=f"{client.url}/metrics")


@pytest.mark.engines
def test_a_change_of_prompts_is_noticed(served, tmp_path):
    code = prompts(TOGETHER * 4, 24)
    rng = np.random.default_rng(0)
    other = [tokens[:3] * 8 for tokens in code]
    served.decode(code)
    totals = totals_of(served.client.text("/metrics"), None)
    (tmp_path / "steps.csv").write_text("batch,drafted,step_ms\n4,0,14\n4,1,16\n4,2,18\n4,3,20\n")
    chain = Chain(tuple(count / totals.steps for count in totals.accepted), int(totals.steps))
    trace = chain_trace(chain, rng=rng, meta={})
    profile = read_times(tmp_path / "steps.csv", device="this machine", context=(64, 64))
    plan = treeopt.search(trace, profile, batch=4, engine="vllm", solver_work=0)
    seen = treeopt.watch(plan, urls=(served.url,), every_s=1e-3, tolerance=0.05, hours=1)

    def acceptance(record):
        return {row["name"]: row for row in record["tests"] if not row["name"].startswith("step time")}

    next(seen)
    for number in range(ROUNDS):
        part = number * TOGETHER % len(code)
        served.decode(code[part : part + TOGETHER])
        record = next(seen)
        assert not {row["verdict"] for row in acceptance(record).values()} & {"fell", "rose"}, (number, record)
    for number in range(80):
        part = number * TOGETHER % len(code)
        served.decode(other[part : part + TOGETHER])
        record = next(seen)
        if changes := {name for name, row in acceptance(record).items() if row["verdict"] in ("fell", "rose")}:
            break
    print(f"noticed after {number + 1} rounds of {TOGETHER} requests: {acceptance(record)}")
    assert changes
    assert record["servers"][0]["running"] == pytest.approx(AT_ONCE, rel=0.5)
    seen.close()
