"""Drivers as they are described: `--method`, the name of a prompt lookup, and the record of models without paths."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from treeopt.engines import ENGINES
from treeopt.engines.driver import ENDS, DriverSettings, files_hash, model_name, model_record
from treeopt.errors import UsageError

LLAMA, VLLM = "prompt-lookup:llama.cpp", "prompt-lookup:vllm"
HALF = '{"method": "ngram", "prompt_lookup_max": 4}'


def meta(engine, folder, **settings):
    """The record of a driver, which starts nothing."""
    python = Path(sys.executable)
    if engine == "llama.cpp":
        (folder / "llama-server").write_text("")
        python = folder / "python"
    return ENGINES[engine].start(DriverSettings(engine, "target", python=python, **settings)).meta


def vllm(method, shortest=None, longest=None, **others):
    sizes = {"prompt_lookup_min": shortest, "prompt_lookup_max": longest}
    config = {name: size for name, size in sizes.items() if size is not None}
    return {"speculation": {"method": method, **config, **others}}


@pytest.mark.parametrize(
    ("engine", "settings", "expected"),
    [
        ("vllm", {"method": "ngram", "lookup": f"{VLLM}:1-3"}, vllm("ngram", 1, 3)),
        ("vllm", {"lookup": VLLM}, vllm("ngram", 5, 5)),
        ("vllm", {"method": "ngram", "lookup": "prompt-lookup"}, vllm("ngram")),
        ("vllm", {"method": HALF, "lookup": f"{VLLM}:1-4"}, vllm("ngram", 1, 4)),
        ("vllm", {"method": '{"method": "draft_model", "k": 1}', "drafter": "d"}, vllm("draft_model", k=1, model="d")),
        # A prompt lookup that is recorded along the engine's texts does not change how the engine drafts.
        ("vllm", {"method": "eagle3", "drafter": "d", "lookup": LLAMA}, vllm("eagle3", model="d")),
        ("vllm", {"lookup": "prompt-lookup:5"}, {"speculation": None}),
        ("llama.cpp", {"method": "ngram-simple", "lookup": f"{LLAMA}:2-5"}, {"method": "ngram-simple", "match": 2}),
        ("llama.cpp", {"lookup": LLAMA}, {"method": "ngram-simple", "match": 12}),
        ("llama.cpp", {"method": "draft-eagle3", "lookup": VLLM}, {"method": "draft-eagle3", "match": None}),
        ("openvino", {"method": "prompt-lookup:5"}, {"lookup_ngram": 5}),
        ("openvino", {"method": "prompt-lookup", "lookup": f"{VLLM}:1-4"}, {"lookup_ngram": 4}),
        ("openvino", {"drafter": "d", "lookup": f"{VLLM}:1-2"}, {"lookup_ngram": None}),
    ],
)
def test_an_engine_drafts_as_method_and_drafter_say(tmp_path, engine, settings, expected):
    record = meta(engine, tmp_path, **settings)
    assert {name: record.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("engine", "settings", "message"),
    [
        ("vllm", {"method": "ngram", "lookup": f"{LLAMA}:2-5"}, "--drafter .* name prompt-lookup:vllm, or how vllm"),
        ("vllm", {"method": '{"method": "ngram"'}, "--method: not JSON"),
        ("vllm", {"method": '{"method": "ngram", "num_speculative_tokens": 3}'}, "--method: leave out num_specul"),
        ("vllm", {"method": HALF, "lookup": f"{VLLM}:1-3"}, "--method has prompt_lookup_max 4, --drafter .*:1-3 3"),
        ("llama.cpp", {"lookup": f"{LLAMA}:3"}, "give both sizes"),
        ("openvino", {"lookup": f"{VLLM}:2-4"}, "--drafter .* name prompt-lookup:vllm:1-N"),
        ("openvino", {"method": "prompt-lookup:5", "lookup": f"{VLLM}:1-3"}, "is not prompt-lookup:5"),
    ],
)
def test_settings_that_contradict_one_another_are_refused_in_one_line(tmp_path, engine, settings, message):
    with pytest.raises(UsageError, match=message) as caught:
        meta(engine, tmp_path, **settings)
    assert "\n" not in str(caught.value)


# --- models that an engine loads


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with weights that are longer than what is hashed."""
    folder = tmp_path / "some-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(3 * ENDS))
    return folder


def test_a_copy_elsewhere_has_the_same_record(model, tmp_path):
    copy = shutil.copytree(model, tmp_path / "elsewhere" / model.name)
    (copy / ".cache").mkdir()
    assert model_record(copy) == model_record(model) == {"name": "some-model", "files": files_hash(model)}
    assert model_name(model / "model.safetensors") == "some-model/model.safetensors"
    assert model_record("org/model") == {"name": "org/model"}


def test_another_byte_size_or_name_is_another_model(model):
    weights, hashes = model / "model.safetensors", [files_hash(model)]
    for content in (b"\1" + bytes(3 * ENDS - 1), bytes(3 * ENDS - 1) + b"\1", bytes(4 * ENDS)):
        weights.write_bytes(content)
        hashes.append(files_hash(model))
    weights.rename(model / "other.safetensors")
    assert len({*hashes, files_hash(model)}) == 5


@pytest.mark.parametrize(("engine", "method"), [("vllm", "eagle3"), ("openvino", None)])
def test_drivers_record_no_path(model, engine, method):
    settings = DriverSettings(engine, str(model), str(model), method, python=Path(sys.executable))
    record = json.dumps(dict(ENGINES[engine].start(settings).meta))
    assert str(model.parent) not in record
    assert model.name in record
