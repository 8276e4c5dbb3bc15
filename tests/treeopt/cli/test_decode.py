"""`treeopt decode` as people meet it: texts, records, interruptions, refusals; every lossless way writes one text."""

import errno
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from executor.target.load_hf_model import load_target
from executor.target.target_model import Target
from executor.target.tokenizer import TextStream, load_tokenizer
from simulate.profiles.profile import save_profile
from tests.helpers.command_line import (
    MODELS,
    error_of,
    files,
    inputs,
    one_line,
    read_json,
    refused,
    run,
    small_profile,
    small_trace,
    write_drafter,
    write_prompts,
    write_target,
)
from tests.helpers.fuzzing import disk_of
from tests.helpers.models import generated
from tests.helpers.slow_growth import POLICIES
from treeopt.api import decode_prompts
from treeopt.api.decode_prompts import SCHEMA
from treeopt.cli import main
from treeopt.errors import visible
from treeopt.plans import Choice, Grown, Plan, PlanEntry, Proof, save_plan
from treeopt.policies.policy_kinds import identity
from treeopt.statistics import Estimate
from treeopt.storage.work_file import appended, read_lines
from treeopt.traces.trace_files import save_trace

ROOT = Path(__file__).parent.parent.parent.parent
TEXTS = [f"{'ab cd ef gh ij '[: 5 + 2 * n]}{n}" for n in range(5)] + ["a"]
NEW = 8
TREE = "[[0,0,0],[0,1],[1,0],[2]]"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder with `target`, `drafter` (heads), `other` (another model) and `prompts.jsonl`; not to be written to."""
    folder = tmp_path_factory.mktemp("tiny")
    write_target(folder / "target")
    write_drafter(folder / "drafter")
    shutil.copytree(folder / "target", folder / "other")
    tensors = load_file(folder / "other" / "model.safetensors")
    noise = torch.Generator().manual_seed(5)
    tensors = {name: t + 0.03 * torch.randn(t.shape, generator=noise) for name, t in tensors.items()}
    save_file(tensors, folder / "other" / "model.safetensors", metadata={"format": "pt"})
    write_prompts(folder / "prompts.jsonl", TEXTS)
    return folder


def decode(tiny, *more, **other):
    """The command with the tiny models; `drafter=None` leaves the drafter out."""
    words = inputs(tiny, **other)
    if other.get("drafter", "") is None:
        place = words.index("--drafter")
        del words[place : place + 2]
    return run("decode", *words, "--new-tokens", NEW, *more)


def decoded(tiny, *more, **other):
    """Its JSON."""
    result = decode(tiny, *more, "--json", **other)
    assert result.exit_code == 0, result.stderr
    return read_json(result.stdout)


def texts(record):
    """Tokens by request."""
    return {each["request"]: each["tokens"] for each in record["requests"]}


@pytest.fixture(scope="module")
def plain(tiny):
    """What the target writes by itself."""
    return decoded(tiny, drafter=None)


def output_of(path):
    """The head and the records of an output, none of them torn."""
    assert path.read_bytes().endswith(b"\n")
    head, *records = map(read_json, path.read_text("utf-8").splitlines())
    return head, records


# --- one text, whatever the way


def test_plain_decoding_is_hugging_faces(tiny, plain):
    target = load_target(tiny / "target")
    tokenizer = load_tokenizer(tiny / "target", vocabulary=target.vocabulary)
    for number, text in enumerate(TEXTS):
        assert texts(plain)[number] == generated(target.model, tokenizer(text)["input_ids"], NEW)
    assert plain["meta"]["tree"] == []
    assert "drafter" not in plain["meta"]


WAYS = {
    "chain": ("--tree", "3"),
    "tree": ("--tree", TREE),
    "batch": ("--tree", TREE, "--batch", "4"),
    "more rows than requests": ("--tree", TREE, "--batch", "9"),
    "dynamic": ("--dynamic", "nodes=7,depth=3,beam=3"),
    "sure": ("--dynamic", "nodes=7,depth=3,beam=3,min_probability=0.05", "--batch", "3"),
    "narrow": ("--dynamic", "nodes=7,depth=3,beam=3,width=2", "--batch", "3"),
    "threshold": ("--dynamic", "nodes=7,depth=3,beam=3,width=4,threshold=0.2", "--batch", "3"),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_way_writes_what_the_target_writes(tiny, plain, way):
    found = decoded(tiny, *way, drafter=tiny / "other")
    assert texts(found) == texts(plain)
    assert [each["end"] for each in found["requests"]].count("length") == sum(
        len(tokens) == NEW for tokens in texts(plain).values()
    )
    _consistent(found)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_plan_s_policy_is_run_with_what_was_fitted(tiny, plain, tmp_path, policy):
    figures = {"tau": Estimate(1.5, 1.4, 1.6), "step_s": 0.01, "speedup": Estimate(1.2, 1.1, 1.3)}
    choice = Choice("policy", None, grown=Grown("policy", {}, nodes=3.5, depth=1.5, policy=policy), **figures)
    entry = PlanEntry(3, choice, None, (), {}, Proof("tokens a second", optimal=False, statement="best found"))
    save_plan(Plan((entry,), {}), tmp_path / "plan.json")
    found = decoded(tiny, "--plan", tmp_path / "plan.json")
    assert texts(found) == texts(plain)
    assert found["meta"]["tree"] == json.loads(json.dumps(identity(policy)))
    assert found["counts"]["accepted"].keys() > {"0"}
    _consistent(found)


def _consistent(found):
    """Counts are those of the records: one step more than drafted tokens kept, but where the end cut a step short."""
    counts, requests = found["counts"], found["requests"]
    assert counts["requests"] == len(requests)
    assert counts["committed"] == sum(len(each["tokens"]) for each in requests)
    kept = Counter(str(count) for each in requests for count in each["accepted"])
    assert counts["accepted"] == dict(kept)
    for each in requests:
        committed = sum(each["accepted"]) + len(each["accepted"])
        assert committed - 1 <= len(each["tokens"]) <= committed
    assert max(len(each["accepted"]) for each in requests) <= counts["steps"] <= sum(kept.values())


def test_a_copy_of_the_target_drafts_what_it_takes(tiny, plain):
    found = decoded(tiny, "--tree", "3", drafter=tiny / "target")
    assert texts(found) == texts(plain)
    for each in found["requests"]:
        assert set(each["accepted"][:-1]) <= {3}
    assert found["meta"]["drafter"]["kind"] == "language-model"


def test_the_shipped_models_decode_as_planned(tmp_path):
    """Through files as people do: search, decode as the plan says, audited."""
    data = ROOT / "data"
    plan = tmp_path / "plan.json"
    words = ("--trace", data / "traces" / "medusa-t0.npz", "--batch", "1,4", "--output", plan)
    assert run("search", *words).exit_code == 0
    models, prompts = data / "models", data / "prompts" / "stdlib.jsonl"
    words = inputs(tmp_path, target=models / "stdlib-llama", drafter=models / "stdlib-medusa", prompts=prompts)
    words += ["--skip", "1000", "--requests", "4", "--new-tokens", "10", "--json"]
    ways = ((), ("--plan", plan, "--batch", "4"), ("--dynamic", "nodes=8,depth=3,beam=4"))
    first, *others = (run("decode", *words, "--audit", *way) for way in ways)
    assert first.exit_code == 0, first.stderr
    for other in others:
        assert "Warning" not in other.stderr
        assert texts(read_json(other.stdout)) == texts(read_json(first.stdout))
        assert "; 0 are beyond the margin" in other.stderr
    planned = read_json(others[0].stdout)
    assert planned["meta"]["batch"] == 4
    assert planned["meta"]["tree"] == read_json(plan.read_text())["entries"][1]["choice"]["tree"]["paths"]
    assert planned["counts"]["committed"] > 1.2 * sum(planned["counts"]["accepted"].values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # inductor's own
def test_a_compiled_target_writes_the_same(tiny, plain):
    assert texts(decoded(tiny, "--tree", "2", "--compiled")) == texts(plain)


# --- rules


@pytest.mark.parametrize("rule", [pytest.param("block", marks=pytest.mark.slow), "sequoia", "typical"])
def test_sampling_repeats_itself(tiny, rule):
    """That the law is right is test_lossless's matter."""
    tree = "2" if rule == "block" else TREE
    words = ("--tree", tree, "--rule", rule, "--temperature", "0.9", "--top-k", "50", "--top-p", "0.95", "--batch", "2")
    first, again, other = (decoded(tiny, *words, "--seed", seed) for seed in (1, 1, 2))
    assert texts(first) == texts(again)
    assert (texts(first) == texts(other)) == (rule == "typical")  # which draws nothing
    assert first["meta"]["rule"] == rule
    assert [first["meta"][key] for key in ("temperature", "top_k", "top_p", "seed")] == [0.9, 50, 0.95, 1]
    _consistent(first)


