"""The fused forward against the model's own: over trees, in decoding, and after changes of the model."""

import copy

import pytest
import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, Ministral3Config

from executor.decoding.decoder import Decoder
from executor.kernels.fused_forward import WIDEST_HEAD, FusedForward, refusal
from executor.target.causal_model import HEAD
from executor.target.target_model import Target
from executor.verification.tree_tensors import Topology
from tests.helpers.drafters import random_drafter
from tests.helpers.interpreted_kernels import (
    CONFIGS,
    fusable_target,
    mend_products_of_bfloat16,
    relative_error,
    take_wide_blocks,
)
from tests.helpers.models import SMALL, random_heads, random_prompts
from tests.helpers.slow_params import slow_unless
from treeopt.tree import EMPTY, Tree

TREES = Topology.from_parents(torch.tensor([[0, 0, 0, 1, 2, 3, 3], [0, 0, 1, 2, 3, 0, 5]]), 4)
FEW = Topology.from_parents(torch.tensor([[0, 0, 1], [0, 1, 0]]), 2)
LENGTHS = (17, 0)
ROUNDING = 1e-4  # of two layers in fp32, relative; other arithmetic is off by more


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    take_wide_blocks(monkeypatch)


def verified(target: Target, trees: Topology = TREES, *, first: int = 0, taps=(0, 1, 2, HEAD)):
    """Logits, features and the cache, after verifying one tree per sequence; the nodes before `first` come first."""
    torch.manual_seed(1)
    batch, nodes = len(LENGTHS), trees.depth.shape[1]
    tokens, lengths = torch.randint(target.vocabulary, (batch, nodes)), torch.tensor(LENGTHS)
    target.cache = None
    target.allocate(batch, 32)
    target.prefill(range(batch), random_prompts(LENGTHS))
    for start, end in ((0, first), (first, nodes)):
        if start < end:
            outputs = target.verify(
                tokens[:, start:end],
                lengths,
                trees.depth[:, start:end],
                trees.ancestors[:, start:end, :end],
                32,
                first=start,
                taps=taps,
            )
    return outputs.logits, outputs.features, *target.cache.stores


def fused(target: Target) -> Target:
    assert refusal(target.model.get_decoder()) is None
    target.fused = FusedForward(target.model.get_decoder())
    return target


def check_forwards(target: Target, own, **words) -> None:
    assert not target.fused.outdated
    for found, expected in zip(verified(target, **words), own, strict=True):
        assert found.shape == expected.shape
        assert relative_error(found, expected) < ROUNDING


@pytest.mark.parametrize("kind", slow_unless(lambda kind: kind in {"phi3", "qwen2", "qwen3"}, CONFIGS))
def test_trees_are_verified_as_by_the_model(kind):
    target = fusable_target(kind)
    own = verified(target)
    check_forwards(fused(target), own)


def test_nodes_are_fed_after_others_of_their_tree():
    target = fusable_target()
    own = verified(target)
    fused(target)
    for found, expected in zip(verified(target, first=3), own, strict=True):
        expected = expected[:, 3:] if expected.dim() == 3 else expected
        assert relative_error(found, expected) < ROUNDING


def test_bfloat16_differs_by_rounding(monkeypatch):
    """The distance from fp32 is that of the model's own forward in bfloat16, within half as much again."""
    mend_products_of_bfloat16(monkeypatch)
    exact = fusable_target("qwen3")
    target = fusable_target("qwen3", dtype=torch.bfloat16)
    exact.model.load_state_dict({name: value.float() for name, value in target.model.state_dict().items()})
    wanted, own = verified(exact, FEW)[0], verified(target, FEW)[0]
    found = verified(fused(target), FEW)[0]
    assert found.dtype == torch.bfloat16
    assert relative_error(found, wanted) < 1.5 * relative_error(own, wanted)


# --- decoding


@pytest.mark.parametrize(
    ("kind", "drafter"),
    slow_unless(lambda kind, _: kind == "qwen3", [("llama", "medusa"), ("qwen3", "eagle3"), ("qwen2", "plain")]),
)
def test_decoding_writes_the_same(kind, drafter):
    """EAGLE-3 reads features of tapped layers; a plain step feeds one row."""
    target = fusable_target(kind)
    heads = {"medusa": lambda: random_heads(heads=2), "eagle3": lambda: random_drafter("eagle3", target)}
    batch, tree = (1, EMPTY) if drafter == "plain" else (2, Tree(parents=(-1, -1, 0), ranks=(0, 1, 0)))
    made = heads[drafter]() if drafter in heads else None
    prompts, calls = random_prompts([5, 11]), []

    def written() -> list[list[int]]:
        target.cache = None
        found = Decoder(target, made, tree=tree, batch=batch).generate(prompts, new_tokens=3)
        return [generation.tokens for generation in found]

    own = written()
    layer = fused(target).fused.layer
    target.fused.layer = lambda *args: calls.append(args[0]) or layer(*args)
    assert written() == own
    assert calls[:2] == [0, 1]


