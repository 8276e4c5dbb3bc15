"""`treeopt explore`: its numbers, tables and files are the library's, over random settings; its server's life."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_equal

import treeopt
from simulate.profiles.profile import save_profile
from simulate.whatif.token_prices import HOUR_S, MILLION
from tests.helpers.command_line import done, refused, run, small_profile, small_trace
from treeopt.defaults import NODES
from treeopt.engines import ENGINES
from treeopt.errors import TreeoptError, UsageError
from treeopt.explore import answer_parts, answers, controls
from treeopt.explore.answers import ANY_TREE, MEASURED, Device, Offer, Question, question_of
from treeopt.explore.local_server import address, open_browser, open_port
from treeopt.planning.search_settings import SearchSettings
from treeopt.plans import Plan
from treeopt.storage.user_files import shipped
from treeopt.traces.trace_files import load_trace, save_trace

CONTROLS = {
    "trace": "trace.npz", "source": MEASURED, "profile": "profile.json", "batches": "1, 4", "engine": ANY_TREE,
    "objective": "throughput", "nodes": NODES, "depth": 3, "tpot": 0, "dynamic": "none",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a trace, another one, and a profile."""
    folder = tmp_path_factory.mktemp("explore")
    save_trace(small_trace(), folder / "trace.npz")
    save_trace(small_trace(requests=12, lengths=16), folder / "other.npz")
    save_profile(small_profile(), folder / "profile.json")
    return folder


@pytest.fixture(scope="module")
def offer(folder):
    return Offer.of_files([folder / "trace.npz", folder / "other.npz"], [folder / "profile.json"])


@pytest.fixture(scope="module")
def answered(offer):
    return answers.answer(question_of(CONTROLS, offer), offer)


def random_controls(rng: np.random.Generator) -> dict:
    """A state of the controls that the small files can answer."""
    nodes, depth = int(rng.integers(1, NODES + 1)), int(rng.integers(1, 4))
    return CONTROLS | {
        "trace": str(rng.choice(["trace.npz", "other.npz"])),
        "batches": str(rng.choice(["1", "4", "1 4"])),
        "engine": str(rng.choice([ANY_TREE, "vllm", "medusa", "sglang"])),
        "objective": str(rng.choice(["throughput", "latency"])),
        "nodes": nodes,
        "depth": depth,
        "tpot": int(rng.choice([0, 50])),
    }


def figures(plan: Plan) -> dict[tuple[int, str, str], float]:
    """Every number of a plan's table, by batch size, configuration and column."""
    rows = plan.frame().to_dict("records")
    return {
        (row["batch"], f"{row['name']} {number}", column): value
        for number, row in enumerate(rows)
        for column, value in row.items()
        if isinstance(value, float)
    }


def test_two_hundred_random_numbers_equal_the_library_s(offer, folder):
    rng, compared = np.random.default_rng(33), 0
    while compared < 200:
        controls = random_controls(rng)
        found = answers.attempt(controls, offer)
        engine, tpot = controls["engine"], controls["tpot"]
        plan = treeopt.search(
            folder / controls["trace"],
            folder / "profile.json",
            batch=tuple(int(word) for word in controls["batches"].split()),
            engine=None if engine == ANY_TREE else engine,
            objective=controls["objective"],
            max_nodes=None if controls["nodes"] == NODES else controls["nodes"],
            max_depth=None if controls["depth"] == 3 else controls["depth"],
            max_tpot_s=tpot / 1e3 if tpot else None,
        )
        assert isinstance(found, answers.Answer), found
        own, expected = figures(found.plan), figures(plan)
        assert own.keys() == expected.keys()
        keys = sorted(own)
        for place in rng.choice(len(keys), size=min(25, len(keys)), replace=False):
            assert_equal(own[keys[place]], expected[keys[place]])  # also where neither has a number
            compared += 1


def test_a_device_s_numbers_and_prices_equal_those_of_whatif(offer, folder):
    steps = Device("H200", count=2, target="8b", context=2048)
    found = answers.answer(Question("trace.npz", steps, SearchSettings(batch=(1, 32), max_nodes=8)), offer)
    words = {"hardware": "2xh200", "target": "8b", "batch": (1, 32), "context": 2048, "max_nodes": 8}
    record = treeopt.whatif(folder / "trace.npz", **words, prices={"h200": 3.5})
    for entry, cell in zip(found.plan.entries, record["cells"], strict=True):
        assert (entry.batch, entry.choice.name) == (cell["batch"], cell["name"])
        assert entry.choice.tau.value == cell["tau"]["value"]
        assert entry.choice.step_s == cell["step_s"]
        assert {"value": entry.choice.speedup.value, "low": entry.choice.speedup.low}.items() <= cell["speedup"].items()
    assert found.too_large == ()
    blocks = answer_parts.priced(found, 3.5)
    assert [row[2] for row in cells(blocks)] == [cell["million"]["value"] for cell in record["cells"]]
    (best,) = record["cheapest"]
    assert f"at batch {best['planned']['batch']} with the chosen tree: " in blocks[0].text


