"""Drivers made from words: how `--method` and the name of a prompt lookup become an engine's own settings."""

import json
import sys
from pathlib import Path

import pytest

from treeopt.engines import ENGINES
from treeopt.engines.driver import DriverSettings
from treeopt.errors import UsageError


def meta(engine, folder, **settings):
    """The settings of a driver, which starts nothing."""
    python = Path(sys.executable)
    if engine == "llama.cpp":
        (folder / "llama-server").write_text("")
        python = folder / "python"
    return ENGINES[engine].start(DriverSettings(engine, "target", python=python, **settings)).meta


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"method": "ngram", "lookup": "prompt-lookup:vllm:1-3"}, {"prompt_lookup_min": 1, "prompt_lookup_max": 3}),
        ({"lookup": "prompt-lookup:vllm:2-4"}, {"prompt_lookup_min": 2, "prompt_lookup_max": 4}),
        ({"lookup": "prompt-lookup:vllm"}, {"prompt_lookup_min": 5, "prompt_lookup_max": 5}),
        ({"method": "ngram_gpu", "lookup": "prompt-lookup:vllm:3"}, {"prompt_lookup_min": 3, "prompt_lookup_max": 3}),
        ({"method": "ngram", "lookup": "prompt-lookup"}, {}),
        ({"method": '{"method": "ngram", "prompt_lookup_max": 4}'}, {"prompt_lookup_max": 4}),
        (
            {"method": '{"method": "ngram", "prompt_lookup_max": 4}', "lookup": "prompt-lookup:vllm:1-4"},
            {"prompt_lookup_min": 1, "prompt_lookup_max": 4},
        ),
    ],
)
def test_vllm_looks_up_as_the_drafter_s_name_says(tmp_path, settings, expected):
    speculation = meta("vllm", tmp_path, **settings)["speculation"]
    assert speculation.pop("method") in ("ngram", "ngram_gpu")
    assert speculation == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"method": "eagle3", "drafter": "d"}, {"method": "eagle3", "model": "d"}),
        ({"method": "mtp"}, {"method": "mtp"}),
        (
            {"method": json.dumps({"method": "suffix", "suffix_decoding_max_tree_depth": 8})},
            {"method": "suffix", "suffix_decoding_max_tree_depth": 8},
        ),
        (
            {"method": '{"method": "draft_model", "draft_tensor_parallel_size": 1}', "drafter": "d"},
            {"method": "draft_model", "draft_tensor_parallel_size": 1, "model": "d"},
        ),
        ({"method": "eagle3", "drafter": "d", "lookup": "prompt-lookup:llama.cpp"}, {"method": "eagle3", "model": "d"}),
        ({}, None),
        ({"lookup": "prompt-lookup:5"}, None),
    ],
)
def test_other_methods_of_vllm(tmp_path, settings, expected):
    """A prompt lookup that is recorded along the engine's texts does not change how the engine drafts."""
    assert meta("vllm", tmp_path, **settings)["speculation"] == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"method": "ngram-simple", "lookup": "prompt-lookup:llama.cpp:2-5"}, ("ngram-simple", 2)),
        ({"lookup": "prompt-lookup:llama.cpp:3-8"}, ("ngram-simple", 3)),
        ({"lookup": "prompt-lookup:llama.cpp"}, ("ngram-simple", 12)),
        ({"method": "ngram-simple"}, ("ngram-simple", None)),
        ({"method": "ngram-mod", "lookup": "prompt-lookup"}, ("ngram-mod", None)),
        ({"method": "draft-eagle3", "drafter": "d", "lookup": "prompt-lookup:vllm"}, ("draft-eagle3", None)),
    ],
)
def test_llama_cpp_looks_up_as_the_drafter_s_name_says(tmp_path, settings, expected):
    driver = meta("llama.cpp", tmp_path, **settings)
    assert (driver["method"], driver.get("match")) == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"method": "prompt-lookup"}, 3),
        ({"method": "prompt-lookup:5"}, 5),
        ({"method": "prompt-lookup", "lookup": "prompt-lookup:vllm:1-4"}, 4),
        ({"method": "prompt-lookup:4", "lookup": "prompt-lookup:vllm:1-4"}, 4),
        ({"lookup": "prompt-lookup:vllm:1-2"}, 2),
        ({"method": "prompt-lookup", "lookup": "prompt-lookup:3"}, 3),
        ({"drafter": "d", "lookup": "prompt-lookup:vllm:1-2"}, None),
        ({"drafter": "d"}, None),
    ],
)
def test_openvino_looks_up_by_the_rule_of_vllm(tmp_path, settings, expected):
    assert meta("openvino", tmp_path, **settings)["lookup_ngram"] == expected


@pytest.mark.parametrize(
    ("engine", "settings", "message"),
    [
        ("vllm", {"method": "ngram", "lookup": "prompt-lookup:llama.cpp:2-5"}, "the rule of llama.cpp, which vllm"),
        ("vllm", {"lookup": "prompt-lookup:transformers:2"}, "name prompt-lookup:vllm, or how vllm drafts"),
        ("vllm", {"lookup": "prompt-lookup:vllm:4-2"}, r"the shortest match must be in 1\.\.2"),
        ("vllm", {"method": '{"method": "ngram"'}, "--method: not JSON"),
        ("vllm", {"method": '{"method": "ngram", "num_speculative_tokens": 3}'}, "leave out num_speculative_tokens"),
        (
            "vllm",
            {"method": '{"method": "ngram", "prompt_lookup_max": 5}', "lookup": "prompt-lookup:vllm:1-3"},
            "--method has prompt_lookup_max 5, --drafter prompt-lookup:vllm:1-3 3",
        ),
        ("llama.cpp", {"method": "ngram-simple", "lookup": "prompt-lookup:vllm"}, "the rule of vllm, which llama.cpp"),
        ("llama.cpp", {"lookup": "prompt-lookup:llama.cpp:3"}, "give both sizes"),
        ("openvino", {"method": "prompt-lookup", "lookup": "prompt-lookup:llama.cpp"}, "the rule of llama.cpp"),
        ("openvino", {"lookup": "prompt-lookup:vllm:2-4"}, "matches N tokens down to 1"),
        ("openvino", {"method": "prompt-lookup:5", "lookup": "prompt-lookup:vllm:1-3"}, "is not prompt-lookup:5"),
    ],
)
def test_words_that_contradict_one_another(tmp_path, engine, settings, message):
    with pytest.raises(UsageError, match=message) as caught:
        meta(engine, tmp_path, **settings)
    assert "\n" not in str(caught.value)