# --- which decoders have one


def made(config) -> nn.Module:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config).get_decoder()


WIDE = transformers.LlamaConfig(**SMALL, head_dim=WIDEST_HEAD + 2)
# It scales queries beyond its first 16384 positions, which a short comparison does not show.
PHI_GELU = transformers.Phi3Config(**SMALL | {"pad_token_id": 0}, hidden_act="gelu")
MINISTRAL = Ministral3Config(**SMALL | {"pad_token_id": 0}, num_key_value_heads=2)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (transformers.OlmoConfig(**SMALL), "its norms are not RMS norms"),
        (transformers.LlamaConfig(**SMALL, mlp_bias=True), "its layers have biases where Llama's have none"),
        (transformers.LlamaConfig(**SMALL, hidden_act="gelu"), "its gate is not SiLU"),
        (PHI_GELU, "its gate is not SiLU"),
        (transformers.MixtralConfig(**SMALL), "its layers are not built as Llama's are"),
        (transformers.GPT2Config(**SMALL), "it is not built as Llama is"),
        (MINISTRAL, "its attention reads positions"),
        (WIDE, f"its heads are wider than {WIDEST_HEAD}"),
    ],
    ids=["no weights", "biases", "gelu", "packed gelu", "experts", "another family", "positions", "wide heads"],
)
def test_other_settings_are_refused(config, reason):
    assert refusal(made(config)).startswith(reason)


def transposed(decoder: nn.Module) -> None:
    """One row's product reads the weight line after line, and no row is compared at load."""
    weight = decoder.layers[1].self_attn.o_proj.weight
    weight.data = weight.data.T.contiguous().T


def parts_of_heads(decoder: nn.Module) -> None:
    """Kernels would read beyond the cosines' end."""
    decoder.rotary_emb.inv_freq = decoder.rotary_emb.inv_freq[:2]


NUMBERS = "its weights are not all bfloat16 or all float32, on one device"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (transposed, "its weights are not contiguous"),
        (parts_of_heads, "its positions do not rotate whole heads"),
        (lambda decoder: decoder.to(torch.float16), NUMBERS),
        (lambda decoder: decoder.norm.to(torch.bfloat16), NUMBERS),
    ],
    ids=["transposed", "parts of heads", "float16", "mixed"],
)
def test_changed_decoders_are_refused(change, reason):
    decoder = fusable_target().model.get_decoder()
    change(decoder)
    assert refusal(decoder) == reason


def test_quantised_weights_are_refused():
    quantised = pytest.importorskip("torchao.quantization", reason="the extra `quantized` is not installed")
    decoder = fusable_target().model.get_decoder()
    quantised.quantize_(decoder, quantised.Int8WeightOnlyConfig())
    assert refusal(decoder) == "its weights are quantised or sharded"


# --- after changes of the model


@pytest.mark.parametrize(
    "change",
    [lambda m: m.to(torch.float64), lambda m: m.to(torch.bfloat16).to(torch.float32)],
    ids=["cast", "to and back"],
)
def test_a_cast_makes_it_outdated(change):
    """The model's own forward verifies then."""
    target = fused(fusable_target("qwen2"))
    assert not target.fused.outdated
    change(target.model)
    assert target.fused.outdated
    whole = Target(target.model)
    own = verified(whole)
    whole.fused = target.fused
    assert verified(whole)[0].equal(own[0])


def test_loaded_weights_are_seen():
    target, other = fused(fusable_target("qwen3")), fusable_target("qwen3")
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    target.model.load_state_dict(other.model.state_dict())
    check_forwards(target, verified(other, FEW), trees=FEW)


def test_assigned_weights_make_it_outdated():
    target, other = fused(fusable_target("qwen2")), fusable_target("qwen2")
    target.model.load_state_dict(other.model.state_dict(), assign=True)
    assert target.fused.outdated


def test_copies_compute_for_themselves():
    """A copy of the model is plain; a copy of the target has kernels of its own. Neither reads the original."""
    target = fused(fusable_target("qwen2"))
    own = verified(target, FEW)
    model, whole = Target(copy.deepcopy(target.model)), copy.deepcopy(target)
    with torch.no_grad():
        for parameter in target.model.parameters():
            parameter.zero_()
    assert model.fused is None
    assert whole.fused is not None
    for found in (verified(model, FEW), verified(whole, FEW)):
        assert relative_error(found[0], own[0]) < ROUNDING
    check_forwards(fused(model), own, trees=FEW)


def test_no_weight_is_stored_twice():
    target = fusable_target("qwen2")
    before = sum(p.nbytes for p in target.model.parameters())
    fused(target)
    stores = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in target.model.parameters()}
    assert sum(stores.values()) == before