# --- where texts go


def test_texts_are_printed_as_requests_end(tiny, plain):
    result = decode(tiny, "--tree", "2")
    assert result.exit_code == 0
    shown = (
        f"{visible(each['text'], lines=True)}\n--- end of request {each['request']} ---\n" for each in plain["requests"]
    )
    assert result.stdout == "".join(shown)
    assert decode(tiny, "--requests", "1").stdout == visible(plain["requests"][0]["text"], lines=True) + "\n"
    memory, figures = result.stderr.splitlines()
    assert memory.startswith("caches for 1 x 32 tokens: ")
    assert memory.endswith("MiB target, 0.0 MiB drafter")
    assert figures.startswith(f"6 requests, {plain['counts']['committed']} tokens in ")
    assert "tau 1." in figures


def test_streamed_text_is_the_text(tiny, plain):
    assert decode(tiny, "--tree", "2", "--stream").stdout == decode(tiny).stdout
    one = decode(tiny, "--tree", "2", "--stream", "--dynamic", "nodes=1,depth=1")
    refused(one, "--tree and --dynamic", code=2)


def test_json_lines_hold_a_request_each(tiny, plain, tmp_path):
    result = decode(tiny, "--json-lines", "--output", tmp_path / "out.jsonl")
    records = [read_json(line) for line in result.stdout.splitlines()]
    assert records == plain["requests"]
    head, written = output_of(tmp_path / "out.jsonl")
    assert written == records
    assert head["schema"] == SCHEMA
    assert {"target", "batch", "rule", "prompts_sha256", "provenance"} <= set(head["meta"])


