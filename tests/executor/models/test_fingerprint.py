"""Who models are: what weights do not tell of them counts too."""

import pytest
import torch

from executor.models import identity, settings_hash
from tests.helpers.drafters import random_drafter
from tests.helpers.models import CONFIGS, small_target

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 512}


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": YARN},
        {"rms_norm_eps": 1e-3},
        {"num_attention_heads": 2},
        {"sliding_window": 8},
        {"mlp_bias": True},
    ],
)
def test_settings_are_part_of_a_target(changes):
    config = CONFIGS["llama"]
    other = type(config).from_dict(config.to_dict() | changes)
    own = settings_hash({"config": config})
    assert settings_hash({"config": other}) != own
    same = type(config).from_dict(config.to_dict() | {"use_cache": False, "bos_token_id": 3, "dtype": "float16"})
    assert settings_hash({"config": same}) == own


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("eagle3", ("taps", (0, 1, 1))),
        ("eagle3", ("draft_ids", torch.arange(9))),
        ("eagle3", ("feeds_normed", True)),
        ("coral-router", ("active", 1)),
        ("hydra", ("grounded", False)),
    ],
)
def test_settings_are_part_of_a_drafter(name, changed):
    target = small_target()
    drafter = random_drafter(name, target)
    before = identity(target, drafter)["drafter"]
    assert identity(target, random_drafter(name, target))["drafter"] == before
    setattr(drafter, *changed)
    after = identity(target, drafter)["drafter"]
    assert after["weights"] == before["weights"] or changed[0] == "draft_ids"
    assert after["settings"] != before["settings"]
