"""`treeopt trace collect`: what it records, and what it refuses."""

import json
import os
import shutil

import numpy as np
import pytest

from executor.checkpoints import MEDUSA_FILE
from tests.helpers.command_line import CONTEXT, HEADS, TEXTS, collect, done, inputs, refused
from treeopt.traces.trace import load_trace


def test_collect_records_what_was_asked_for(made, tiny, tmp_path):
    trace = load_trace(made / "trace.npz")
    assert (trace.requests, trace.anchors, trace.depth, trace.width) == (8, 48, HEADS, 4)
    assert trace.domain_names == ("letters",)
    assert trace.meta["target"]["name"] == "target"
    assert trace.meta["drafter"]["heads"] == HEADS
    words = ("--depth", "2", "--requests", "3", "--skip", "2", "--temperature", "0.7", "--dtype", "float64")
    assert collect(tiny, tmp_path / "trace.npz", *words).exit_code == 0
    other = load_trace(tmp_path / "trace.npz")
    assert (other.requests, other.depth, other.meta["temperature"]) == (3, 2, 0.7)
    assert other.meta["target"]["dtype"] == "float64"
    assert os.listdir(tmp_path) == ["trace.npz"]


def test_the_seed_decides_what_is_sampled(tiny, tmp_path):
    texts = []
    for seed in ("1", "1", "2"):
        assert collect(tiny, tmp_path / "t.npz", "--temperature", "1", "--seed", seed).exit_code == 0
        trace = load_trace(tmp_path / "t.npz")
        assert trace.meta["seed"] == int(seed)
        texts.append(trace.meta["text_sha256"])
    assert texts[0] == texts[1] != texts[2]


def test_collect_repeats_itself_whatever_the_batch(made, tiny, tmp_path):
    again = tmp_path / "trace.npz"
    assert collect(tiny, again, "--batch", "3").exit_code == 0
    first, second = load_trace(made / "trace.npz"), load_trace(again)
    np.testing.assert_array_equal(first.rank, second.rank)
    assert first.meta["text_sha256"] == second.meta["text_sha256"]


def test_a_drafter_that_was_made_for_another_target_is_warned_of(tiny, tmp_path):
    """By name, which is all that it says of it: random weights of the same shapes, or a target that lies below it."""
    shutil.copytree(tiny / "target", tmp_path / "other")
    shutil.copytree(tiny / "drafter", tmp_path / "drafter")
    shutil.copytree(tiny / "target", tmp_path / "drafter" / "own")
    for target, warned in (("other", True), ("drafter/own", False)):
        for drafter in (tmp_path / "drafter", tmp_path / "drafter" / MEDUSA_FILE):
            result = collect(tiny, tmp_path / "trace.npz", target=tmp_path / target, drafter=drafter)
            assert result.exit_code == 0, result.stderr
            lines = [line for line in result.stderr.splitlines() if line.startswith("Warning: ")]
            assert lines == [f"Warning: {drafter} was made for the target target, this one is other."] * warned
    assert "Warning" not in collect(tiny, tmp_path / "trace.npz").stderr


def test_half_precision_on_a_processor_without_its_products_is_warned_of(tiny, monkeypatch):
    monkeypatch.setattr("torch.ops.mkldnn._is_mkldnn_bf16_supported", lambda: False)
    words = ("decode", *inputs(tiny), "--new-tokens", 2, "--dtype")
    assert "Warning" not in done(*words, "float32").stderr
    warning = "Warning: this processor has no bfloat16 products: float32 takes half the time or less.\n"
    assert warning in done(*words, "bfloat16").stderr


def test_a_request_that_fits_the_context_is_decoded(tiny, tmp_path):
    """Room for it may be kept in larger pieces, the model's context is what counts."""
    shutil.copytree(tiny / "target", tmp_path / "target")
    config = json.loads((tmp_path / "target" / "config.json").read_text())
    longest = max(len(text) for text in TEXTS)
    (tmp_path / "target" / "config.json").write_text(json.dumps(config | {"max_position_embeddings": longest + 6}))
    result = collect(tiny, tmp_path / "trace.npz", target=tmp_path / "target")
    assert result.exit_code == 0, result.stderr


PROMPTS = {
    "missing": (None, [], 1, "No such file"),
    "not JSON": (b'{"text": "abc"}\nabc\n', [], 1, "line 2"),
    "text of one token": (b'{"text": "abc"}\n{"text": "a"}\n', [], 2, "token"),
    "too few after skip": (b'{"text": "abc"}\n' * 5, ["--requests", "3", "--skip", "3"], 2, "skipping 3"),
}


@pytest.mark.parametrize(("content", "more", "code", "word"), PROMPTS.values(), ids=PROMPTS)
def test_prompts_that_are_none_are_refused(tiny, tmp_path, unchanged, content, more, code, word):
    (tmp_path / "keep").write_text("so that there is a file")
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_bytes(content)
    unchanged()
    result = collect(tiny, tmp_path / "trace.npz", *more, prompts=path)
    message = refused(result, word, code=code)
    assert str(path) in message


def test_prompts_may_hold_any_character(tiny, tmp_path):
    """Line and paragraph separators are characters of a JSON string, not ends of its line."""
    texts = ["ab\u2028cd", "ab\u2029cd", "ab\x85cd", "ab\x0bcd", "ab\r\ncd\x1c", "\U0001f333 \u00e9"]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts), "utf-8")
    result = collect(tiny, tmp_path / "trace.npz", prompts=path)
    assert result.exit_code == 0, result.stderr
    assert load_trace(tmp_path / "trace.npz").requests == len(texts)


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["--depth", "4"], 1, ["depth", "1..3", "4"]),
        (["--width", "321"], 1, ["width", "320", "321"]),
        (["--dtype", "float8"], None, ["dtype", "float32", "float8"]),
        (["--device", "gpu"], None, ["device", "gpu"]),
        (["--temperature", "nan"], 2, ["temperature", "nan"]),
        (["--new-tokens", "500"], 1, ["context", str(CONTEXT)]),
        (["--stride", "2"], 2, ["--stride applies only to candidates"]),
        (["--draws", "2"], 2, ["--draws is for rule sequoia, not greedy"]),
        (["--threads", "100000000"], 2, [f"threads must be in 1..{4 * os.cpu_count()}", "cores", "100000000"]),
    ],
    ids=lambda value: "=".join(value) if isinstance(value, list) and value[0].startswith("--") else None,
)
def test_collect_refuses_settings(tiny, tmp_path, unchanged, more, code, words):
    (tmp_path / "keep").write_text("so that there is a file")
    unchanged()
    result = collect(tiny, tmp_path / "trace.npz", *more)
    refused(result, *words, code=code)