def test_a_device_that_is_too_small_is_named(offer):
    search = SearchSettings(batch=(1, 4), max_nodes=2)
    found = answers.answer(Question("trace.npz", Device("L40S", target="70b"), search), offer)
    assert found.too_large == (1, 4)
    assert "Batch 4 does not fit the memory of the device." in text_of(answer_parts.footnotes(found))
    blocks = answer_parts.priced(found, 1)
    assert blocks[0].text.startswith("A million tokens cost least at no batch size within the limits;")
    assert cells(blocks)[0][1] == "does not fit"


def test_the_page_offers_no_other_file(offer):
    with pytest.raises(UsageError, match=r"the page offers no trace '/etc/passwd'; it offers trace.npz, other.npz"):
        offer.trace("/etc/passwd")
    failed = answers.attempt(CONTROLS | {"profile": "../p.json"}, offer)
    assert str(failed) == "the page offers no profile '../p.json'; it offers profile.json"


def test_shipped_files_are_offered_by_default():
    shipped = Offer.of_files()
    assert next(iter(shipped.traces)) == "medusa-t0.npz"
    assert shipped.profiles_for("medusa-t0.npz")[0] == "medusa-cpu.json"
    assert shipped.profiles_for("eagle-t0.npz")[0] == "eagle-cpu.json"
    assert shipped.profiles.keys() == set(shipped.profiles_for("eagle-t0.npz"))


@pytest.mark.parametrize(
    ("control", "value", "words"),
    [
        ("batches", "1, x", "batch sizes must be whole numbers such as 1, 4, 16, got '1, x'"),
        ("batches", " ".join(map(str, range(1, 14))), "at most 12 batch sizes"),
        ("objective", "worst-domain", "domain"),
    ],
)
def test_what_has_no_answer_is_one_line(offer, control, value, words):
    failed = answers.attempt(CONTROLS | {control: value}, offer)
    assert isinstance(failed, TreeoptError)
    assert words in str(failed)
    assert text_of(answer_parts.failure(failed)).count("<p>") == 1


def test_what_the_library_reports_stands_on_the_page_and_nowhere_else(folder, capfd):
    offer = Offer.of_files([folder / "trace.npz"], [folder / "profile.json"])
    found = answers.answer(question_of(CONTROLS | {"batches": "1"}, offer), offer)
    assert any("interval" in line or "request" in line for line in found.warnings), found.warnings
    assert capfd.readouterr() == ("", "")


def test_the_page_s_table_and_plan_are_those_of_the_command(answered, folder, tmp_path):
    """But for the provenance of the plan's file."""
    words = ("--trace", folder / "trace.npz", "--profile", folder / "profile.json", "--batch", "1,4")
    printed = done("search", *words, "--output", tmp_path / "plan.json").stdout
    for batch in (1, 4):
        html = answer_parts.configurations(answered, batch).text
        for choice in (answered.plan.entry(batch).choice, *answered.plan.entry(batch).compared):
            assert choice.name.replace("'", "&#x27;") in html
        for part in html.split("<td")[1:]:
            text = part.split(">")[1].split("<")[0]
            assert text in printed, text
    assert text_of(answer_parts.headline(answered, 4)).split('class="headline">')[1].startswith("Batch 4: ")
    own, written = json.loads(answers.plan_text(answered)), json.loads((tmp_path / "plan.json").read_text())
    for record in (own, written):
        record["meta"].pop("provenance")
    assert own == written


def test_the_configuration_is_what_export_writes(offer, folder, tmp_path):
    found = answers.answer(question_of(CONTROLS | {"engine": "vllm"}, offer), offer)
    (tmp_path / "plan.json").write_text(answers.plan_text(found))
    words = ("--format", "vllm", "--method", "eagle", "--model", "heads", "--output", tmp_path / "vllm.json")
    done("export", tmp_path / "plan.json", *words)
    export = answers.attempt_export(found, method="eagle", model="heads")
    assert f"{export.text}\n" == (tmp_path / "vllm.json").read_text()
    assert answers.export_file(export, "vllm") == "treeopt_vllm.json"
    assert answer_parts.export_parts(export, "vllm").text.count("<pre") == 2


