"""The memory that models take, and the batch that is left room: by hand, and as published by those who served them."""

import json
from dataclasses import replace

import pytest

from simulate.device_memory import DeviceMemory
from simulate.drafter_kinds import DrafterShape, drafter_shape, no_work
from simulate.model_sizes.forward_pass import Forward
from simulate.model_sizes.hf_config import text_part
from simulate.model_sizes.layer_weights_and_kv import LayerAttention
from simulate.model_sizes.model_shape import Shape
from treeopt.errors import CostError
from treeopt.storage.user_files import shipped

MODELS = json.loads(shipped("model_configs.json").read_text("utf-8"))["models"]
H20 = 96 * 2**30


def memory(cost, *, heads=1, context=None):
    sizes = {name: getattr(cost, name) for name in ("devices", "tensor", "weight_bytes", "draft_bytes", "kv_bytes")}
    context = cost.context if context is None else context
    return DeviceMemory.of(cost.target, cost.drafter, context=context, heads=heads, **sizes)


def weights(cost, **how):
    both = memory(cost, **how)
    return both.weights + both.drafter


def sequence(cost, **how):
    both = memory(cost, **how)
    return both.sequence + both.drafted


def test_room_is_what_weights_leave():
    both = DeviceMemory(weights=50, drafter=8, sequence=2, drafted=1, snapshot=1, total=100, share=1.0)
    assert (both.batch(), both.batch(1), both.batch(3)) == (25, 10, 7)
    assert replace(both, total=52).batch(1) == 0
    assert replace(both, total=None).batch() is None


def test_memory_that_a_profile_does_not_state_is_refused():
    for wrong in ({"512": {"weights": 1}}, {"x": {}}, [1], {"512": 3}):
        with pytest.raises(CostError, match="the profile's memory cannot be read: "):
            DeviceMemory.at(wrong, 512)


def decoder(layers, kv_heads, head_dim, weights):
    """A drafter's layers, of which only weights and cached numbers matter."""
    kept = LayerAttention(kv_heads, kv_heads, head_dim, head_dim, 2 * head_dim)
    return DrafterShape(Forward(((1, weights, 1),), layers=layers, attention=((layers, kept),)))


def test_a_drafter_and_states_take_a_quarter_of_the_pool():
    """vllm-project/recipes#839: 1,559,405 tokens with MTP of 3, 1,156,401 with DFlash2 of 7, contexts of 256,000.

    Qwen3.8-27B in fp8 on an H20; its layers are those of Qwen3.5-27B: 48 linear, 16 whole, 64 KiB a token in bf16, and
    its DFlash2 drafter has 5 layers of 20 KiB together (450,060 tokens in 27.5 and 8.6 GiB, sgl-project/sglang#40665).
    The pool of 1.56 M tokens fits the card only if keys and values are fp8's. Weights of both drafters by their layers;
    nothing is fitted. The pools themselves are 12 % too large: activations and graphs are not counted.
    """
    quantised = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    target = Shape.from_config({**text_part(MODELS["Qwen/Qwen3.5-27B"]), **quantised}, as_stored=True)
    layer = 3 * 5120 * 17408  # its MLP
    mtp = decoder(1, 4, 256, layer + 5120 * (3 * 24 + 2 * 4) * 256 + 2 * 5120**2)
    dflash = decoder(5, 8, 128, 5 * (layer + 5120 * (2 * 32 + 2 * 8) * 128) + 5 * 5120**2)
    place = {"context": 256_000, "kv_bytes": 1.0, "total": H20}
    pools = []
    for drafter, nodes, draft_bytes in ((mtp, 3, 1.0), (dflash, 7, 2.0)):
        both = DeviceMemory.of(target, drafter, draft_bytes=draft_bytes, **place)
        room = both.share * both.total - both.weights - both.drafter
        pools.append(256_000 * room / (both.sequence + both.drafted + nodes * both.snapshot))
    assert pools[1] / pools[0] == pytest.approx(1_156_401 / 1_559_405, rel=0.02)
    assert pools == pytest.approx([1_559_405, 1_156_401], rel=0.15)


def test_a_module_with_experts_is_held_with_all_of_them():
    """DeepSeek-V3's MTP module has 11.5 billion weights beside embedding and head: 256 experts, of which 8 are read."""
    config = MODELS["deepseek-ai/DeepSeek-V3"]
    target = Shape.from_config(config, as_stored=True)
    drafter = drafter_shape(config, kind="mtp", target=target)
    pair, experts, others = 2 * 2 * 7168**2, 256 * 3 * 7168 * 2048, 231e6  # bytes; others: attention, shared expert
    for degrees, held in (
        ({}, pair + experts + others),
        ({"devices": 8}, pair + (experts + others) / 8),
        ({"devices": 8, "tensor": 1}, pair + experts / 8 + others),
    ):
        assert DeviceMemory.of(target, drafter, context=1, **degrees).drafter == pytest.approx(held, rel=0.01)


def test_modules_that_are_not_like_the_last_layer():
    """Nemotron-H's has a layer of experts beside its attention; MiMo-V2's is dense, 0.33 billion weights, windowed.

    A draft vocabulary needs an LM head of its own.
    """
    for name, weights in (
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", 2.94e9),
        ("XiaomiMiMo/MiMo-V2-Flash", 0.33e9),
    ):
        target = Shape.from_config(MODELS[name])
        drafter = drafter_shape(MODELS[name], kind="mtp", target=target)
        held = DeviceMemory.of(target, drafter, context=1)
        assert held.drafter / 2 == pytest.approx(weights, rel=0.01)
        fewer = drafter_shape(
            MODELS[name] | {"draft_vocab_size": 1000, "architectures": ["MTP"]}, kind="mtp", target=target
        )
        assert DeviceMemory.of(target, fewer, context=1).drafter - held.drafter == 2 * 1000 * target.hidden
    assert drafter.level.attention[0][1].window == 128
    ernie = {"model_type": "ernie4_5_moe", "hidden_size": 2560, "intermediate_size": 12288, "num_attention_heads": 20}
    ernie |= {"num_key_value_heads": 4, "num_hidden_layers": 28, "vocab_size": 103424, "moe_intermediate_size": 1536}
    ernie |= {"moe_num_experts": 64, "moe_k": 6, "moe_num_shared_experts": 2, "moe_layer_start_index": 1}
    dense = drafter_shape(ernie, kind="mtp").level
    assert (dense.routed, dense.weights) == ((), 2560 * (2 * 2560 + 28 * 128 + 20 * 128 + 3 * 12288 + 103424))


def test_states_of_those_that_run_alone():
    """vllm-project/vllm#57261: 635,699 tokens, 729,088 if only 8 running requests keep states for 3 drafted tokens.

    GLM-5.3-Flash, 4 devices, contexts of 32,768, a pool of 873 x 14,611,968 bytes on each; the MTP layer keeps as much
    as one of the 11 latent ones. vLLM pads states to pages (19 % more) and keeps one more for prefixes.
    """
    target = Shape.from_config(MODELS["zai-org/GLM-5.3-Flash"])
    both = DeviceMemory.of(target, no_work(), context=32_768, devices=4)
    kept = both.sequence + (both.sequence - both.snapshot) / 11
    pool = 873 * 14_611_968
    every, running = pool / (kept + 3 * both.snapshot), (pool - 8 * 3 * both.snapshot) / kept
    assert running / every == pytest.approx(729_088 / 635_699, rel=0.02)
    assert [32_768 * every, 32_768 * running] == pytest.approx([635_699, 729_088], rel=0.15)