def test_prompts_may_stand_on_the_command_line(tiny, plain):
    words = ("--target", tiny / "target", "--new-tokens", NEW, "--json")
    result = run("decode", *words, "--prompt", TEXTS[3], "--prompt", TEXTS[1])
    assert list(texts(read_json(result.stdout)).values()) == [texts(plain)[3], texts(plain)[1]]


def test_texts_end_where_the_model_ends_them(tiny, plain, tmp_path):
    """The model's own token of the end is any that it writes; it is the last of the text, unless ends are ignored."""
    shutil.copytree(tiny / "target", tmp_path / "target")
    end = texts(plain)[0][4]
    for name in ("config.json", "generation_config.json"):
        path = tmp_path / "target" / name
        path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [256, end]}))
    for way in ((), ("--tree", TREE, "--batch", "2"), ("--dynamic", "nodes=5,depth=3,beam=3")):
        found = decoded(tiny, *way, target=tmp_path / "target")
        for number, tokens in texts(plain).items():
            assert texts(found)[number] == (tokens[: tokens.index(end) + 1] if end in tokens else tokens)
        assert next(each for each in found["requests"] if each["request"] == 0)["end"] == "stop"
        assert texts(decoded(tiny, *way, "--ignore-end", target=tmp_path / "target")) == texts(plain)
        _consistent(found)


