"""The kind of a drafter, by its configuration: as treeopt, the projects and the engines write it."""

import pytest

from simulate.drafter_kinds import kind_of_drafter
from simulate.whatif.device_cost_models import drafter_kind
from tests.helpers.command_line import small_trace
from treeopt.errors import CostError, UsageError
from treeopt.storage.user_files import shipped

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (LLAMA | {"num_hidden_layers": 1}, None),
        ({"architectures": ["EagleLlamaForCausalLM"], "model_type": "llama"}, "eagle"),
        ({"architectures": ["LlamaForCausalLMEagle"]}, "eagle"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ({"architectures": ["Eagle3LlamaForCausalLM"]}, "eagle3"),
        ({"speculators_model_type": "eagle3", "architectures": ["Eagle3Speculator"]}, "eagle3"),
        ({"model_type": "eagle", "architectures": ["EAGLEModel"]}, "eagle"),
        (LLAMA | {"draft_vocab_size": 32000}, "eagle3"),
        ({"medusa_num_heads": 5, "medusa_num_layers": 1}, "medusa"),
        ({"model_type": "medusa", "num_heads": 5}, "medusa"),
        ({"hydra_num_heads": 4, "hydra_head_arch": "mlp"}, "hydra"),
        ({"treeopt_drafter": {"kind": "ngram"}}, "ngram"),
    ],
)
def test_kinds_of_configurations(config, kind):
    assert kind_of_drafter(config) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [("eagle", "eagle"), ("hass", "eagle"), ("coral", "eagle"), ("eagle3", "eagle3"), ("medusa", "medusa"),
     ("hydra", "hydra"), ("hydra-plus", "hydra"), ("unigram", "ngram"), ("llama", None)],
)  # fmt: skip
def test_kinds_of_the_shipped_folders(name, kind):
    assert kind_of_drafter(shipped("models") / f"stdlib-{name}") == kind


def test_the_option_comes_before_the_configuration_before_the_trace(tmp_path):
    trace = small_trace()  # of Medusa
    eagle3 = {"architectures": ["LlamaForCausalLMEagle3"]}
    assert drafter_kind(trace, None) == ("medusa", [])
    assert drafter_kind(trace, "medusa", eagle3) == ("medusa", [])
    kind, (warning,) = drafter_kind(trace, None, eagle3)
    assert (kind, warning) == ("eagle3", "the trace records drafter kind medusa, but eagle3 is priced")
    assert drafter_kind(trace, None, LLAMA | {"num_hidden_layers": 1}) == ("medusa", [])
    silent = small_trace(meta={"verification": "greedy", "temperature": 0.0})
    for config, kind in (
        (LLAMA | {"num_hidden_layers": 30}, "language-model"),
        (LLAMA | {"num_hidden_layers": 1}, "eagle"),
    ):
        assert drafter_kind(silent, None, config) == (kind, [])
    with pytest.raises(UsageError, match="does not record its drafter's kind"):
        drafter_kind(silent, None, {})
    with pytest.raises(CostError, match="none"):
        drafter_kind(silent, None, tmp_path / "none")
