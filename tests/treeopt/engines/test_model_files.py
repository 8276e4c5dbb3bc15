"""Models that an engine loads: records name and hash them, and hold no path."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from treeopt.engines.driver import ENDS, DriverSettings, files_hash, model_name, model_record
from treeopt.engines.openvino.driver import OpenVino
from treeopt.engines.vllm.driver import VLLM


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


@pytest.mark.parametrize("place", [0, -1])
def test_another_byte_at_either_end_is_another_model(model, place):
    before, weights = files_hash(model), bytearray(3 * ENDS)
    weights[place] = 1
    (model / "model.safetensors").write_bytes(weights)
    assert files_hash(model) != before


def test_a_longer_file_or_another_name_is_another_model(model):
    before = files_hash(model)
    (model / "config.json").rename(model / "settings.json")
    renamed = files_hash(model)
    (model / "model.safetensors").write_bytes(bytes(4 * ENDS))
    assert len({before, renamed, files_hash(model)}) == 3


def test_a_single_file_is_named_with_its_folder(model):
    assert model_name(model / "model.safetensors") == "some-model/model.safetensors"
    assert model_record("org/model") == {"name": "org/model"}


def test_drivers_record_no_path(model):
    servers = VLLM(DriverSettings("vllm", str(model), str(model), "eagle3", python=Path(sys.executable)))
    worker = OpenVino(DriverSettings("openvino", str(model), str(model), python=Path(sys.executable)))
    for driver in (servers, worker):
        assert str(model.parent) not in json.dumps(dict(driver.meta))
        assert model.name in json.dumps(dict(driver.meta))