@pytest.mark.parametrize(
    "text",
    [
        "naïve\n  élan \U0001f333\U0001f468‍\U0001f469‍\U0001f467 ok",
        "日本語のテキスト",
        "a\u0301\u0327 \x00\x07\u2028",
        "",
    ],
)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_stream_holds_back_half_characters(tiny, text, size):
    """The tokenizer's tokens are bytes."""
    tokenizer = load_tokenizer(tiny / "target", vocabulary=320)
    tokens = tokenizer(text)["input_ids"]
    stream, pieces = TextStream(tokenizer), []
    for start in range(0, len(tokens), size):
        pieces.append(stream.put(tokens[start : start + size], last=start + size >= len(tokens)))
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces)


# --- plans


@pytest.fixture
def plan(tmp_path, tiny):
    """A plan for batch 1 and 4, of the tiny models' names but made-up hashes."""
    save_trace(small_trace(), tmp_path / "trace.npz")
    save_profile(small_profile(), tmp_path / "profile.json")
    path = tmp_path / "plan.json"
    words = ("--trace", tmp_path / "trace.npz", "--batch", "1,4", "--max-nodes", "5", "--output", path)
    assert run("search", *words).exit_code == 0
    return path


def test_a_plan_says_tree_and_batch(tiny, plain, plan):
    result = decode(tiny, "--plan", plan, "--batch", "4", "--json")
    assert result.exit_code == 0
    found = read_json(result.stdout)
    entry = read_json(plan.read_text())["entries"][1]
    assert (found["meta"]["batch"], found["meta"]["tree"]) == (4, entry["choice"]["tree"]["paths"])
    assert texts(found) == texts(plain)
    warnings = [line for line in result.stderr.splitlines() if line.startswith("Warning: ")]
    assert len(warnings) == 2
    assert MODELS["target"]["weights"] != found["meta"]["target"]["weights"]
    refused(decode(tiny, "--plan", plan), "1, 4", "--batch", code=2)
    refused(decode(tiny, "--plan", plan, "--batch", "3"), "1, 4", "not 3")


def test_a_plan_not_to_speculate_needs_no_drafter(tiny, plain, plan):
    record = json.loads(plan.read_text())
    for entry in record["entries"]:
        choice = next(each for each in entry["compared"] if each["tree"] is None)
        entry |= {"choice": choice, "compared": [], "gain_over_chain": None}
    plan.write_text(json.dumps({**record, "entries": record["entries"][:1], "switches": [], "best": None}))
    assert texts(decoded(tiny, "--plan", plan, drafter=None)) == texts(plain)


# --- what is refused


REFUSED = {
    "no settings": (["--dynamic", "60"], 2, ["--dynamic", "nodes=N,depth=N"]),
    "an unknown setting": (["--dynamic", "nodes=2,depth=2,beem=3"], 2, ["beem=3", "beam"]),
    "a tree deeper than the heads": (["--tree", "4"], 1, ["depth 4", "drafts 3"]),
    "a chain rule with a tree": (["--tree", TREE, "--rule", "block", "--temperature", "1"], 1, ["chains"]),
    "an audit of samples": (["--audit", "--temperature", "1"], 2, ["--audit", "temperature"]),
    "stream and JSON": (["--stream", "--json"], 2, ["--stream", "--json"]),
    "resume of nothing": (["--resume"], 2, ["--resume", "--output"]),
    "a device that is full": (["--output", "/dev/full"], 2, ["/dev/full", "exists"]),
    "beyond the context": (["--new-tokens", "500"], 1, ["context", "128"]),
    "a batch beyond the memory": (["--batch", "1000000000"], 1, ["GiB", "free"]),
}


