"""A target of seven layers, and an EAGLE-3 drafter for it as its files hold it."""

import pytest

from tests.helpers.checkpoint_files import written
from tests.helpers.drafters import random_drafter
from tests.helpers.models import deep_target


@pytest.fixture(scope="module")
def target():
    return deep_target()


@pytest.fixture(scope="module")
def eagle3(target, tmp_path_factory):
    """A drafter of random weights, its tensors in vLLM's names, and its configuration."""
    drafter = random_drafter("eagle3", target)
    return drafter, *written(tmp_path_factory.mktemp("eagle3"), drafter, "eagle3-vllm")


@pytest.fixture(scope="module")
def plain(eagle3):
    """The same where the configuration says nothing of norms."""
    drafter, tensors, config = eagle3
    config = {key: value for key, value in config.items() if not key.startswith(("norm_", "fc_norm"))}
    return drafter, tensors, config | {"eagle_aux_hidden_state_layer_ids": list(drafter.taps)}
