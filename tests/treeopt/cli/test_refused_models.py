"""Model folders that cannot be used are refused in one line."""

import re
import shutil

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from executor.drafters.medusa.drafter import MEDUSA_FILE
from tests.helpers.command_line import COLLECT, collect, config, inputs, refused
from treeopt.cli import main


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


FIRST = "model.layers.0.self_attn.q_proj.weight"


def test_code_in_a_model_folder_is_not_run(tiny, tmp_path, unchanged):
    """Nor does anything ask for it: a question on stdout is no result, and stdin may say yes to all."""
    folder = copy_of(tiny, tmp_path, "target", config('{"model_type": "own", "auto_map": {"AutoConfig": "own.C"}}'))
    (folder / "own.py").write_text(f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).write_text('ran')")
    unchanged()
    words = ("trace", "collect", *inputs(tiny, target=folder), *COLLECT, "--output", str(tmp_path / "trace.npz"))
    refused(CliRunner().invoke(main, words, input="y\ny\ny\n"), str(folder))


HEAD = "1.0.linear.weight"


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