@pytest.mark.slow
def test_the_report_is_what_report_writes(answered, folder, tmp_path):
    (tmp_path / "plan.json").write_text(answers.plan_text(answered))
    words = (tmp_path / "plan.json", folder / "trace.npz", folder / "profile.json", "--title", "treeopt explore")
    done("report", *words, "--output", tmp_path / "report.html")
    own, written = answers.report_text(answered), (tmp_path / "report.html").read_text("utf-8")
    assert own.split("<footer")[0] == written.split("<footer")[0]
    assert "1.00" in own


def test_an_export_that_lacks_a_setting_is_one_line(offer):
    found = answers.answer(question_of(CONTROLS | {"engine": "vllm"}, offer), offer)
    for choices, option in (({}, "--method"), ({"method": "eagle"}, "--model")):
        failed = answers.attempt_export(found, **choices)
        assert isinstance(failed, TreeoptError)
        assert option in text_of(answer_parts.export_parts(failed, "vllm"))
    assert "There is no exporter for sequoia: download the plan." in text_of(answer_parts.export_parts(None, "sequoia"))


def test_charts_are_of_the_plan_and_follow_the_theme(answered):
    charts = list(answer_parts.charts_of(answered, 1))
    assert len(charts) == 4
    rows = next(iter(charts[0].to_dict()["datasets"].values()))
    shown = {value for data in charts[0].to_dict()["datasets"].values() for row in data for value in row.values()}
    assert rows
    assert {entry.choice.speedup.value for entry in answered.plan.entries} <= shown
    html = answer_parts.figures(charts).text
    assert html.count("<figure>") == 4
    assert "var(--series-0)" in html
    assert "#0b62b5" not in html
    assert answer_parts.words(["`<b>.json`"]).text.count("&lt;b&gt;") == 1


def text_of(html) -> str:
    """HTML with that which marimo hands to its elements in attributes."""
    return unescape(html.text).replace("\\u003c", "<").replace("\\u003e", ">").replace('\\"', '"')


def test_a_plan_without_speculation_has_a_page_too(offer, folder, tmp_path):
    slow = small_profile()
    slow = replace(slow, batches=tuple(replace(times, rest=((2, 1.0), (64, 2.0))) for times in slow.batches))
    save_profile(slow, tmp_path / "slow.json")
    offer = Offer.of_files([folder / "trace.npz"], [tmp_path / "slow.json"])
    found = answers.answer(question_of(CONTROLS | {"profile": "slow.json"}, offer), offer)
    assert "do not speculate" in answer_parts.headline(found, 1).text
    assert len(list(answer_parts.charts_of(found, 1))) == 3


def test_without_profiles_step_times_come_from_data_sheets(offer, answered):
    assert list(controls.source(offer).options) == ["measured", "from a data sheet"]
    alone = replace(offer, profiles={})
    assert list(controls.source(alone).options) == ["from a data sheet"]
    values = {"trace": controls.trace(alone).value, "source": controls.source(alone).value, "depth": 3}
    values |= {**controls.predicted(alone).value, **controls.limits().value}
    assert question_of(values, alone) == Question("trace.npz", Device("H100 SXM"), SearchSettings(batch=(1, 4)))
    assert isinstance(answers.attempt(values, alone), answers.Answer)
    assert controls.handover("vllm", answered.plan).value == {"method": None, "model": "", "batch": None}


@pytest.mark.parametrize("engine", [name for name in ENGINES.exporting() if ENGINES[name].choices])
def test_the_method_is_the_engine_s_own_for_the_drafter(answered, engine):
    for kind in ("eagle", "eagle3", "language-model", "prompt-lookup", "medusa", ["x"], None):
        trace = {"drafter": {"kind": kind}}
        chosen = controls.handover(engine, replace(answered.plan, meta={"trace": trace})).value["method"]
        runs = [
            name for name, method in ENGINES[engine].methods.items() if isinstance(kind, str) and kind in method.kinds
        ]
        assert chosen == (runs[0] if runs else None)


POLICIES = {"trace": "candidates.npz", "profile": "eagle-policies-cpu.json"}
POLICY_PROFILE = shipped(f"profiles/{POLICIES['profile']}")


@pytest.fixture(scope="module")
def candidates(tmp_path_factory):
    """The first requests of a shipped trace with candidates."""
    path = tmp_path_factory.mktemp("candidates") / POLICIES["trace"]
    save_trace(load_trace(shipped("traces/eagle-candidates-t0.npz")).select(np.arange(40)), path)
    return path


