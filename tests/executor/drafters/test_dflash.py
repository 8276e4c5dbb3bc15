"""DFlash and DSpark: equal to transformers' own class, read from the layouts of their projects, priced as one pass."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

from executor.checkpoints import assumptions_of, load_drafter, save_drafter
from executor.drafters.base.drafter import Committed
from executor.drafters.base.recipe import recipes, replaced
from executor.drafters.dflash.drafter import spread_taps
from executor.prompts.prompt_files import Prompt
from executor.recording.collect_trace import collect
from executor.train.losses import Lesson
from executor.train.training_run import fresh_drafter
from simulate.drafter_kinds import drafter_shape, kind_of_drafter
from simulate.model_sizes.model_shape import Shape
from tests.helpers.drafters import admitted, random_drafter
from tests.helpers.models import HIDDEN, VOCABULARY, deep_target, generated, random_prompts, small_target
from treeopt.errors import CostError, ExecutorError, UsageError
from treeopt.traces.confidence_reliability import reliability

PLAIN = {"vocab_size": 16, "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2}
PLAIN |= {"num_key_value_heads": 2, "head_dim": 4}


def test_a_block_is_that_of_transformers_own_class():
    """Its context projection is `encoder`; its layers all see the whole block, with or without a window."""
    target = small_target()
    drafter = random_drafter("dflash", target)
    config = MuseGlimmerAssistantConfig(
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        rms_norm_eps=drafter.config.rms_norm_eps,
        rope_parameters=drafter.config.rope_parameters,
        layer_types=["full_attention"] * 2,
        target_layer_ids=[0, 1],
        block_size=6,
    )
    model = MuseGlimmerAssistantModel(config).eval()
    names = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    model.load_state_dict({names.get(name, name): value for name, value in drafter.state_dict().items()})
    text = torch.tensor(random_prompts((12, 12), seed=3))
    features = target.features(text, drafter.taps).features
    forced = list(drafter.teacher_forced(target, text, features, 5))
    for anchor in (0, 4, 9):
        block = torch.cat([text[:, anchor + 1, None], torch.full((2, 5), 3)], 1)
        with torch.no_grad():
            due = model(noise_embeds=target.embed(block), context_hidden_states=features[:, : anchor + 1])
        for k, level in enumerate(forced, 1):
            scores = target.scored(due.last_hidden_state[:, k])
            torch.testing.assert_close(level.scores[:, anchor], scores, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["dflash", "dflash-variants", "dflash-causal", "dspark"])
def test_it_is_written_and_read_again(tmp_path, name):
    target = small_target()
    drafter = random_drafter(name.replace("causal", "variants"), target)
    if name == "dflash-causal":
        drafter.causal = (True, True)
        with pytest.raises(ExecutorError, match="speculators' layout cannot express a causal layer without a window"):
            save_drafter(tmp_path, drafter, dtype="float32", meta={}, layout="speculators-dflash", target=target)
    for layout in [None, "speculators-dflash"] if name in ("dflash", "dflash-variants") else [None]:
        save_drafter(tmp_path, drafter, dtype="float32", meta={}, layout=layout, target=target)
        loaded = load_drafter(tmp_path, target)
        assert loaded.kind == drafter.kind == kind_of_drafter(tmp_path)
        kept = ("taps", "mask", "slots", "from_anchor", "windows", "causal")
        assert [getattr(loaded, each) for each in kept] == [getattr(drafter, each) for each in kept]
        text = torch.tensor(random_prompts((9,), seed=3))
        features = target.features(text, drafter.taps).features
        passes = (each.teacher_forced(target, text, features, 3) for each in (loaded, drafter))
        for found, due in zip(*passes, strict=True):
            torch.testing.assert_close(found.scores, due.scores)


@pytest.mark.parametrize(("name", "causal"), [("dflash", (False, False)), ("dflash-variants", (True, False))])
def test_speculators_default_of_windows_leaves_whole_layers_as_they_are(tmp_path, name, causal):
    """Its DFlashSpeculatorConfig, which writes `sliding_window_non_causal` false: full layers see the whole block."""
    target = small_target()
    drafter = random_drafter(name, target)
    save_drafter(tmp_path, drafter, dtype="float32", meta={}, layout="speculators-dflash", target=target)
    changed(tmp_path, sliding_window_non_causal=False)
    loaded = load_drafter(tmp_path, target)
    assert loaded.causal == causal
    assert "vLLM 0.32 takes it for all layers" in str(assumptions_of(loaded))
    changed(tmp_path, sliding_window_non_causal=True)
    assert load_drafter(tmp_path, target).causal == (False, False)


def test_modelopts_window_is_that_of_all_layers(tmp_path):
    """Modelopt 0.47's DFlashExporter writes layer_types that are all full; blocks are causal where it says so."""
    target = small_target()
    save_drafter(tmp_path, random_drafter("dflash", target), dtype="float32", meta={}, target=target)
    given = changed(tmp_path)["dflash_config"] | {"use_swa": True, "swa_window_size": 7}
    for causal, config in ((False, given), (False, given | {"causal": False}), (True, given | {"causal": True})):
        changed(tmp_path, dflash_config=config, sliding_window=7)
        loaded = load_drafter(tmp_path, target)
        assert (loaded.windows, loaded.causal) == ((7, 7), (causal, causal))
    types = ["full_attention", "sliding_attention"]
    changed(tmp_path, dflash_config=given, layer_types=types, use_sliding_window=True)
    assert load_drafter(tmp_path, target).windows == (None, 7)
    changed(tmp_path, dflash_config=given | {"swa_window_size": None}, sliding_window=None, layer_types=None)
    with pytest.raises(ExecutorError, match="sliding_window is None"):
        load_drafter(tmp_path, target)


