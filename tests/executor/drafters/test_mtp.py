"""MTP modules of DeepSeek's, Qwen3-Next's and MiMo's kind: read from targets' own folders, and from their own."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from executor.checkpoints import assumptions_of, load_drafter, save_drafter
from executor.decoding.decoder import Decoder
from executor.drafters.base.drafter import Committed
from executor.drafters.base.recipe import recipes
from executor.drafters.mtp.drafter import Mtp
from executor.drafters.mtp.several import SeveralMtp
from executor.prompts.prompt_files import Prompt
from executor.recording.collect_trace import collect
from executor.target.load_hf_model import load_target
from executor.target.target_model import Target
from executor.train.training_run import fresh_drafter
from simulate.drafter_kinds import assumptions, drafter_shape
from simulate.model_sizes.model_shape import Shape
from tests.helpers.drafters import admitted, random_drafter
from tests.helpers.model_families import family
from tests.helpers.models import generated, random_prompts, small_target
from tests.helpers.slow_params import slow_unless
from treeopt.errors import ExecutorError, UsageError
from treeopt.replay.static_tree import replay_tree
from treeopt.tree import Tree

KINDS = {"deepseek_v3": "deepseek", "qwen3_next": "qwen", "llama": "mimo"}


def with_module(folder: Path, name: str, *, count: int = 1) -> tuple[Target, Mtp | SeveralMtp]:
    """A target's folder that also holds modules of random weights, as its family writes them."""
    model = family(name).model
    model.save_pretrained(folder)
    if count > 1:
        rewritten(folder / "config.json", num_nextn_predict_layers=count)
    torch.manual_seed(0)
    target, of = load_target(folder), KINDS.get(name, "mimo")
    drafter = Mtp(target, of) if count == 1 else SeveralMtp(target, of, count)
    drafter.requires_grad_(False)
    for value in drafter.state_dict().values():
        torch.nn.init.normal_(value, mean=0.0 if value.dim() > 1 else 0.5, std=0.2)
    save_drafter(folder / "own", drafter, dtype="float32", meta={}, target=target)
    tensors = load_file(folder / "model.safetensors")
    tensors |= {f"model.{key}" if key.startswith("mtp_") else key: value
                for key, value in load_file(folder / "own" / "model.safetensors").items()}  # fmt: skip
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return load_target(folder), drafter