def test_dynamic_trees_are_offered_where_they_were_recorded_and_priced(candidates):
    plain = shipped("profiles/eagle-cpu.json")
    offer = Offer.of_files([candidates, shipped("traces/eagle-t0.npz")], [POLICY_PROFILE, plain])
    assert offer.takes_policies(POLICIES["trace"], POLICIES["profile"])
    assert not offer.takes_policies("eagle-t0.npz", POLICIES["profile"])
    assert not offer.takes_policies(POLICIES["trace"], "eagle-cpu.json")


def test_dynamic_trees_are_those_of_the_library(candidates):
    asked = CONTROLS | POLICIES | {"dynamic": "best-first", "batches": "1", "nodes": 3, "depth": 2}
    found = answers.attempt(asked, Offer.of_files([candidates], [POLICY_PROFILE]))
    limits = {"max_nodes": 3, "max_depth": 2}
    plan = treeopt.search(candidates, POLICY_PROFILE, batch=1, policies=("best-first",), **limits)
    own, expected = figures(found.plan), figures(plan)
    assert any("best-first" in name for _, name, _ in own)
    assert own.keys() == expected.keys()
    assert_equal([own[key] for key in own], [expected[key] for key in own])


def cells(blocks) -> list[tuple[float, ...]]:
    (table,) = (block for block in blocks if hasattr(block, "rows"))
    return [tuple(cell.value for cell in row.cells) for row in table.rows]


def test_prices_of_measured_step_times_are_the_price_per_hour_over_the_tokens_per_hour(answered):
    blocks = answer_parts.priced(answered, 2)
    for entry, row in zip(answered.plan.entries, cells(blocks), strict=True):
        plain = next(choice for choice in (entry.choice, *entry.compared) if choice.plain)
        for choice, price in ((entry.choice, row[2]), (plain, row[3])):
            assert price == pytest.approx(2 * MILLION / (choice.tokens_s(entry.batch) * HOUR_S), rel=1e-9)
    assert "<table" in answer_parts.shown(blocks).text
    assert answer_parts.priced(answered, 0) == ()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    save_trace(small_trace(), folder / "trace.npz")
    save_profile(small_profile(), folder / "profile.json")
    return ("--trace", folder / "trace.npz", "--profile", folder / "profile.json")


def test_a_port_in_use_is_refused(files):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused(run("explore", *files, "--no-browser", "--port", port), f"--port {port}: ", "in use", code=2)


def test_files_are_read_before_the_page_is_shown(files, tmp_path):
    (tmp_path / "bad.npz").write_text("no trace")
    refused(run("explore", "--trace", tmp_path / "bad.npz", "--no-browser"), "bad.npz", code=None)
    refused(run("explore", *files, "--profile", tmp_path / "missing.json", "--no-browser"), "missing.json", code=None)
    refused(run("explore", *files, "--target", tmp_path, "--no-browser"), str(tmp_path), code=None)


def test_the_page_is_on_this_computer_alone():
    listener = open_port(0)
    try:
        assert listener.getsockname()[0] == "127.0.0.1"
        assert address(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        listener.close()


def status_of(port: int, path: str, method: str = "GET", **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers={"Host": f"127.0.0.1:{port}", **headers})
    try:
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_server_answers_its_own_page_and_ends_when_it_is_terminated(files):
    words = [sys.executable, "-m", "treeopt", "explore", *map(str, files), "--no-browser"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as server:
        try:
            line = server.stdout.readline()
            assert line.startswith("treeopt explore: http://127.0.0.1:"), server.stderr.read()
            port = int(line.split(":")[3].split("/")[0])
            assert status_of(port, "/") == 200
            foreign = {"Origin": "http://example.org"}
            assert status_of(port, "/", **foreign) == 403
            assert status_of(port, "/", Host="example.org") == 403
            assert status_of(port, "/api/files/list_files", "POST") in (401, 403)
        finally:
            server.send_signal(signal.SIGTERM)
            _, errors = server.communicate(timeout=60)
    assert (errors, server.returncode) == ("", -signal.SIGTERM)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_the_browser_is_opened_without_a_word(tmp_path, monkeypatch, capfd):
    program = tmp_path / "xdg-open"
    program.write_text(f'#!/bin/sh\necho opened; echo no display >&2; echo "$1" > {tmp_path}/opened\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert open_browser("http://127.0.0.1:5/")
    deadline = time.monotonic() + 60
    while not (tmp_path / "opened").exists() or not (tmp_path / "opened").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert (tmp_path / "opened").read_text() == "http://127.0.0.1:5/\n"
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert not open_browser("http://127.0.0.1:5/")