def changed(folder, **fields):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, **fields, "treeopt_drafter": {}}))
    return config


def test_fields_are_read_or_refused_by_name(tmp_path):
    target = small_target()
    save_drafter(tmp_path, random_drafter("dflash", target), dtype="float32", meta={}, target=target)
    config = changed(tmp_path)["dflash_config"]
    shorter = load_drafter(f"dflash:4:{tmp_path}", target)
    assert (shorter.slots, shorter.max_depth) == (4, 3)
    with pytest.raises(UsageError, match=r"must be dflash:SLOTS:PATH"):
        load_drafter("dflash:no", target)
    save_drafter(tmp_path / "mtp", random_drafter("mtp", target), dtype="float32", meta={}, target=target)
    with pytest.raises(UsageError, match="holds no DFlash or DSpark drafter"):
        load_drafter(f"dflash:4:{tmp_path / 'mtp'}", target)
    for fields, words in (
        ({"dflash_config": config | {"mask_token_id": 9999}}, "mask_token_id must be a token of the target's"),
        ({"dflash_config": config | {"attention_sink_bias": True}}, "attention_sink_bias is not supported"),
        ({"dflash_config": config | {"target_layer_ids": [0, 7]}}, "must name layers of the target's 2"),
        ({"aux_hidden_state_layer_ids": [0, 1]}, "one list of target_layer_ids is needed"),
        ({"dflash_config": config, "aux_hidden_state_layer_ids": [1, 2], "block_size": 1}, "block_size must be 2"),
        ({"num_target_layers": 9}, "num_target_layers is 9"),
        ({"dflash_config": config | {"num_target_layers": 9}}, r"dflash_config\.num_target_layers is not read there"),
        ({"dflash_config": config | {"capture_layer_ids": [1]}}, r"dflash_config\.capture_layer_ids is not read there"),
        ({"dflash_config": config | {"swa_window_size": 9}}, r"dflash_config\.swa_window_size is not read there"),
        ({"target_layer_ids": [1, 0]}, r"target_layer_ids \[1, 0\] must be one value, found \[0, 1\] too"),
        ({"pard_token": 4}, "pard_token or ptd_token_id 4 must be one value, found 3 too"),
        ({"dflash_config": config | {"sample_from_anchor": "false"}}, "'false' must be true or false"),
        ({"is_causal": "no"}, "is_causal or causal 'no' must be true or false"),
        ({"markov_rank": 8}, "markov_rank must be 0"),
    ):
        before = changed(tmp_path, **fields)
        with pytest.raises(ExecutorError, match=words):
            load_drafter(tmp_path, target)
        (tmp_path / "config.json").write_text(json.dumps(before))


