"""The list of models that are known by name, and whatif of one of them."""

import json

import pytest

from simulate.model_sizes.hf_config import known_models
from tests.helpers.command_line import done, refused, run


@pytest.fixture
def asked(trace_file):
    return ("whatif", "--trace", trace_file, "--hardware=h200", "--batch=1", "--max-nodes=4", "--json")


def test_models_are_listed_with_their_sizes_or_the_field_that_is_not_understood():
    rows = json.loads(done("models", "--json").stdout)["models"]
    assert [row["name"] for row in rows] == list(known_models())
    assert sum(not row["refused"] for row in rows) >= 85
    by_name = {row["name"]: row for row in rows}
    assert round(by_name["openai/gpt-oss-120b"]["active_billions"], 1) == 5.1
    assert "compress_ratios" in by_name["deepseek-ai/DeepSeek-V4-Pro"]["refused"]
    shown = done("models", "gpt-oss", "OPENAI").stdout
    assert shown.startswith("2 of 2 models have a price")
    assert "gpt-oss-20b" in shown


def test_a_target_by_name_by_its_last_part_and_by_hand(tmp_path, asked):
    first, second = (
        json.loads(done(*asked, "--target", name).stdout) for name in ("openai/gpt-oss-20b", "GPT-OSS-20b")
    )
    assert first["cells"] == second["cells"]
    refused(
        run(*asked, "--target", "DeepSeek-V4-Pro"), "deepseek-ai/DeepSeek-V4-Pro: compress_ratios is not", "--sizes"
    )
    by_hand = ("--sizes", "params=30e9,active=3e9,kv_bytes=20000", "--weight-bytes", "1")
    found = json.loads(done(*asked, "--target", "DeepSeek-V4-Pro", *by_hand).stdout)
    assert found["cells"][0]["fits"]
    for wrong in ("params=x", "params", "params=1e9,params=2e9"):
        refused(
            run(*asked, "--target", "8b", "--sizes", wrong),
            "is not NAME=NUMBER with a name of its own, such as params",
            code=2,
        )
    for wrong in ("frob=1", "params=1e16", "spread=2"):
        said = "--sizes takes numbers of params, active, kv_bytes, layers"
        refused(run(*asked, "--target", "8b", "--sizes", wrong), said, code=2)
    refused(run(*asked, "--target", "8b", "--sizes", "active=3e9"), "--sizes needs params, such as")
    half = "params=8e9,active=8e9,kv_bytes=9,layers=1.5"
    refused(run(*asked, "--target", "8b", "--sizes", half), "layers must be a positive integer, got 1.5")
    (tmp_path / "config.json").write_text('{"hidden_size": [8], "vocab_size": 9, "num_hidden_layers": 2}')
    refused(run(*asked, "--target", tmp_path, *by_hand), "hidden must be a positive integer, got [8]")
    refused(
        run(*asked, "--target", "8b", "--sizes", "params=1e9,active=3e9,kv_bytes=9"), "active must be at most params"
    )


def test_no_name_is_said():
    refused(run("models", "nosuch"), "no model's name holds nosuch: `treeopt models` lists all", code=2)
