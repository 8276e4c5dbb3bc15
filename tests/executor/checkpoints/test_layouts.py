"""Every layout, written and read; and the spellings of other projects, made here from what their code says."""

import copy
import json
import re

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from executor.checkpoints import load_drafter, save_drafter
from executor.checkpoints.convert import main as convert
from executor.drafters.base.decoder_layer import layer_config
from executor.drafters.eagle3.drafter import Eagle3
from executor.drafters.medusa.drafter import MedusaHeads
from executor.target.target_model import Target
from tests.helpers.checkpoint_files import assert_same, config_of, put_down, refused, tensors_of, written
from tests.helpers.drafters import MAKE, random_drafter
from tests.helpers.models import HIDDEN, SMALL, VOCABULARY, deep_target, random_heads, random_prompts, small_target
from treeopt.errors import ExecutorError, UsageError

IDS = torch.arange(VOCABULARY)[torch.arange(VOCABULARY) % 6 != 1]
NORMS = ["input_layernorm", "hidden_norm", "post_attention_layernorm"]
PROJECTIONS = [f"self_attn.{x}_proj" for x in "qkvo"] + [f"mlp.{x}_proj" for x in ("gate", "up", "down")]


OWN = {
    "medusa": MAKE["medusa"],
    "medusa-shared-head": lambda t: random_heads(heads=3, layers=2),
    "eagle3-full": lambda t: plain_eagle3(t),
}
CASES = [(name, None) for name in [*MAKE, *OWN]] + [
    ("medusa", "medusa-v1"),
    ("medusa", "vllm-medusa"),
    ("medusa-shared-head", "medusa-v2"),
    ("medusa-shared-head", "vllm-medusa"),
    ("hydra", "hydra"),
    ("hydra++", "hydra"),
    ("eagle", "eagle"),
    ("eagle", "eagle-sglang"),
    ("eagle-qkv-bias", "eagle"),
    ("coral-router", "eagle"),
    *[
        (name, layout)
        for name in ("eagle3", "eagle3-full")
        for layout in ("eagle3", "eagle3-vllm", "speculators-eagle3")
    ],
    *[(name, "eagle3-specforge") for name in ("eagle3", "eagle3-input-norm")],
    *[("eagle3-variants", layout) for layout in ("eagle3-vllm", "speculators-eagle3")],
]


def plain_eagle3(target, **options) -> Eagle3:
    config = layer_config(target.model.config)
    return Eagle3(config, taps=(2, 3, 4), target_hidden=HIDDEN, vocabulary=VOCABULARY, **options)


def made(name, target):
    if name in MAKE:
        return random_drafter(name, target)
    torch.manual_seed(0)
    drafter = OWN[name](target)
    for parameter in drafter.parameters():
        torch.nn.init.normal_(parameter, std=0.25)
    return drafter.eval().requires_grad_(False)


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_written_and_read_twice(tmp_path, target, name, layout):
    drafter = made(name, target)
    meta = {"target": "tiny", "recipe": "none", "kind": "what it says itself counts"}
    save_drafter(tmp_path / "a", drafter, dtype="float32", meta=meta, layout=layout, target=target)
    first = load_drafter(tmp_path / "a", target)
    assert_same(first, drafter, target)
    save_drafter(tmp_path / "b", first, dtype="float32", meta={}, layout=layout, target=target)
    assert_same(load_drafter(tmp_path / "b", target), drafter, target)
    ours = config_of(tmp_path / "a")["treeopt_drafter"]
    assert (ours["kind"], ours["target"], ours["recipe"]) == (drafter.kind, "tiny", "none")


# --- names, as the projects' own code reads them


def keys(pattern: str, names, parts=("weight",)) -> set[str]:
    return {f"{pattern.format(name)}.{part}" for name in names for part in parts}