@pytest.mark.parametrize(
    ("fields", "from_anchor"),
    [
        ({}, True),
        ({"dspark_bonus_anchor": True}, False),
        ({"dspark_bonus_anchor": True, "sample_from_anchor": True}, True),
        ({"speculators_model_type": "dspark"}, False),
        ({"speculators_model_type": "dspark", "sample_from_anchor": True}, True),
    ],
)
def test_where_a_dspark_folder_does_not_say_it_the_anchor_scores_as_in_vllm(tmp_path, fields, from_anchor):
    """vLLM 0.32: `DSparkSpeculator` takes true, `update_dspark` of speculators' folders false."""
    target = small_target()
    save_drafter(tmp_path, random_drafter("dspark", target), dtype="float32", meta={}, target=target)
    assert changed(tmp_path, **{"sample_from_anchor": None} | fields)["sample_from_anchor"] is True
    assert load_drafter(tmp_path, target).from_anchor is from_anchor


def test_the_confidence_head_is_read_by_its_width_or_refused_in_one_line(tmp_path):
    """Its formula, sigmoid(w [h; W1[x]] + b), by the tensors that vLLM and DeepSpec store."""
    target = small_target()
    drafter = random_drafter("dspark", target)
    save_drafter(tmp_path, drafter, dtype="float32", meta={}, target=target)
    tensors = load_file(tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["enable_confidence_head"], config["confidence_head_with_markov"]) == (True, True)
    head, bias = (tensors[f"confidence_head.proj.{part}"] for part in ("weight", "bias"))
    text = torch.tensor(random_prompts((9, 9), seed=3))
    features = target.features(text, drafter.taps).features
    first, *_, last = drafter.teacher_forced(target, text, features, 6)
    state, none = drafter.begin(target, 2, 6, 30, 40), torch.zeros(2, 1, dtype=torch.long)
    drafter.admit(state, admitted(text, features, (4, 4)))
    nothing = Committed(none, features[:, :1], none, none[:, 0], in_place=True)
    drafter.extend(state, nothing, view=32, all_fed=False)
    drafter.level(state, text[:, 3, None], none)
    hidden = state.block
    for slot, level in ((0, first), (5, last)):
        read = torch.cat([hidden[:, slot], tensors["markov_head.markov_w1.weight"][text[:, 3 + slot]]], -1).double()
        due = 1 / (1 + (-(read @ head[0].double() + bias.double())).exp())
        torch.testing.assert_close(level.confidence[:, 2].sigmoid().double(), due, rtol=0, atol=1e-6)
    without = {name: value for name, value in tensors.items() if "confidence" not in name}
    narrow = tensors["confidence_head.proj.weight"][:, :HIDDEN].contiguous()
    for fields, changes, words in (
        ({}, without, "enable_confidence_head is true, but confidence_head.proj.weight is missing"),
        ({}, tensors | {"confidence_head.proj.weight": narrow}, rf"must have 1 row of {HIDDEN + 8} columns"),
        ({}, {k: v for k, v in tensors.items() if "markov_w1" not in k}, r"1 missing: markov_w1"),
        ({"markov_head_type": "gated"}, tensors, "markov_head_type 'gated' is not supported"),
        ({}, tensors | {"markov_head.markov_w2.weight": torch.ones(VOCABULARY, 5)}, r"markov_w2\.weight must be"),
    ):
        before = changed(tmp_path, **fields)
        save_file(changes, tmp_path / "model.safetensors")
        with pytest.raises(ExecutorError, match=words):
            load_drafter(tmp_path, target)
        (tmp_path / "config.json").write_text(json.dumps(before))
    changed(tmp_path, confidence_head_with_markov=False)
    save_file(tensors | {"confidence_head.proj.weight": narrow}, tmp_path / "model.safetensors")
    assert load_drafter(tmp_path, target).confidence_head.in_features == HIDDEN