@pytest.mark.parametrize(("more", "code", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused(tiny, tmp_path, monkeypatch, more, code, words):
    """In one line, and with no file begun."""
    monkeypatch.chdir(tmp_path)
    where = [] if "--output" in more or "--resume" in more else ["--output", "out.jsonl"]
    result = decode(tiny, *more, *where)
    assert (result.stdout, result.exit_code) == ("", code), result.output
    message = result.stderr.splitlines()[-1]
    assert message.startswith("Error: ")
    assert [line for line in result.stderr.splitlines()[:-1] if not line.startswith("caches for ")] == []
    for word in words:
        assert word in message, message
    assert files(tmp_path) == {}


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ((), "--prompt"),
        (("--prompt", "a\udcff"), "Unicode"),
        (("--prompt", "a", "--requests", "1"), "--requests"),
    ],
)
def test_prompts_on_the_command_line_must_be_some(tiny, more, word):
    refused(run("decode", "--target", tiny / "target", *more), word, code=2)


# --- audit


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_an_audit_finds_nothing_wrong(tiny, dtype):
    """In half precision other shapes round otherwise, within the margin."""
    words = ("--dtype", dtype, "--tree", TREE, "--batch", "3", "--audit", "--json")
    result = decode(tiny, *words, drafter=tiny / "other")
    assert result.exit_code == 0, result.stderr
    audits = [each["audit"] for each in read_json(result.stdout)["requests"]]
    assert sum(audit["tokens"] for audit in audits) == read_json(result.stdout)["counts"]["committed"]
    assert sum(audit["unexcused"] for audit in audits) == 0
    assert "; 0 are beyond the margin of " in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_an_audit_finds_a_wrong_token(tiny, monkeypatch, tmp_path, dtype):
    """One token of all is written that the target did not choose."""
    verify, calls = Target.verify, []

    def wrong(self, *args, **kwargs):
        found = verify(self, *args, **kwargs)
        calls.append(1)
        if len(calls) == 5:
            found.logits[0, 0, found.logits[0, 0].argmin()] = 1e4
        return found

    monkeypatch.setattr(Target, "verify", wrong)
    result = decode(tiny, "--tree", "2", "--dtype", dtype, "--audit", "--output", tmp_path / "out.jsonl")
    assert result.exit_code == 1
    message = result.stderr.splitlines()[-1]
    assert message.startswith("Error: audit: ")
    assert "; 1 are beyond the margin of " in message
    _, records = output_of(tmp_path / "out.jsonl")
    wrong_ones = [each["request"] for each in records if each["audit"]["unexcused"]]
    assert message.endswith(f"first in request {wrong_ones[0]}")
    assert len(records) == len(TEXTS)
    again = decode(tiny, "--tree", "2", "--dtype", dtype, "--audit", "--output", tmp_path / "out.jsonl", "--resume")
    assert again.exit_code == 1
    assert again.stderr.splitlines()[-1] == message


# --- interruptions


