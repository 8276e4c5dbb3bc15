"""Checkpoints as others leave them: written, taken apart, put down again, compared and refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from executor.checkpoints import load_drafter, save_drafter
from executor.drafters.base.drafter import Drafter
from executor.target.target_model import Target
from tests.helpers.models import random_prompts
from treeopt.errors import ExecutorError

Tensors = dict[str, torch.Tensor]


def scores(drafter: Drafter, target: Target) -> list[torch.Tensor]:
    """Scores of two texts at up to three depths."""
    text = torch.tensor(random_prompts((12, 12), seed=3))
    features = target.features(text, drafter.taps).features
    return [forced.scores for forced in drafter.teacher_forced(target, text, features, min(3, drafter.max_depth))]


def same(found: Drafter, due: Drafter, target: Target) -> bool:
    """Return whether two drafters score alike."""
    return all(torch.equal(a, b) for a, b in zip(scores(found, target), scores(due, target), strict=True))


def assert_same(found: Any, due: Any, target: Target) -> None:
    """Both have the same parameters and scores."""
    assert type(found) is type(due)
    assert found.state_dict().keys() == due.state_dict().keys()
    for name, value in due.state_dict().items():
        assert torch.equal(found.state_dict()[name], value), name
    assert same(found, due, target)


def tensors_of(folder: Path) -> Tensors:
    """The tensors of a folder's only file of tensors."""
    (file,) = [path for path in folder.iterdir() if path.suffix in (".safetensors", ".pt", ".bin")]
    return load_file(file) if file.suffix == ".safetensors" else torch.load(file, weights_only=True)  # noqa: TID251


def config_of(folder: Path) -> dict[str, Any]:
    """Its configuration."""
    return json.loads((folder / "config.json").read_text())


def written(
    folder: Path, drafter: Drafter, layout: str | None = None, target: Target | None = None
) -> tuple[Tensors, dict[str, Any]]:
    """Save a drafter in a layout; return the tensors and the configuration of its files."""
    save_drafter(folder, drafter, dtype="float32", meta={}, layout=layout, target=target)
    return tensors_of(folder), config_of(folder)


def put_down(
    folder: Path, tensors: Tensors, config: dict[str, Any] | None = None, name: str = "model.safetensors"
) -> Path:
    """A checkpoint as somebody else would leave it: nothing of ours in its configuration."""
    folder.mkdir(exist_ok=True)
    copies = {key: value.clone() for key, value in tensors.items()}
    save_file(copies, folder / name) if name.endswith("safetensors") else torch.save(copies, folder / name)
    if config is not None:
        config = {key: value for key, value in config.items() if key != "treeopt_drafter"}
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def refused(path: Path, target: Target, *words: str) -> str:
    """Loading fails with one line that names the path and holds these words; return it."""
    with pytest.raises(ExecutorError) as caught:
        load_drafter(path, target)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    for word in words:
        assert word in message, message
    return message