def test_the_head_s_confidences_are_recorded_with_the_trace():
    target = deep_target()
    drafter = random_drafter("dspark", target)
    prompts = random_prompts((6, 4), seed=2)
    trace = collect(target, drafter, [Prompt("")] * 2, prompts, new_tokens=9, depth=3, width=1, confidences=True)
    assert trace.meta["confidence"] == "head"
    text = torch.tensor([[*prompts[0], *generated(target.model, prompts[0], 9)]])
    level = next(iter(drafter.teacher_forced(target, text, target.features(text, drafter.taps).features, 1)))
    due = level.confidence[0, 4:13].sigmoid()
    # Half precision holds 11 bits.
    torch.testing.assert_close(torch.tensor(trace.confidence[:9, 0]).float(), due, rtol=0, atol=1e-3)
    assert reliability(trace).bins


def test_training_learns_from_some_anchors_and_weighs_slots():
    target = deep_target()
    recipe = replaced(recipes()["dflash"], ["layers=2", "depths=3", "anchors=4"])
    assert recipe.weight(3) / recipe.weight(1) == pytest.approx(torch.tensor(-0.5).exp().item())
    lesson = Lesson(fresh_drafter(recipe, target), target, recipe).train()
    tokens = torch.tensor(random_prompts((20, 20), seed=1))
    mask = torch.ones_like(tokens, dtype=torch.bool)
    torch.manual_seed(0)
    rows = lesson._drawn(tokens)
    assert rows.shape == (2, 4)
    torch.manual_seed(0)
    loss = lesson(tokens, mask)["loss"]
    outputs = target.features(tokens, lesson.drafter.taps)
    due = torch.zeros((), dtype=torch.float64)
    for k, level in enumerate(lesson.drafter.teacher_forced(target, tokens, outputs.features, 3), 1):
        pairs = [(level.scores[b, t].double(), outputs.logits[b, t + k].double()) for b in (0, 1) for t in rows[b]]
        q, p = (torch.stack(values).log_softmax(-1) for values in zip(*pairs, strict=True))
        due += recipe.weight(k) * (p.exp() * (p - q)).sum(-1).mean()
    assert loss.item() == pytest.approx(due.item(), rel=1e-5)
    assert spread_taps(36, 5) == (2, 10, 18, 26, 34)


def test_a_block_is_priced_as_one_forward_of_all_its_slots():
    config = PLAIN | {"block_size": 8, "dflash_config": {"target_layer_ids": [1, 2, 3]}}
    target = Shape.from_config({"model_type": "llama", **PLAIN})
    shape = drafter_shape(config, kind="dflash", target=target)
    assert (shape.slots, shape.parallel, shape.at(1).weights) == (8, True, 0)
    assert shape.opening.weights == 2 * 2 * 8 * 8 + 8 * 24
    dspark = drafter_shape(config | {"markov_rank": 4}, kind="dspark", target=target)
    assert dspark.at(1).weights == 4 * PLAIN["vocab_size"]
    nested = drafter_shape(config | {"dspark_config": {"markov_rank": 4}}, kind="dspark", target=target)
    assert (nested, nested.longest) == (dspark, 8)
    window = {"layer_types": ["sliding_attention"] * 2, "use_sliding_window": True, "sliding_window": 5}
    inside = {"block_size": 8, "transformer_layer_config": PLAIN, "aux_hidden_state_layer_ids": [1, 2, 3], **window}
    assert drafter_shape(inside, kind="dflash", target=target).level.attention[0][1].window == 5
    for more, said in (
        ({"kv_lora_rank": 4}, "latent attention"),
        ({"n_routed_experts": 4}, "experts"),
        ({"dflash_config": {"projector_type": "domino"}}, "kind domino"),
        ({"dflash_config": {"attention_modes": ["gqa", "kda"]}}, "kind kda"),
    ):
        with pytest.raises(CostError, match=f"a DFlash drafter .*{said} has no price"):
            drafter_shape(config | more, kind="dflash", target=target)
    with pytest.raises(CostError, match="a field that describes the drafter holds a value of another kind"):
        drafter_shape(config | {"dflash_config": {"target_layer_ids": 4.0}}, kind="dflash", target=target)
    assert drafter_shape(PLAIN, kind="dflash", target=target).slots == 16