def command(*words):
    """The words of a process of its own."""
    code = "import sys; sys.argv[0] = 'treeopt'; from treeopt.cli import main; main()"
    return [sys.executable, "-W", "error", "-c", code, *map(str, words)]


ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def long(tiny, tmp_path_factory):
    """Words of a run that takes seconds, and what it writes when nobody stops it."""
    folder = tmp_path_factory.mktemp("long")
    write_prompts(folder / "prompts.jsonl", [f"{number} " * (1 + number % 7) for number in range(40)])
    words = ["decode", *inputs(tiny, prompts=folder / "prompts.jsonl"), "--new-tokens", "50", "--tree", "2"]
    result = run(*words, "--ignore-end", "--json", "--batch", "8")
    return [*words, "--ignore-end", "--batch", "2"], texts(read_json(result.stdout))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_what_is_interrupted_can_be_gone_on_with(long, tmp_path, number):
    words, expected = long
    path = tmp_path / "out.jsonl"
    process = subprocess.Popen(
        command(*words, "--output", path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    until = time.monotonic() + 60
    while not (path.exists() and path.read_bytes().count(b"\n") > 3):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    head, records = output_of(path)
    assert 3 <= len(records) < len(expected)
    if number == signal.SIGINT:
        assert process.returncode == 1
        assert said.splitlines()[-1] == "Error: interrupted"
    assert "Traceback" not in said
    assert all(expected[each["request"]] == each["tokens"] for each in records)
    with path.open("ab") as file:  # as if it had been killed within a record
        file.write(b'{"request": 39, "tok')
    result = run(*words, "--output", path, "--resume")
    assert result.exit_code == 0, result.stderr
    again, whole = output_of(path)
    assert again == head
    assert whole[: len(records)] == records
    assert {each["request"]: each["tokens"] for each in whole} == expected
    assert len(whole) == len(expected)
    assert f"{len(expected) - len(records)} requests, " in result.stderr


def test_nothing_is_left_to_go_on_with(tiny, tmp_path):
    path = tmp_path / "out.jsonl"
    first = decode(tiny, "--output", path, "--resume")
    assert first.exit_code == 0
    before = files(tmp_path)
    again = decode(tiny, "--output", path, "--resume")
    assert (again.exit_code, again.stdout) == (0, "")
    assert again.stderr.splitlines()[-1] == "0 requests, 0 tokens in 0 steps at batch 1"
    refused(decode(tiny, "--output", path), str(path), "--resume", code=2)
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (("--tree", "1"), "tree [[0], [0, 0]], not [[0]]"),
        (("--requests", "3"), "prompts_sha256"),
        (("--dtype", "float64"), "weights"),
        (("--audit",), "audit"),
    ],
)
def test_another_command_is_not_gone_on_with(tiny, tmp_path, more, word):
    path = tmp_path / "out.jsonl"
    assert decode(tiny, "--tree", "2", "--output", path).exit_code == 0
    before = files(tmp_path)
    result = decode(tiny, "--tree", "2", *more, "--output", path, "--resume")
    refused(result, str(path), word, code=2)
    assert files(tmp_path) == before


