"""`treeopt watch` against a server of counters: exit codes, gauges, JSON lines, the plan for now, and refusals."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import islice
from threading import Thread

import numpy as np
import pytest

import treeopt
from tests.helpers.command_line import done, error_of, one_line, run
from treeopt.plans import save_plan
from treeopt.traces.importers.chain_counts import Chain, chain_trace

RATES = (0.7, 0.42, 0.21)  # of all steps that accept at least 1, 2, 3 tokens


class Counters:
    """A server whose counters grow by a block of steps with each scrape: 4 requests, 10 ms a step."""

    def __init__(self) -> None:
        self.rng, self.factor, self.rows, self.model = np.random.default_rng(0), 1.0, np.zeros(8), ""
        self.positions = True  # else they are counted as SGLang does

    def text(self) -> str:
        steps, rng = 4000, self.rng
        first = rng.binomial(steps, RATES[0] * self.factor)
        second = rng.binomial(first, 0.6)
        third = rng.binomial(second, 0.5)
        self.rows += [steps, first, second, third, steps * 0.01, steps, steps // 4, 40]
        if not self.positions:
            calls, *accepted, _, _, _, ended = self.rows
            return (
                f"sglang:spec_verify_calls_total {calls}\nsglang:num_requests_total {ended}\n"
                f"sglang:generation_tokens_total {calls + sum(accepted) + ended}\n"
            )
        values = [f"{value:.12g}" for value in self.rows]
        names = ["vllm:spec_decode_num_drafts_total"]
        names += [f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}}' for place in range(3)]
        names += ["vllm:inter_token_latency_seconds_sum", "vllm:inter_token_latency_seconds_count"]
        names += ["vllm:iteration_tokens_total_count", "vllm:request_success_total"]
        names[0] += f'{{model_name="{self.model}"}}' if self.model else ""
        return "".join(f"{name} {value}\n" for name, value in zip(names, values, strict=True))


@contextmanager
def served() -> Iterator[tuple[Counters, str]]:
    counters = Counters()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(counters.text().encode() if self.path == "/metrics" else b"")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield counters, f"http://127.0.0.1:{server.server_port}/metrics"
        server.shutdown()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A plan from the server's counters and step times in which a chain of 3 takes 10 ms."""
    folder = tmp_path_factory.mktemp("watch")
    (folder / "steps.csv").write_text("batch,drafted,step_ms\n4,0,7\n4,1,9\n4,2,9.5\n4,3,10\n")
    done("times", folder / "steps.csv", "--device", "x", "--context", "64-64", "--output", folder / "steps.json")
    trace = chain_trace(Chain(RATES, 50_000), rng=np.random.default_rng(0), meta={})
    plan = treeopt.search(trace, folder / "steps.json", batch=4, engine="vllm", solver_work=0)
    save_plan(plan, folder / "plan.json")
    return folder


def watch(files, url, *more):
    words = ["watch", "--url", url, "--plan", files / "plan.json", "--once", *more]
    return run(*words)


def test_cron_learns_of_a_change_by_the_exit_code(files, tmp_path):
    state, gauges = tmp_path / "state.json", tmp_path / "watch.prom"
    with served() as (counters, url):
        words = ("--state", state, "--textfile", gauges, "--tolerance", "0.05")
        assert "Too few steps" in watch(files, url, *words).stdout
        assert watch(files, url, *words).exit_code == 0
        assert "treeopt_watch_changed 0.0" in gauges.read_text()
        counters.factor = 0.6
        seen = treeopt.watch(files / "plan.json", urls=(url,), every_s=1e-3, tolerance=0.05, state=state)
        assert list(islice(seen, 60))[-1]["changed"]
        seen.close()
        last = watch(files, url, *words)
        assert last.exit_code == 3
        assert "Changed: position 1 fell by" in last.stdout
        text = gauges.read_text()
        assert "treeopt_watch_changed 1.0" in text
        assert 'treeopt_watch_test_changed{test="position 1"} 1.0' in text
        assert f'treeopt_watch_server_up{{url="{url}"}} 1.0' in text
        other = watch(files, url, "--state", state, "--tolerance", "0.1")
        assert "was begun with tolerance 0.05, not 0.1" in one_line(other.stderr)


def test_a_server_of_another_model_is_said_once(tmp_path, caplog):
    plan = treeopt.search("data/traces/medusa-t0.npz", "data/profiles/medusa-cpu.json", batch=4)
    save_plan(plan, tmp_path / "plan.json")
    with served() as (counters, url):
        for name, said in (("org/stdlib-llama", 0), ("llama-8b", 1)):
            counters.model = name
            seen = treeopt.watch(tmp_path / "plan.json", urls=(url,), every_s=1e-3)
            list(islice(seen, 3))
            seen.close()
            assert caplog.text.count(f"{url} serves {name}: do they belong together") == said


@pytest.mark.parametrize("positions", [True, False])
def test_a_change_is_followed_by_the_plan_for_now(files, positions):
    with served() as (counters, url):
        counters.positions = positions
        seen = treeopt.watch(
            files / "plan.json", urls=(url,), every_s=1e-3, tolerance=0.05, profile=files / "steps.json"
        )
        calm = list(islice(seen, 4))[-1]
        assert not calm["changed"]
        assert "now" not in calm
        places = {f"position {place}" for place in (1, 2, 3)} | {"step time at batch 4"}
        assert {row["name"] for row in calm["tests"]} == {"tau"} | (places if positions else set())
        counters.factor = 0.2
        changed = next(record for record in islice(seen, 100) if record["changed"])
        assert json.loads(json.dumps(changed)) == changed
        settled = list(islice(seen, 60))[-1]
        seen.close()
    assert [row["nodes"] for row in settled["now"]] == [0]  # 1.3 tokens in 10 ms are slower than 1 in 7 ms
    found = {row["name"]: row["verdict"] for row in settled["tests"]}
    assert (found["tau"], found.get("position 2")) == ("fell", "as planned" if positions else None)


def test_a_server_that_is_away_is_reported_and_the_other_watched(files, tmp_path):
    with served() as (_, url):
        gone = url.replace("/metrics", "/gone")
        result = watch(files, url, "--url", gone, "--state", tmp_path / "state.json", "--json")
        assert result.exit_code == 0
        servers = json.loads(result.stdout)["servers"]
        assert [server["state"] for server in servers] == [
            "ok",
            f"{gone}: nothing is there, or an error: counters of vLLM are at /metrics",
        ]
        assert "nothing is there" in error_of(watch(files, gone, "--state", tmp_path / "other.json"))


def test_refusals(files, tmp_path):
    url, state = "http://127.0.0.1:9/metrics", ("--state", tmp_path / "state.json")
    assert "cannot be reached" in one_line(watch(files, url, *state).stderr)
    assert "--once needs --state" in one_line(watch(files, url).stderr)
    assert "not an http address" in one_line(watch(files, "localhost", *state).stderr)
    assert list(tmp_path.iterdir()) == []  # nothing that a corrected command would go on from
