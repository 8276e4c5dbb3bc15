"""Model folders that cannot be used are refused in one line."""

import json
import pickle
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from executor.drafters.medusa.checkpoint import MEDUSA_FILE
from tests.helpers.command_line import (
    COLLECT,
    collect,
    config,
    done,
    error_of,
    inputs,
    refused,
    run,
    write_drafter,
    write_target,
)
from treeopt.cli import main
from treeopt.traces.trace import load_trace, save_trace


def copy_of(tiny, tmp_path, part, change):
    """A folder like the tiny target or drafter, but for a change."""
    folder = tmp_path / part
    shutil.copytree(tiny / part, folder)
    change(folder)
    return folder


def weights(change, name="model.safetensors"):
    """Change the tensors of a folder: `change` returns the new ones."""

    def changed(folder):
        save_file(change(load_file(folder / name)), folder / name, metadata={"format": "pt"})

    return changed


def cut(name):
    def shorter(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return shorter


def without(tensors, key):
    assert key in tensors
    return {name: tensor for name, tensor in tensors.items() if name != key}


def emptied(folder):
    shutil.rmtree(folder)
    folder.mkdir()


def no_tokenizer(folder):
    for path in folder.glob("tokenizer*"):
        path.unlink()


FIRST = "model.layers.0.self_attn.q_proj.weight"


BAD_TARGETS = {
    "missing": (shutil.rmtree, "no model folder"),
    "empty": (emptied, "config.json"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json"),
    "config of nothing": (config("{}"), "model"),
    "config cut": (config('{"model_type": '), "JSON"),
    "config a list": (config("[]"), "config.json"),
    "not a language model": (config('{"model_type": "vit"}'), "vit"),
    "unknown model": (config('{"model_type": "no-such-model"}'), "no-such-model"),
    "refused model": (config('{"model_type": "bloom"}'), "bloom"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
    "weights cut": (cut("model.safetensors"), "load"),
    "weights pickled": (
        lambda folder: (folder / "model.safetensors").write_bytes(pickle.dumps({"a": 1})),
        "load",
    ),
    "weights of another width": (weights(lambda t: t | {FIRST: torch.zeros(16, 32)}), FIRST),
    "weights of one layer gone": (weights(lambda t: without(t, FIRST)), FIRST),
    "no tokenizer": (no_tokenizer, "tokenizer"),
    "tokenizer cut": (cut("tokenizer.json"), "tokenizer"),
}


@pytest.mark.parametrize("bad", BAD_TARGETS.values(), ids=BAD_TARGETS)
def test_a_target_that_is_none_is_refused(tiny, tmp_path, unchanged, bad):
    change, word = bad
    (tmp_path / "keep").write_text("so that there is a file")
    folder = copy_of(tiny, tmp_path, "target", change)
    unchanged()
    refused(collect(tiny, tmp_path / "trace.npz", target=folder), str(folder), word)


def test_code_in_a_model_folder_is_not_run(tiny, tmp_path, unchanged):
    """Nor does anything ask for it: a question on stdout is no result, and stdin may say yes to all."""
    folder = copy_of(tiny, tmp_path, "target", config('{"model_type": "own", "auto_map": {"AutoConfig": "own.C"}}'))
    (folder / "own.py").write_text(f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).write_text('ran')")
    unchanged()
    words = ("trace", "collect", *inputs(tiny, target=folder), *COLLECT, "--output", str(tmp_path / "trace.npz"))
    refused(CliRunner().invoke(main, words, input="y\ny\ny\n"), str(folder))


HEAD = "1.0.linear.weight"


head_weights = {"name": MEDUSA_FILE}


BAD_DRAFTERS = {
    "missing": (shutil.rmtree, "no such file or folder"),
    "empty": (emptied, MEDUSA_FILE),
    "cut": (cut(MEDUSA_FILE), "safetensors"),
    "pickled": (lambda folder: (folder / MEDUSA_FILE).write_bytes(pickle.dumps({"a": 1})), "safetensors"),
    "no tensors": (weights(lambda t: {}, **head_weights), "Medusa"),
    "extra key": (weights(lambda t: t | {"head.weight": t[HEAD].clone()}, **head_weights), "head.weight"),
    "a key gone": (weights(lambda t: without(t, HEAD), **head_weights), HEAD),
    "a bias gone": (weights(lambda t: without(t, "2.0.linear.bias"), **head_weights), "2.0.linear.bias"),
    "a transposed head": (weights(lambda t: t | {HEAD: torch.zeros(32, 16)}, **head_weights), HEAD),
    "integers": (weights(lambda t: t | {HEAD: torch.ones(32, 32, dtype=torch.int64)}, **head_weights), HEAD),
}


@pytest.mark.parametrize("bad", BAD_DRAFTERS.values(), ids=BAD_DRAFTERS)
def test_a_drafter_that_is_none_is_refused(tiny, tmp_path, unchanged, bad):
    change, word = bad
    (tmp_path / "keep").write_text("so that there is a file")
    folder = copy_of(tiny, tmp_path, "drafter", change)
    unchanged()
    refused(collect(tiny, tmp_path / "trace.npz", drafter=folder), str(folder), word)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    ("part", "name", "key"), [("target", "model.safetensors", FIRST), ("drafter", MEDUSA_FILE, HEAD)]
)
def test_weights_that_are_no_numbers_are_refused(tiny, tmp_path, unchanged, part, name, key, value):
    """NaN scores compare with nothing, so that every true token would seem to stand first: a perfect drafter."""
    change = weights(lambda tensors: tensors | {key: torch.full((32, 32), value)}, name)
    folder = copy_of(tiny, tmp_path, part, change)
    unchanged()
    message = refused(collect(tiny, tmp_path / "trace.npz", **{part: folder}), part)
    assert re.search("NaN|nan|finite|inf", message), message


def test_heads_of_another_width_are_refused(tiny, tmp_path, unchanged):
    write_drafter(tmp_path / "narrow", hidden=16)
    unchanged()
    result = collect(tiny, tmp_path / "trace.npz", drafter=tmp_path / "narrow")
    refused(result, MEDUSA_FILE, "0.0.linear", "(32", "(16")


def test_a_tokenizer_of_another_model_is_refused(tiny, tmp_path, unchanged):
    """Its ids reach beyond the model's vocabulary."""
    write_target(tmp_path / "target", vocabulary=40)
    unchanged()
    result = collect(tiny, tmp_path / "trace.npz", target=tmp_path / "target")
    refused(result, str(tmp_path / "target"), "vocabulary", "40", code=None)


CONFIGURATIONS = (
    ("config.json", {"hidden_size": "x"}, "transformers cannot take its config.json"),
    ("config.json", {"rope_parameters": 5}, "transformers cannot take its config.json"),
    ("generation_config.json", {"eos_token_id": "x"}, "eos_token_id of generation_config.json must be ids"),
    ("generation_config.json", [], "transformers cannot load this model"),
    ("tokenizer.json", [], "transformers cannot load a tokenizer"),
    ("tokenizer_config.json", [], "transformers cannot load a tokenizer"),
)


@pytest.mark.parametrize(("file", "content", "why"), CONFIGURATIONS)
def test_a_models_files_of_the_wrong_kind_are_refused(tiny, tmp_path, file, content, why):
    shutil.copytree(tiny / "target", tmp_path / "target")
    path = tmp_path / "target" / file
    if isinstance(content, dict):
        content = (json.loads(path.read_text()) if path.exists() else {}) | content
    path.write_text(json.dumps(content))
    refused(run("decode", "--target", tmp_path / "target", "--prompt", "abc"), why)
    if file == "config.json":
        words = ("--drafter", "medusa:2", "--random-weights", "--prompt-tokens", "4", "--output", tmp_path / "p.json")
        refused(run("profile", "--target", tmp_path / "target", *words), why)


def test_a_deep_configuration_is_refused(trace_file, tmp_path):
    (tmp_path / "config.json").write_text('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")
    words = ("whatif", "--trace", trace_file, "--hardware", "h100", "--kind", "medusa")
    assert "config.json" in error_of(run(*words, "--target", tmp_path))


@pytest.mark.parametrize(
    "meta", [{"assumed": 5}, {"assumed": [["x"]]}, {"repeated_prompts": "x"}, {"temperature": "hot"}]
)
def test_what_a_trace_says_of_itself_may_be_anything(trace_file, profile_file, tmp_path, meta):
    trace = load_trace(trace_file)
    for name, part in zip("ab", trace.split(share=0.5, rng=np.random.default_rng(0)), strict=True):
        save_trace(replace(part, meta={**trace.meta, **meta}), tmp_path / f"{name}.npz")
    done("trace", "merge", tmp_path / "a.npz", tmp_path / "b.npz", "--output", tmp_path / "c.npz")
    done("search", "--trace", tmp_path / "c.npz", "--profile", profile_file, "--batch", "1")