NAMES = {
    ("medusa", "medusa-v1"): keys("{}.linear", [f"{k}.{n}" for k in range(5) for n in range(2)], ("weight", "bias"))
    | keys("{}.2", range(5)),
    ("medusa", "vllm-medusa"): keys(
        "blocks.{}", [f"{k}.layers.{n}" for k in range(5) for n in range(2)], ("weight", "bias")
    )
    | keys("lm_heads.{}", range(5)),
    ("hydra", "hydra"): keys("hydra_mlp.{}.0.linear", range(5), ("weight", "bias"))
    | keys("hydra_mlp.{}.0.res_connection", range(5), ("weight", "bias"))
    | keys("hydra_lm_head.{}", range(5), ("weight", "bias")),
    ("hydra++", "hydra"): keys(
        "hydra_mlp.{}.linear", [f"{i}.{place}" for i in range(5) for place in (1, 3, 5, 7)], ("weight", "bias")
    )
    | keys("hydra_mlp.{}.1.res_connection", range(5), ("weight", "bias"))
    | keys("hydra_lm_head.{}.1", range(5), ("weight", "bias"))
    | keys(
        "prefix_embeding_layer.{}",
        ["norm", *[f"layers.0.{x}" for x in [*PROJECTIONS, "input_layernorm", "post_attention_layernorm"]]],
    ),
    ("coral-router", "eagle"): keys("layers.0.{}", [*PROJECTIONS, "post_attention_layernorm"])
    | keys("{}", ["fc", "router.w1"], ("weight", "bias"))
    | keys("{}", ["router.w2", "embed_tokens"]),
    ("eagle3", "eagle3"): keys("midlayer.{}", PROJECTIONS + NORMS)
    | keys("{}", ["fc", "norm", "lm_head"])
    | {"d2t", "t2d"},
    ("eagle3", "eagle3-vllm"): keys("layers.0.{}", PROJECTIONS + NORMS)
    | keys("{}", ["fc", "norm", "lm_head"])
    | {"d2t", "t2d"},
    ("eagle3-variants", "speculators-eagle3"): keys("layers.0.{}", PROJECTIONS + NORMS)
    | keys("{}", ["fc", "norm", "lm_head", "embed_tokens", "fc_norm.0", "fc_norm.1", "fc_norm.2"]),
}


@pytest.mark.parametrize(("name", "layout"), NAMES)
def test_names_are_the_projects_own(tmp_path, target, name, layout):
    save_drafter(tmp_path, made(name, target), dtype="bfloat16", meta={}, layout=layout, target=target)
    tensors = tensors_of(tmp_path)
    assert set(tensors) == NAMES[name, layout]
    assert {t.dtype for t in tensors.values()} <= {torch.bfloat16, torch.int64, torch.bool}