def rewritten(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


CASES = [*KINDS, "deepseek_v3-3", "llama-2"]


@pytest.mark.parametrize("case", slow_unless(lambda case: case in ("llama", "deepseek_v3-3"), CASES))
def test_modules_are_read_from_the_target_s_folder_and_from_their_own(tmp_path, case):
    name, _, count = case.partition("-")
    target, drafter = with_module(tmp_path, name, count=int(count or 1))
    text = torch.tensor(random_prompts((12,), seed=3))
    features = target.features(text, drafter.taps).features
    for source in ("mtp", tmp_path / "own"):
        loaded = load_drafter(source, target)
        assert (loaded.kind, loaded.family, loaded.max_depth) == ("mtp", KINDS[name], drafter.max_depth)
        for name_of, value in drafter.state_dict().items():
            torch.testing.assert_close(loaded.state_dict()[name_of], value)
        passes = (each.teacher_forced(target, text, features, 2) for each in (loaded, drafter))
        for found, due in zip(*passes, strict=True):
            torch.testing.assert_close(found.scores, due.scores)


def test_speculators_modules_read_the_embedding_first(tmp_path):
    """Speculators 0.9.0's MTPLayerMixin.forward joins them so; MiMo's halves of the projection stand the other way."""
    target = small_target("qwen3")
    mimo = random_drafter("mtp", target)
    mimo._spelling = replace(mimo._spelling, blanks_first=False)
    save_drafter(tmp_path, mimo, dtype="float32", meta={}, target=target)
    tensors = load_file(tmp_path / "model.safetensors")
    projection = tensors["mtp_layers.0.input_proj.weight"].chunk(2, 1)
    save_file(
        tensors | {"mtp_layers.0.input_proj.weight": torch.cat(projection[::-1], 1)}, tmp_path / "model.safetensors"
    )
    rewritten(tmp_path / "config.json", treeopt_drafter={}, architectures=["MTPDraftModel"])
    loaded = load_drafter(tmp_path, target)
    assert "reads the embedding first, as in speculators 0.9" in str(assumptions_of(loaded))
    text = torch.tensor(random_prompts((12,), seed=3))
    features = target.features(text, mimo.taps).features
    assert loaded.taps == mimo.taps
    passes = (each.teacher_forced(target, text, features, 3) for each in (loaded, mimo))
    for found, due in zip(*passes, strict=True):
        torch.testing.assert_close(found.scores, due.scores)
    save_drafter(tmp_path, loaded, dtype="float32", meta={}, target=target)
    assert load_drafter(tmp_path, target).family == "speculators"
    rewritten(tmp_path / "config.json", treeopt_drafter={"family": "other"})
    with pytest.raises(ExecutorError, match="family must be one of deepseek, qwen, mimo, speculators, found 'other'"):
        load_drafter(tmp_path, target)


def test_several_modules_draft_what_transformers_own_class_drafts(tmp_path):
    """Its tokens and its scores, drafted greedily behind a prompt; the embedding at position 0 is not blanked there."""
    target, drafter = with_module(tmp_path, "deepseek_v3", count=3)
    for part in drafter.parts:
        part._spelling = replace(part._spelling, blanks_first=False)
    text = torch.tensor(random_prompts((12, 12), seed=3))
    features = target.features(text).features
    mtp = MtpModel(target.model, 3).eval()
    names = {"embedding_norm": "enorm", "hidden_norm": "hnorm", "projection": "eh_proj", "last_norm": "post_norm"}
    names |= {"layer": "mtp_block"}
    weights = {}
    for name, value in drafter.state_dict().items():
        _, number, part, rest = name.replace("layer.block.", "layer.").split(".", 3)
        weights[f"layers.{number}.{names[part]}.{rest}"] = value
    assert not mtp.load_state_dict(weights, strict=False).unexpected_keys
    state, none = drafter.begin(target, 2, 3, 30, 40), torch.zeros(2, 1, dtype=torch.long)
    drafter.admit(state, admitted(text, features, (12, 12)))
    nothing = Committed(none, features[:, :1], none, none[:, 0], in_place=True)
    drafter.extend(state, nothing, view=32, all_fed=False)
    tokens, found = [text[:, -1:]], []
    for _ in range(3):
        found.append(drafter.level(state, tokens[-1], none[:1]))
        tokens.append(found[-1].argmax(-1))
    position = torch.arange(1, 12)[None]
    for row in range(2):
        with torch.no_grad():
            cache = MtpCache(config=target.model.config.get_mtp_config())
            own = text[row : row + 1]
            due, scores, _ = mtp(own[:, 1:], features[row : row + 1, :-1], None, position, cache)
        assert due.tolist() == [[int(token[row]) for token in tokens[1:]]]
        torch.testing.assert_close(torch.cat(found, 1)[row : row + 1], scores, rtol=0, atol=1e-5)


def test_several_modules_replay_to_what_the_loop_accepts():
    """On a tree, with prompts of as many tokens as modules and more, and requests that follow others."""
    prompts, target = random_prompts((9, 4, 17), seed=8), small_target()
    drafter, tree = random_drafter("mtp-several", target), Tree.full(3, 3)
    found = Decoder(target, drafter, tree=tree, batch=2).generate(prompts, new_tokens=16)
    assert [list(text.tokens) for text in found] == [generated(target.model, prompt, 16) for prompt in prompts]
    trace = collect(target, drafter, [Prompt("")] * 3, prompts, new_tokens=16, depth=3, width=3)
    live = sum(len(text.tokens) for text in found) / sum(len(text.accepted) for text in found)
    assert replay_tree(tree, trace).tau == pytest.approx(live)
    assert live > 1.05
    with pytest.raises(ExecutorError, match="3 MTP modules read prompts of at least 3 tokens, got one of 2"):
        Decoder(target, drafter, tree=tree).generate([prompts[0][:2]], new_tokens=2)


@pytest.mark.parametrize("name", ["deepseek_v3", pytest.param("qwen3_next", marks=pytest.mark.slow)])
def test_drafting_with_it_changes_no_text(tmp_path, name):
    """Multi-head latent attention with experts; a target with linear attention, on chains."""
    target, drafter = with_module(tmp_path, name)
    like, tree = family(name), Tree.chain(2) if name == "qwen3_next" else Tree.full(3, 2)
    found = Decoder(target, drafter, tree=tree, batch=2).generate(like.prompts, new_tokens=12)
    assert [list(text.tokens) for text in found] == [text[:12] for text in like.texts]


def test_what_cannot_be_read_is_named(tmp_path):
    target, several = with_module(tmp_path, "deepseek_v3", count=2)
    rewritten(tmp_path / "config.json", num_nextn_predict_layers=3)
    with pytest.raises(ExecutorError, match="2 MTP modules, num_nextn_predict_layers is 3"):
        load_drafter("mtp", target)
    rewritten(tmp_path / "config.json", num_nextn_predict_layers=2)
    tensors = load_file(tmp_path / "model.safetensors")
    apart = {key.replace("layers.3.", "layers.5."): value for key, value in tensors.items()}
    save_file(apart, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ExecutorError, match="numbered without a gap"):
        load_drafter("mtp", target)
    with pytest.raises(ExecutorError, match="vllm-mimo has"):
        save_drafter(tmp_path / "no", several, dtype="float32", meta={}, target=target, layout="vllm-mimo")
    path = tmp_path / "own" / "config.json"
    config = json.loads(path.read_text())
    layer = config["transformer_layer_config"]
    rope = layer.pop("rope_parameters")
    for outer, inner, words in (
        ({}, {"rms_norm_eps": 0.5}, r"rms_norm_eps 0\.5 must be the target's"),
        ({}, {"rope_theta": 3e6}, "rope_parameters .*3000000"),
        ({}, {"rope_theta": rope["rope_theta"], "rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "linear"),
        ({}, {"sliding_window": 8}, "sliding_window 8 must be the target's, None"),
        ({"target_layer_ids": [1]}, {}, r"target_layer_ids \[1\] must be the target's, None"),
        ({"num_nextn_predict_layers": 3}, {}, "2 MTP modules, num_nextn_predict_layers is 3"),
        ({}, {"num_attention_heads": "many"}, "num_attention_heads"),
    ):
        path.write_text(json.dumps(config | outer | {"transformer_layer_config": layer | inner}))
        with pytest.raises(ExecutorError, match=words):
            load_drafter(tmp_path / "own", target)
    path.write_text(json.dumps(config | {"transformer_layer_config": layer | {"rope_theta": rope["rope_theta"]}}))
    assert load_drafter(tmp_path / "own", target).max_depth == 2
    tensors = load_file(tmp_path / "own" / "model.safetensors")
    save_file({name: tensors[name] for name in tensors if "3.enorm" not in name}, tmp_path / "own/model.safetensors")
    with pytest.raises(ExecutorError, match=r"1 missing: model\.layers\.3\.enorm\.weight"):
        load_drafter(tmp_path / "own", target)
    target.model.config._name_or_path = ""
    with pytest.raises(UsageError, match="MTP is read from the folder of the target"):
        load_drafter("mtp", target)


def test_the_loss_weighs_steps_as_fastmtp_does():
    recipe = recipes()["fastmtp"]
    powers = [0.6**k for k in range(3)]
    assert [recipe.weight(k) for k in (1, 2, 3)] == pytest.approx([power / sum(powers) for power in powers])
    target = family("qwen3_next").target()
    drafter = fresh_drafter(recipe, target)
    assert all(bool(value.isfinite().all()) for value in drafter.state_dict().values())


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_a_target_rewritten_as_mimo_is_itself(tmp_path, name):
    """A Qwen2 by its layers: transformers reads the target's part of the folder."""
    target, drafter = with_module(tmp_path, name)
    save_drafter(tmp_path / "mimo", drafter, dtype="float32", meta={}, target=target, layout="vllm-mimo")
    tensors = load_file(tmp_path / "mimo" / "model.safetensors")
    assert bool(tensors["model.mtp_layers.0.self_attn.q_proj.bias"].any()) == (name == "qwen2")  # its own
    torch.testing.assert_close(tensors["lm_head.weight"], target.head.weight.detach())
    assert json.loads((tmp_path / "mimo" / "config.json").read_text())["num_nextn_predict_layers"] == 1
    text = torch.tensor(random_prompts((12,), seed=3))
    rewritten = load_target(tmp_path / "mimo")
    assert rewritten.model.config.model_type == "qwen2"
    torch.testing.assert_close(rewritten.features(text).logits, target.features(text).logits, rtol=0, atol=1e-5)
    other, experts = with_module(tmp_path / "experts", "deepseek_v3")
    with pytest.raises(ExecutorError, match="vllm-mimo has layers of Llama and Qwen2 alone"):
        save_drafter(tmp_path / "no", experts, dtype="float32", meta={}, target=other, layout="vllm-mimo")


def test_its_level_reads_a_layer_with_the_experts_that_a_token_picks():
    config = family("deepseek_v3").model.config.to_dict()
    shape, level = Shape.from_config(config), drafter_shape(config, kind="mtp").level
    assert level.weights == shape.layer_groups[-1].products(active=True) + shape.hidden * (
        2 * shape.hidden + shape.vocab
    )
    assert assumptions(None, drafter_shape(config, kind="mtp"), kind="mtp", target=shape) == []