def test_other_files_are_not_gone_on_with(tiny, tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text("dear diary\n")
    refused(decode(tiny, "--output", path, "--resume"), "--resume", str(path), code=2)
    assert path.read_text() == "dear diary\n"


def test_a_model_that_fails_leaves_whole_records(tiny, tmp_path, monkeypatch):
    verify, calls = Target.verify, []

    def fail(*args, **kwargs):
        calls.append(1)
        if len(calls) > 2 * NEW:
            raise KeyboardInterrupt
        return verify(*args, **kwargs)

    monkeypatch.setattr(Target, "verify", fail)
    result = decode(tiny, "--output", tmp_path / "out.jsonl")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "Error: interrupted"
    assert 1 <= len(output_of(tmp_path / "out.jsonl")[1]) < len(TEXTS)


def test_a_full_disk_leaves_whole_records(tiny, tmp_path):
    """A file may grow to so many bytes, within the last record."""
    path = tmp_path / "out.jsonl"
    assert decode(tiny, "--output", tmp_path / "whole.jsonl").exit_code == 0
    size = (tmp_path / "whole.jsonl").stat().st_size - 20
    with disk_of(size):
        result = decode(tiny, "--output", path)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == f"Error: {path}: {os.strerror(errno.EFBIG)}"
    assert path.stat().st_size <= size
    assert len(output_of(path)[1]) == len(TEXTS) - 1


INFO = ("trace", "info", ROOT / "data/traces/medusa-t0.npz")


@pytest.mark.parametrize(("reason", "words"), [(errno.ENOSPC, INFO), (errno.EPIPE, INFO), (errno.EPIPE, ("--help",))])
def test_standard_output_that_takes_nothing_more(reason, words):
    """No traceback, no word of Python's own at its end; `| head` is silent. What a command prints with is the same."""
    with open("/dev/full", "wb") as device:
        full = reason == errno.ENOSPC
        out = device if full else subprocess.PIPE
        process = subprocess.Popen(command(*words), stdout=out, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        if process.stdout is not None:
            process.stdout.close()
        assert process.stderr is not None
        said = process.stderr.read()
        process.stderr.close()
        assert process.wait() == 1
    assert said == (f"Error: output: {os.strerror(reason)}\n" if full else "")


def written(terminal):
    """All that was written to a terminal whose other end is closed, of which one read gives a few kilobytes."""
    with suppress(OSError):  # EIO: the end
        while some := os.read(terminal, 1 << 16):
            yield some


def test_figures_on_a_terminal_do_not_take_the_texts(tiny, tmp_path, monkeypatch):
    """stderr is a terminal, stdout is not, and takes no letters but ASCII."""
    here, there = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with (tmp_path / "out.txt").open("w", encoding="ascii") as file, open(there, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", file)
        monkeypatch.setattr(sys, "stderr", terminal)
        with pytest.raises(SystemExit) as end:
            main(["decode", *map(str, inputs(tiny)), "--new-tokens", str(NEW)])
        monkeypatch.undo()
        assert end.value.code == 0
    said = b"".join(written(here)).decode()
    os.close(here)
    shown = (tmp_path / "out.txt").read_text("ascii")
    assert shown == decode(tiny).stdout.encode("ascii", "replace").decode()
    assert "tau 1.00" in said
    assert "\x1b[" in said


# --- lines


def test_lines_are_whole_or_not_there(tmp_path):
    path = tmp_path / "lines.jsonl"
    head = {"schema": "s"}
    with appended(path, head) as put:
        put({"n": 1})
        put({"text": "\u2028\u00e9"})
    assert read_lines(path, "s") == (head, [{"n": 1}, {"text": "\u2028\u00e9"}])
    with path.open("ab") as file:
        file.write(b'{"n": \xc3')
    assert read_lines(path, "s") == (head, [{"n": 1}, {"text": "\u2028\u00e9"}])
    with appended(path, {"schema": "other"}) as put:
        put({"n": 3})
    assert read_lines(path, "s") == (head, [{"n": 1}, {"text": "\u2028\u00e9"}, {"n": 3}])


# --- several processes


@pytest.mark.slow
def test_two_processes_decode_as_one(tiny, plain, tmp_path):
    """Tensor parallelism over gloo; the first process alone prints and writes."""
    path = tmp_path / "out.jsonl"
    shared = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["decode", *inputs(tiny), "--new-tokens", NEW, "--tree", TREE, "--batch", "2", "--audit", "--json"]
    script = tmp_path / "treeopt_here.py"
    script.write_text("from treeopt.cli import main\nmain()\n")
    ended = subprocess.run(
        [*shared, str(script), *map(str, words), "--tensor-parallel", "--output", str(path)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    found = read_json(ended.stdout)
    assert texts(found) == texts(plain)
    assert found["meta"]["device"] == "2 x cpu, 1 threads"
    assert output_of(path)[1] == found["requests"]
    assert ended.stderr.count("caches for ") == 1
    refused_alone = decode(tiny, "--tensor-parallel")
    assert "torchrun" in error_of(refused_alone)
    assert one_line(refused_alone.stderr)


def test_libraries_are_silenced_before_torch_is_imported(monkeypatch):
    """They log while they are imported; --resume reads the output before the models are loaded."""
    calls: list[str] = []
    monkeypatch.setitem(sys.modules, "executor.decoding.self_test", None)
    monkeypatch.setattr(decode_prompts, "quiet_libraries", lambda: calls.append("silenced"))
    assert decode_prompts._begun(None) == (None, [])  # imports nothing
    with pytest.raises(ImportError):
        decode_prompts._begun(Path("out.jsonl"))
    assert calls == ["silenced"]