def test_files_and_configurations_are_the_projects_own(tmp_path, target):
    for name, layout, file in [
        ("hydra", "hydra", "hydra_lm_head.pt"),
        ("eagle", "eagle", "pytorch_model.bin"),
        ("eagle", "eagle-sglang", "pytorch_model.bin"),
        ("eagle3", "eagle3", "pytorch_model.bin"),
        ("eagle3", "eagle3-specforge", "model.safetensors"),
    ]:
        save_drafter(tmp_path / layout, made(name, target), dtype="float16", meta={}, layout=layout, target=target)
        assert {path.name for path in (tmp_path / layout).iterdir()} == {file, "config.json"}
    forge, eagle = config_of(tmp_path / "eagle3-specforge"), config_of(tmp_path / "eagle")
    assert forge["architectures"] == ["LlamaForCausalLMEagle3"]
    assert forge["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3]  # by what layers put out
    assert (forge["draft_vocab_size"], forge["vocab_size"]) == (len(IDS), VOCABULARY)
    assert "bias" not in eagle  # the reference takes it for true, vLLM takes true for attention biases
    served = config_of(tmp_path / "eagle-sglang")
    assert (served["architectures"], served["bias"]) == (["LlamaForCausalLMEagle"], False)
    assert (eagle["num_hidden_layers"], eagle["torch_dtype"]) == (1, "float16")
    save_drafter(tmp_path / "s", made("eagle3-variants", target), dtype="float32", meta={}, layout="speculators-eagle3")
    said = config_of(tmp_path / "s")
    assert (said["speculators_model_type"], said["norm_before_residual"], said["norm_output"]) == ("eagle3", True, True)
    assert said["transformer_layer_config"]["num_key_value_heads"] == 2


@pytest.mark.parametrize("prefixed", [False, True])
def test_hydra_tensors_mean_what_the_published_code_makes_of_them(tmp_path, target, prefixed):
    """Head i by the formula of the paper, from the file's own names."""
    drafter = made("hydra++" if prefixed else "hydra", target)
    save_drafter(tmp_path, drafter, dtype="float32", meta={}, layout="hydra")
    held = tensors_of(tmp_path)
    text = torch.tensor(random_prompts((8,), seed=1))
    features = target.features(text).features
    given = features
    if prefixed:  # a one-layer Llama over features
        config = LlamaConfig(**{**SMALL, "num_key_value_heads": 2, "num_hidden_layers": 1})
        llama = LlamaForCausalLM(config).model
        own = {name.removeprefix("prefix_embeding_layer."): t for name, t in held.items() if name.startswith("prefix")}
        assert llama.load_state_dict(own, strict=False).missing_keys == ["embed_tokens.weight"]
        given = llama(inputs_embeds=features).last_hidden_state
    loaded = load_drafter(tmp_path, target)
    found = [forced.scores for forced in loaded.teacher_forced(target, text, features, 3)]

    def linear(name, x):
        return x @ held[f"{name}.weight"].T + held[f"{name}.bias"]

    for i in range(3):
        given = torch.cat([given, target.embed(text.roll(-1 - i, 1))], 2)
        base = f"hydra_mlp.{i}.{int(prefixed)}"
        z = linear(f"{base}.res_connection", given) + torch.nn.functional.silu(linear(f"{base}.linear", given))
        for place in (3, 5, 7) if prefixed else ():
            z = z + torch.nn.functional.silu(linear(f"hydra_mlp.{i}.{place}.linear", z))
        due = linear(f"hydra_lm_head.{i}.1" if prefixed else f"hydra_lm_head.{i}", z)
        torch.testing.assert_close(found[i], due, rtol=1e-5, atol=1e-4)


# --- what others leave


def test_medusa_inside_a_full_model_in_shards(tmp_path, target):
    """Medusa-2: the heads beside the model's own tensors; the folder is target and drafter."""
    heads = made("medusa", target)
    save_drafter(tmp_path / "heads", heads, dtype="float32", meta={})
    own = {f"medusa_head.{name}": value for name, value in tensors_of(tmp_path / "heads").items()}
    base = {name: value.clone() for name, value in target.model.state_dict().items()}
    parts = {"model-00001-of-00002.safetensors": own, "model-00002-of-00002.safetensors": base}
    for name, tensors in parts.items():
        put_down(tmp_path / "full", tensors, name=name)
    places = {key: name for name, tensors in parts.items() for key in tensors}
    (tmp_path / "full" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (tmp_path / "full" / "config.json").write_text('{"model_type": "llama", "medusa_num_heads": 2}')
    assert_same(load_drafter(tmp_path / "full", target), heads, target)


@pytest.mark.parametrize("prefix", ["", "medusa_heads."])
def test_vllm_medusa_without_biases(tmp_path, target, prefix):
    heads = random_heads(heads=2, own=True)
    heads.bias.zero_()
    tensors = {f"{prefix}blocks.{k}.layers.0.weight": heads.weight[k, 0] for k in range(2)}
    tensors |= {f"{prefix}lm_heads.{k}.weight": heads.output[k] for k in range(2)}
    tensors["token_map"] = torch.arange(VOCABULARY)
    put_down(tmp_path, tensors, {"model_type": "medusa", "num_heads": 7})
    assert_same(load_drafter(tmp_path, target), heads, target)
    put_down(tmp_path, tensors | {"token_map": torch.arange(40)})
    refused(tmp_path, target, "token_map: heads that score only 40 of 61 tokens are not supported")


def test_vllm_medusa_with_one_output_for_all(tmp_path, target):
    heads = random_heads(heads=3)
    tensors = {
        f"blocks.{k}.layers.0.{part}": getattr(heads, part)[k, 0] for k in range(3) for part in ("weight", "bias")
    }
    put_down(tmp_path, tensors | {"lm_heads.0.weight": target.head.weight.half()}, {"original_lm_head": True})
    assert_same(load_drafter(tmp_path, target), heads, target)
    other = torch.randn(VOCABULARY, HIDDEN)
    put_down(tmp_path, tensors | {"lm_head.weight": other})
    found = load_drafter(tmp_path, target)
    assert torch.equal(found.output, other.expand(3, -1, -1))


def test_hydra_with_what_nothing_uses(tmp_path, target):
    drafter = made("hydra++", target)
    held, config = written(tmp_path / "a", drafter, "hydra")
    tensors = {f"module.{name}": value for name, value in held.items()}
    front = "module.prefix_embeding_layer."
    tensors[f"{front}embed_tokens.weight"] = torch.randn(VOCABULARY, HIDDEN)
    tensors[f"{front}rotary_emb.inv_freq"] = torch.ones(4)
    tensors[f"{front}layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    config = config | {"hydra_num_heads": 2, "hydra_num_layers": 1}  # tensors decide
    put_down(tmp_path / "b", tensors, config, name="hydra_lm_head.pt")
    assert_same(load_drafter(tmp_path / "b", target), drafter, target)


def test_hydra_blocks_that_are_one_may_be_stored_once(tmp_path, target):
    """safetensors' own save_model leaves copies out; then the configuration is believed."""
    drafter = made("hydra++", target)
    held, config = written(tmp_path / "a", drafter, "hydra")
    once = {name: t for name, t in held.items() if not re.match(r"hydra_mlp\.\d\.[57]", name)}
    put_down(tmp_path / "b", once, config)
    assert_same(load_drafter(tmp_path / "b", target), drafter, target)


def test_hydra_heads_that_do_not_read_drafted_tokens(tmp_path, target):
    """Published without skip connections, all blocks one: z = h, then z = z + SiLU(A z + a) for each layer."""
    torch.manual_seed(0)
    tensors = {}
    for i in range(2):
        weight, bias = torch.randn(HIDDEN, HIDDEN) / 8, torch.randn(HIDDEN)
        for place in (0, 1, 2):
            tensors |= {f"hydra_mlp.{i}.{place}.linear.weight": weight, f"hydra_mlp.{i}.{place}.linear.bias": bias}
        tensors |= {f"hydra_lm_head.{i}.weight": torch.randn(VOCABULARY, HIDDEN)}
        tensors |= {f"hydra_lm_head.{i}.bias": torch.randn(VOCABULARY)}
    put_down(tmp_path, tensors, {"hydra_head_arch": "mlp", "grounded_heads": False}, name="hydra_lm_head.pt")
    text = torch.tensor(random_prompts((6,)))
    z = features = target.features(text).features
    found = next(iter(load_drafter(tmp_path, target).teacher_forced(target, text, features, 1))).scores
    for _ in range(3):
        z = z + torch.nn.functional.silu(
            z @ tensors["hydra_mlp.0.0.linear.weight"].T + tensors["hydra_mlp.0.0.linear.bias"]
        )
    due = z @ tensors["hydra_lm_head.0.weight"].T + tensors["hydra_lm_head.0.bias"]
    torch.testing.assert_close(found, due, rtol=1e-5, atol=1e-4)


@pytest.fixture(scope="module")
def eagle(target, tmp_path_factory):
    """An EAGLE of random weights, its tensors as the reference names them, and its configuration."""
    drafter = made("eagle", target)
    return drafter, *written(tmp_path_factory.mktemp("eagle"), drafter, "eagle", target)


def test_eagle_of_accelerate(tmp_path, target, eagle):
    drafter, tensors, config = eagle
    tensors = {f"module.{name}": value for name, value in tensors.items()}
    tensors["module.embed_tokens.weight"] = tensors["module.embed_tokens.weight"].half()
    put_down(tmp_path, tensors, config | {"num_hidden_layers": 7, "bias": False}, name="pytorch_model.bin")
    torch.save({"step": 1}, tmp_path / "optimizer.bin")
    assert_same(load_drafter(tmp_path, target), drafter, target)


def test_eagle_converted_for_vllm(tmp_path, target, eagle):
    drafter, tensors, config = eagle
    tensors = {name if name.startswith("fc.") else f"model.model.{name}": value for name, value in tensors.items()}
    tensors |= {"lm_head.weight": target.head.weight, "token_map": torch.arange(VOCABULARY, dtype=torch.int32)}
    put_down(tmp_path, tensors, {"model_type": "eagle", "model": config, "eagle_fc_bias": True})
    assert_same(load_drafter(tmp_path, target), drafter, target)


def test_eagle_of_speculators(tmp_path, target, eagle):
    drafter, tensors, config = eagle
    tensors = {
        name.replace("fc.", "fusion_fc.").replace("layers.0.", "transformer."): value
        for name, value in tensors.items()
        if "embed" not in name
    }
    said = {"speculators_model_type": "eagle", "transformer_layer_config": config, "layernorms": False}
    put_down(tmp_path, tensors, said)
    assert_same(load_drafter(tmp_path, target), drafter, target)


def test_a_router_without_bias(tmp_path, target):
    drafter = made("coral-router", target)
    drafter.router.w1.bias.zero_()
    held, config = written(tmp_path / "a", drafter)
    tensors = {name: value for name, value in held.items() if name != "router.w1.bias"}
    config = config | {"router_num_groups": 3}
    put_down(tmp_path / "b", tensors, config)
    found = load_drafter(tmp_path / "b", target)
    assert (found.groups, found.active) == (8, 2)  # as published; ours says 3
    found.active = 3
    assert_same(found, drafter, target)


def test_eagle3_of_vllm(tmp_path, target, eagle3):
    drafter, tensors, config = eagle3
    tensors = {f"model.{name}" if name.startswith("layers") else name: value for name, value in tensors.items()}
    tensors["draft_id_to_target_id"] = tensors.pop("d2t").int()
    tensors["model.embed_tokens.weight"] = target.model.get_input_embeddings().weight.bfloat16()
    config = {key: value for key, value in config.items() if "eagle" not in key}  # a small target's begin with 1
    put_down(tmp_path, tensors, config)
    assert_same(load_drafter(tmp_path, target), drafter, target)


def test_eagle3_of_the_reference_with_nothing_said(tmp_path, target, eagle3):
    """No configuration at all; which tokens are drafted, either tensor says."""
    drafter, tensors, _ = eagle3
    tensors = {name.replace("layers.0", "midlayer"): value for name, value in tensors.items()}
    for i, gone in enumerate(("t2d", "d2t")):
        left = {name: value for name, value in tensors.items() if name != gone}
        put_down(tmp_path / str(i), left, name="pytorch_model.bin")
        assert_same(load_drafter(tmp_path / str(i), target), drafter, target)


def test_eagle3_narrower_than_its_target(tmp_path, target):
    config = LlamaConfig(**{**SMALL, "hidden_size": 16, "num_key_value_heads": 2})
    drafter = Eagle3(config, taps=(2, 0), target_hidden=HIDDEN, vocabulary=VOCABULARY, own_embeddings=True)
    drafter.eval().requires_grad_(False)
    save_drafter(tmp_path, drafter, dtype="float32", meta={})
    found = load_drafter(tmp_path, target)
    assert found.taps == (2, 0)
    assert_same(found, drafter, target)
    for layout in ("eagle3", "eagle3-specforge", "eagle3-vllm", "speculators-eagle3"):
        with pytest.raises(ExecutorError, match=rf"{layout} cannot express layers \(2, 0\): engines read them in the"):
            save_drafter(tmp_path, drafter, dtype="float32", meta={}, layout=layout)


OUTER, INNER = "eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids"


@pytest.mark.parametrize(
    ("said", "taps"),
    [
        ({}, (2, 5, 7)),
        ({OUTER: [1, 4, 6], "speculators_model_type": "eagle3"}, (1, 4, 6)),
        ({"eagle_config": {"layer_ids": [1, 4, 6]}}, (1, 4, 6)),
        ({"eagle_config": {OUTER: [1, 4, 6]}}, (2, 5, 7)),  # SpecForge
        ({"target_layer_ids": [0, 3, 5], "num_target_layers": 10}, (1, 4, 6)),  # DeepSpec
        ({"eagle_config": {"target_layer_ids": [0, 3, 5]}}, (1, 4, 6)),
        ({"eagle_config": {OUTER: [2, 5, 7]}}, (2, 5, 7)),  # EAGLE's own
        # The two ways to count, of the same layers; and vLLM's, which counts inputs in both places.
        ({OUTER: [2, 5, 7], "eagle_config": {INNER: [1, 4, 6]}}, (2, 5, 7)),
        ({INNER: [1, 4, 6], "eagle_config": {OUTER: [1, 4, 6]}}, (1, 4, 6)),
    ],
)
def test_layers_that_eagle3_reads(tmp_path, eagle3, said, taps):
    config = {key: value for key, value in eagle3[2].items() if "eagle" not in key}
    put_down(tmp_path, eagle3[1], config | said)
    assert load_drafter(tmp_path, deep_target(10)).taps == taps


def test_numbers_of_specforge_come_back(tmp_path, target):
    """Three layers that SpecForge's file cannot tell from EAGLE's usual inputs are refused; others are themselves."""
    deep, config = deep_target(12), layer_config(target.model.config)
    for taps in ((2, 6, 9), (3, 6, 9), (1, 7, 12), (3, 7, 10)):
        drafter = Eagle3(config, taps=taps, target_hidden=HIDDEN, vocabulary=VOCABULARY)
        if taps == (3, 7, 10):
            with pytest.raises(ExecutorError, match=r"cannot express layers \(3, 7, 10\), whose numbers there"):
                save_drafter(tmp_path / "no", drafter, dtype="float32", meta={}, layout="eagle3-specforge", target=deep)
            continue
        folder = tmp_path / str(taps)
        save_drafter(folder, drafter, dtype="float32", meta={}, layout="eagle3-specforge", target=deep)
        put_down(folder, tensors_of(folder), config_of(folder))
        assert load_drafter(folder, deep).taps == taps


def test_eagle3_without_an_lm_head_takes_the_targets(tmp_path, target):
    """SGLang and vLLM do so where all tokens are drafted; a smaller number says that a head is missing."""
    drafter = made("eagle3-full", target)
    drafter.lm_head.weight.copy_(target.head.weight)
    held, config = written(tmp_path / "a", drafter, "eagle3-vllm")
    tensors = {name: value for name, value in held.items() if name != "lm_head.weight"}
    for drafted in (None, VOCABULARY):
        put_down(tmp_path / "b", tensors, config | {"draft_vocab_size": drafted})
        assert_same(load_drafter(tmp_path / "b", target), drafter, target)
    put_down(tmp_path / "b", tensors, config | {"draft_vocab_size": 40})
    with pytest.raises(ExecutorError, match=r"1 missing: lm_head\.weight"):
        load_drafter(tmp_path / "b", target)


def test_what_the_references_code_cannot_run_is_not_written_for_it(tmp_path, target, eagle, eagle3):
    taps = Eagle3(layer_config(target.model.config), taps=(1, 3, 4), target_hidden=HIDDEN, vocabulary=VOCABULARY)
    scaled = [copy.deepcopy(drafter) for drafter, *_ in (eagle, eagle3)]
    for drafter in scaled:
        drafter.config.rope_parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    for drafter, layout, why in (
        (taps, "eagle3", r"eagle3 cannot express layers \(1, 3, 4\)"),
        (scaled[0], "eagle", "eagle cannot express scaled rotary positions"),
        (scaled[1], "eagle3", "eagle3 cannot express scaled rotary positions"),
    ):
        with pytest.raises(ExecutorError, match=why):
            save_drafter(tmp_path / "out", drafter, dtype="float32", meta={}, layout=layout, target=target)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("said", "theta", "kind"),
    [
        ({}, 5e5, "linear"),
        ({"hidden_size": HIDDEN}, 1e4, "default"),
        ({"rope_theta": 7.0}, 7.0, "default"),
        ({"rope_scaling": {"type": "linear", "factor": 3.0}}, 5e5, "linear"),
    ],
)
def test_rotary_positions_are_the_checkpoints_else_the_targets(tmp_path, eagle, said, theta, kind):
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    torch.manual_seed(0)
    config = LlamaConfig(**SMALL, num_key_value_heads=2, rope_parameters=rope, rms_norm_eps=1e-3)
    target = Target(LlamaForCausalLM(config))
    tensors = {name: value for name, value in eagle[1].items() if "embed" not in name}
    put_down(tmp_path, tensors, said)
    found = load_drafter(tmp_path, target).config
    assert (found.rope_parameters["rope_theta"], found.rope_parameters["rope_type"]) == (theta, kind)
    assert found.rms_norm_eps == (1e-6 if "hidden_size" in said else 1e-3)
    assert (found.num_attention_heads, found.num_key_value_heads) == (4, 2)


def test_embeddings_are_what_the_target_s_look_up_gives(tmp_path):
    """Gemma's is its table times the square root of the width; a checkpoint with the bare table is another's."""
    target = small_target("gemma")
    drafter = made("eagle", target)
    save_drafter(tmp_path / "a", drafter, dtype="float32", meta={}, layout="eagle", target=target)
    assert_same(load_drafter(tmp_path / "a", target), drafter, target)
    tensors = tensors_of(tmp_path / "a")
    (name,) = (name for name in tensors if "embed" in name)
    torch.testing.assert_close(tensors[name], target.embed(torch.arange(target.vocabulary)))
    table = target.model.get_input_embeddings().weight.detach().clone()
    assert not torch.allclose(tensors[name], table)
    put_down(tmp_path / "a", tensors | {name: table}, name="pytorch_model.bin")
    refused(tmp_path / "a", target, "is not the target's")


def test_types_and_places_are_the_targets(tmp_path, eagle):
    target = small_target(dtype=torch.bfloat16)
    put_down(tmp_path, {name: value for name, value in eagle[1].items() if "embed" not in name}, eagle[2])
    found = load_drafter(tmp_path, target)
    assert {value.dtype for value in found.parameters()} == {torch.bfloat16}
    assert not found.training
    assert not any(value.requires_grad for value in found.parameters())


# --- what a layout cannot express


@pytest.mark.parametrize(
    ("name", "layout", "message"),
    [
        ("medusa", "eagle", "layout of Medusa heads must be one of medusa-v1, medusa-v2, .* got eagle"),
        ("medusa", "medusa-v2", "medusa-v2 has no output layers"),
        ("medusa-shared-head", "vllm-medusa", "vllm-medusa holds the target's LM head: the target must be given"),
        ("eagle", "vllm", "vllm holds the target's embeddings: the target must be given"),
        ("hydra-ungrounded", "hydra", "hydra: heads that do not read drafted tokens"),
        ("eagle3-variants", "eagle3", "eagle3 cannot express norm_before_residual, norm_output, fc_norm: write spec"),
    ],
)
def test_layouts_that_cannot_say_it(tmp_path, target, name, layout, message):
    with pytest.raises((ExecutorError, UsageError), match=message):
        save_drafter(tmp_path, made(name, target), dtype="float32", meta={}, layout=layout)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_leaves_no_file(tmp_path, target):
    for layout in ("vllm", "eagle-sglang"):
        with pytest.raises(ExecutorError, match=f"{layout} has no router over the vocabulary"):
            save_drafter(tmp_path, made("coral-router", target), dtype="float32", meta={}, layout=layout, target=target)
    biased, layout = made("eagle-qkv-bias", target), "eagle-sglang"
    with pytest.raises(ExecutorError, match="eagle-sglang cannot express biases of queries, keys and values"):
        save_drafter(tmp_path, biased, dtype="float32", meta={}, layout=layout, target=target)
    with pytest.raises(ExecutorError, match="dtype must be one of float32"):
        save_drafter(tmp_path, made("eagle", target), dtype="int8", meta={})
    with pytest.raises(ExecutorError, match="a Linear has no layout"):
        save_drafter(tmp_path, torch.nn.Linear(2, 2), dtype="float32", meta={})
    large = MedusaHeads(1, 4)
    torch.nn.init.constant_(large.bias, 1e6)
    with pytest.raises(ExecutorError, match=r"0.0.linear.bias holds values that are not finite in float16"):
        save_drafter(tmp_path, large, dtype="float16", meta={})
    assert list(tmp_path.iterdir()) == []


# --- from one into another


def test_converting(tmp_path, target, capsys):
    target.model.save_pretrained(tmp_path / "target")
    heads = random_heads(heads=2)
    save_drafter(tmp_path / "own", heads, dtype="float32", meta={"recipe": "medusa1"})
    words = [str(tmp_path / name) for name in ("own", "target", "vllm")]
    assert convert([*words, "--layout", "vllm-medusa", "--dtype", "float32"]) == 0
    assert_same(load_drafter(tmp_path / "vllm", target), heads, target)
    said = config_of(tmp_path / "vllm")
    assert said["model_type"] == "medusa"
    ours = {"recipe": "medusa1", "target": "target", "converted_from": "own"}
    assert ours.items() <= said["treeopt_drafter"].items()
    assert convert([words[2], words[1], str(tmp_path / "back"), "--layout", "medusa-v2", "--dtype", "float32"]) == 0
    assert_same(load_drafter(tmp_path / "back", target), heads, target)
    capsys.readouterr()
    assert convert([*words, "--layout", "eagle3"]) == 2
    assert "layout of Medusa heads must be one of" in capsys.readouterr().err
    assert convert([words[0], words[1], words[0]]) == 1
    assert "folder is read from" in capsys.readouterr().err
