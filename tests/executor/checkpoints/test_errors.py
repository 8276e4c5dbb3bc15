"""What is no drafter for this target is refused in one line that names the file and the tensor or field."""

import json
import os
import pickle
import re
import zipfile
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from executor.checkpoints import assumptions_of, load_drafter
from executor.checkpoints.tensors import find_tensor_files
from executor.checkpoints.tensors.lazy_tensors import Stored
from executor.drafters.hydra.drafter import Hydra
from executor.drafters.language_model.drafter import LanguageModel
from executor.target.load_hf_model import load_target
from simulate.model_sizes.model_shape import Shape
from tests.helpers.checkpoint_files import config_of, put_down, refused, tensors_of, written
from tests.helpers.drafters import random_drafter
from tests.helpers.fuzzing import disk_of
from tests.helpers.models import HIDDEN, VOCABULARY, small_model, small_target
from tests.helpers.slow_params import slow_unless
from treeopt.errors import CostError, ExecutorError

LAYOUTS = {
    "medusa": "vllm-medusa",
    "hydra": None,
    "hydra++": "hydra",
    "eagle": "eagle",
    "eagle-qkv-bias": None,
    "coral-router": None,
    "eagle3": "eagle3",
    "eagle3-variants": "speculators-eagle3",
    "eagle3-input-norm": "eagle3-specforge",
    "eagle3-windows": "speculators-eagle3",
    "eagle3-last-feature": "eagle3-vllm",
}
DAILY = {"medusa", "hydra", "eagle", "eagle3"}  # one of each reader


@pytest.fixture(scope="module")
def good(target, tmp_path_factory):
    """Name -> its tensors and configuration."""
    found = {}
    for name, layout in LAYOUTS.items():
        folder = tmp_path_factory.mktemp("good") / name
        found[name] = written(folder, random_drafter(name, target), layout, target)
    return found


# Tensors that may be absent: the drafter then lacks the part, or the checkpoint is none of its kind.
OPTIONAL = {
    "medusa": r".*bias",
    "eagle-qkv-bias": "fc.weight",
    "eagle": "fc.bias|embed_tokens.weight",
    "coral-router": r"fc.bias|router.w\d.*",
}
OPTIONAL |= {"eagle3": "d2t|t2d", "eagle3-variants": "embed_tokens.weight|lm_head.weight"}
OPTIONAL |= dict.fromkeys(("eagle3-input-norm", "eagle3-windows", "eagle3-last-feature"), "lm_head.weight")


@pytest.mark.parametrize("name", slow_unless(lambda name: name in {"eagle", "eagle3"}, LAYOUTS))
def test_every_tensor_must_be_there_and_fit(tmp_path, target, good, name):
    tensors, config = good[name]
    for key, value in tensors.items():
        bent = {
            "narrow": value[..., :-1],
            "wide": torch.cat([value, value[:1]]),
            "deep": value[None],
            "integers": value.int() if value.is_floating_point() else value.float(),
        }
        if value.is_floating_point():
            bent["no number"] = value.clone().index_fill_(0, torch.tensor([0]), torch.nan)
        if key == "router.w2.weight":  # there may be any number of groups
            del bent["wide"]
        for what, other in bent.items():
            put_down(tmp_path, tensors | {key: other.contiguous()}, config)
            try:
                message = refused(tmp_path, target)
            except pytest.fail.Exception:
                pytest.fail(f"{key} was taken although it is {what}")
            # What follows from a tensor is named where the tensor itself decides.
            assert re.search(r"must|not finite|multiple|head_dim|is missing|not the target's|contradict", message), (
                message
            )
        put_down(tmp_path, {k: v for k, v in tensors.items() if k != key}, config)
        if re.fullmatch(OPTIONAL.get(name, "none"), key) is None:
            refused(tmp_path, target, key)


@pytest.mark.parametrize("name", sorted(DAILY))
def test_what_nobody_knows_is_named(tmp_path, target, good, name):
    tensors, config = good[name]
    more = {f"more.{i}": torch.zeros(2) for i in range(5)}
    put_down(tmp_path, tensors | more, config)
    refused(tmp_path, target, "5 unknown: more.0 (2,), more.1 (2,), more.2 (2,) and 2 more")


@pytest.mark.parametrize("name", sorted(DAILY))
def test_another_models_drafter_is_refused(tmp_path, good, name):
    tensors, config = good[name]
    put_down(tmp_path, tensors, config)
    other = small_target("gpt_neox", seed=3)
    other.model.resize_token_embeddings(64)
    other.__dict__.pop("vocabulary", None)
    refused(tmp_path, other)


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("eagle", "norm.weight", torch.ones(HIDDEN), "norm.weight: EAGLE with these norms is not supported"),
        ("eagle", "lm_head.weight", torch.ones(VOCABULARY, HIDDEN), "lm_head.weight (61, 32) is not the target's"),
        ("eagle", "token_map", torch.arange(9), "token_map: EAGLE that scores only 9 of 61 tokens is not supported"),
        ("eagle3", "layers.1.mlp.up_proj.weight", torch.ones(3), "1 missing: layers.1.self_attn.q_proj.weight"),
        ("eagle3", "layers.2.mlp.up_proj.weight", torch.ones(3), "layers must be numbered from 0, found [0, 2]"),
        ("eagle3-variants", "input_norm.weight", torch.ones(96), "holds both input_norm and fc_norm"),
        ("hydra++", "hydra_mlp.0.5.linear.bias", torch.ones(32), "hydra_mlp.0.5.linear.bias must equal hydra_mlp.0.3"),
    ],
)
def test_variants_that_are_not_supported_are_named(tmp_path, target, good, name, key, value, message):
    tensors, config = good[name]
    put_down(tmp_path, tensors | {key: value}, config)
    refused(tmp_path, target, message)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, -1, "d2t must lead to each of the tokens 0 to 60 at most once"),
        (3, 2**62, "d2t must lead to each of the tokens 0 to 60 at most once"),
        (4, 2, "d2t must lead to each of the tokens 0 to 60 at most once"),
        (1, 0, "row 1 of lm_head is token 1, which t2d lacks"),
    ],
)
def test_offsets_that_are_none(tmp_path, target, good, place, value, message):
    tensors, config = good["eagle3"]
    offsets = tensors["d2t"].clone()
    offsets[place] = value
    put_down(tmp_path, tensors | {"d2t": offsets}, config)
    refused(tmp_path, target, message)


def test_draft_vocabularies_that_contradict(tmp_path, target, good):
    tensors, config = good["eagle3"]
    put_down(tmp_path, tensors | {"t2d": torch.ones(VOCABULARY, dtype=torch.bool)}, config)
    refused(tmp_path, target, "t2d must name 51 tokens as lm_head has rows, found 61")
    put_down(tmp_path, {k: v for k, v in tensors.items() if k not in ("d2t", "t2d")}, config)
    refused(tmp_path, target, "lm_head has 51 rows for 61 tokens, and d2t is missing")


@pytest.mark.parametrize("name", ["eagle", "eagle3-windows"])
@pytest.mark.parametrize("said", [1, 3, "2"])
def test_a_number_of_layers_that_is_not_stored_is_refused(tmp_path, target, good, name, said):
    """A lost shard looks the same; but a configuration may be the target's, of 7 layers."""
    tensors, config = good[name]
    layers = len({key.split(".")[1] for key in tensors if key.startswith("layers.")} or {0})
    nested = config.get("transformer_layer_config")

    def written(number):
        stated = {"num_hidden_layers": number}
        return config | (stated if nested is None else {"transformer_layer_config": nested | stated})

    put_down(tmp_path, tensors, written(said))
    if said != layers:
        refused(tmp_path, target, f"num_hidden_layers is {said!r}, but model.safetensors has tensors of {layers}: is a")
    put_down(tmp_path, tensors, written(7))
    assert load_drafter(tmp_path, target).kind == name.partition("-")[0]


@pytest.mark.parametrize(
    ("name", "said", "sentence"),
    [
        ("eagle", {"fusion_bias": True}, "fusion_bias is true, but model.safetensors has no such tensors"),
        ("eagle", {"layernorms": True}, "layernorms is true, but model.safetensors has no such tensors"),
        ("eagle3", {"attention_chunk_size": 8}, "attention_chunk_size 8 is not applied"),
    ],
)
def test_what_a_configuration_says_and_no_tensor_does_is_told(tmp_path, target, good, name, said, sentence):
    """The tensors decide."""
    tensors, config = good[name]
    tensors = {key: tensor for key, tensor in tensors.items() if key != "fc.bias"}
    config = config | {"bias": False} if name == "eagle" else config
    put_down(tmp_path, tensors, config)
    assert sentence not in str(assumptions_of(load_drafter(tmp_path, target)))
    put_down(tmp_path, tensors, config | said)
    assert sentence in str(assumptions_of(load_drafter(tmp_path, target)))


@pytest.mark.parametrize("name", ["medusa", "hydra", "eagle3"])
@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"logit_scale": 0.1}, "logit_scale 0.1 is not supported"),
        ({"rope_of_tomorrow": 1}, "rope_of_tomorrow: a field of positions or layers that treeopt does not know"),
    ],
)
def test_fields_that_change_what_is_drafted_are_refused(tmp_path, target, good, name, said, message):
    tensors, config = good[name]
    put_down(tmp_path, tensors, config | said)
    refused(tmp_path, target, message)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"num_attention_heads": 3}, "the 32 rows of q_proj contradict config.json's 3 heads"),
        ({"num_attention_heads": 1, "head_dim": 32}, "32 rows of layers.0.self_attn.q_proj.weight and 16 of k_proj"),
        ({"num_attention_heads": None, "head_dim": 5}, "are not whole heads of 5"),
        ({"rms_norm_eps": "small"}, "config.json: rms_norm_eps must be a positive number, found 'small'"),
        ({"hidden_act": "what"}, "hidden_act 'what' is not known"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "config.json: the decoder layer must be one of Llama's kind"),
        ({"layer_types": ["sliding_attention"]}, "layer_types[0] is sliding_attention, but sliding_window is None"),
        ({"architectures": 4, "model": 5, "treeopt_drafter": 6, "bias": "x"}, None),
    ],
)
def test_configurations_that_contradict(tmp_path, target, good, said, message):
    tensors, config = good["eagle"]
    config = {key: value for key, value in config.items() if key != "rope_parameters"} | said
    put_down(tmp_path, tensors)
    (tmp_path / "config.json").write_text(json.dumps(config))
    if message is None:
        assert load_drafter(tmp_path, target).kind == "eagle"
    else:
        refused(tmp_path, target, message)


LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({LAYER_IDS: [2, 1]}, "fc.weight must read 2 x 32 features of layers [2, 1]"),
        ({LAYER_IDS: [2, 4, 2]}, "must name each layer once, found [2, 4, 2]"),
        (
            {LAYER_IDS: [1, 3, 4], "eagle_config": {"layer_ids": [1, 2, 3]}},
            f"{LAYER_IDS} [1, 3, 4] and eagle_config.layer_ids [1, 2, 3] name different layers",
        ),
        ({"eagle_config": [1]}, "eagle_config must be an object, found [1]"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state false, found 96"),
        ({"speculators_model_type": "eagle3"}, "speculators reads that as false, vLLM as true"),
        ({"norm_output": True, "eagle_config": {"norm_output": False}}, "norm_output differs from the one"),
        ({"fc_norm": True}, "fc_norm is true, but model.safetensors lacks fc_norm.0.weight"),
        ({"num_target_layers": 99}, "num_target_layers is 99, the target has"),
        ({"target_layer_indices": [1, 2, 3]}, "target_layer_indices: a field of positions or layers"),
        ({"hidden_states_read": [1, 2, 3]}, "hidden_states_read: a field of positions or layers"),
        ({"feature_layers": 3}, "feature_layers: a field of positions or layers"),
        ({"layer_ids": [1, 2, 3]}, "layer_ids is read in eagle_config alone"),
        ({"draft": {"target_layer_ids": [1, 2, 3]}}, "draft.target_layer_ids is not read there: move it"),
    ],
)
def test_what_only_a_configuration_can_say(tmp_path, target, good, said, message):
    tensors, config = good["eagle3"]
    put_down(tmp_path, tensors, config | said)
    refused(tmp_path, target, message)


def test_layers_that_eagle_would_not_read(tmp_path, target, good):
    tensors, config = good["eagle"]
    put_down(tmp_path, tensors, config | {"target_layer_ids": [1, 2, 3]})
    refused(tmp_path, target, "target_layer_ids: EAGLE reads the target's last feature alone")


# --- files


class Code:
    """What a pickle may run when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (os.system, (f"touch {self.path}",))


def test_pickled_code_is_refused_and_not_run(tmp_path, target):
    (tmp_path / "a").mkdir()
    torch.save({"0.0.linear.weight": Code(tmp_path / "ran")}, tmp_path / "a" / "medusa_lm_head.pt")
    message = refused(tmp_path / "a", target, "medusa_lm_head.pt: refused: it holds posix.system", "plain tensors")
    assert "weights_only" not in message  # torch's advice how to run it
    (tmp_path / "a" / "medusa_lm_head.pt").write_bytes(pickle.dumps(Code(tmp_path / "ran")))
    refused(tmp_path / "a", target, "not a readable file of torch.save")
    assert not (tmp_path / "ran").exists()


def test_pickles_of_other_things(tmp_path, target):
    file = tmp_path / "pytorch_model.bin"
    for held, message in [
        ([torch.zeros(2)], "must hold a dictionary of tensors, found list"),
        ({"fc.weight": 3}, "'fc.weight' must be a plain tensor, found int"),
        ({3: torch.zeros(2)}, "3 must be the name of a tensor"),
        ({"fc.weight": torch.zeros(2, 2).to_sparse()}, "'fc.weight' must be a plain tensor"),
        ({"fc.weight": torch.zeros(1).expand(10**6, 10**6)}, "'fc.weight' claims (1000000, 1000000), which is"),
    ]:
        torch.save(held, file)
        refused(tmp_path, target, "pytorch_model.bin", message)


def test_a_state_within_a_dictionary_is_found(tmp_path, target, good):
    tensors, _ = good["hydra"]
    torch.save({"state_dict": tensors}, tmp_path / "hydra_lm_head.pt")
    assert isinstance(load_drafter(tmp_path, target), Hydra)
    assert isinstance(load_drafter(tmp_path / "hydra_lm_head.pt", target), Hydra)  # a file by itself


def test_torn_and_swollen_files(tmp_path, target, good, monkeypatch):
    tensors, config = good["eagle"]
    for name in ("pytorch_model.bin", "model.safetensors"):
        put_down(tmp_path, tensors, config, name=name)
        size = (tmp_path / name).stat().st_size
        for left in (size - 9, 100, 0):
            os.truncate(tmp_path / name, left)
            refused(tmp_path, target, name, "not a readable")
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 7 + b"\x7f" + b"{}")
    refused(tmp_path, target, "its header claims")
    (tmp_path / "model.safetensors").unlink()
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pytorch_model/data.pkl", b"\0" * 10**6)
    refused(tmp_path, target, "pytorch_model.bin: not a file that torch.save writes: it is compressed")
    monkeypatch.setattr(find_tensor_files, "HEADER_LIMIT", 500)
    monkeypatch.setattr(find_tensor_files, "OTHERS_LIMIT", 500)
    put_down(tmp_path, tensors, config, name="pytorch_model.bin")
    refused(tmp_path, target, "more than 500 bytes that are no tensors")
    put_down(tmp_path, tensors, config)
    refused(tmp_path, target, "its header claims")
    torch.save(tensors, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    refused(tmp_path / "old.pt", target, "not a readable file of torch.save (a zip archive)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "config.json: not JSON"),
        ("[1]", "config.json: must hold a JSON object"),
        ("[" * 10**5, "config.json: not J"),
    ],
)
def test_configurations_that_are_none(tmp_path, target, good, text, message):
    put_down(tmp_path, good["eagle"][0])
    (tmp_path / "config.json").write_text(text)
    refused(tmp_path, target, message)
    (tmp_path / "config.json").write_bytes(b"\xff\xff")
    refused(tmp_path, target, "config.json: cannot be read")


def test_shards(tmp_path, target, good):
    tensors, config = good["eagle"]
    put_down(tmp_path, tensors, config, name="part.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    everywhere = dict.fromkeys(tensors, "part.safetensors")
    for held, message in [
        ({"weight_map": everywhere}, None),
        ({"weight_map": everywhere | {"more": "part.safetensors"}}, "more not in the files that weight_map names"),
        ({"weight_map": everywhere | {"more": "../part.safetensors"}}, "weight_map must name files beside it"),
        ({"weight_map": everywhere | {"more": "gone.safetensors"}}, "gone.safetensors"),
        ({"weight_map": {"a": 3}}, "weight_map must name the file of each tensor"),
        ({}, "weight_map must name the file of each tensor"),
    ]:
        index.write_text(json.dumps(held))
        if message is None:
            assert load_drafter(tmp_path, target).kind == "eagle"
        else:
            refused(tmp_path, target, message)


@pytest.mark.parametrize("name", ["model{}.safetensors", "pytorch_model{}.bin"])
def test_shards_without_their_index_are_named(tmp_path, target, good, name):
    tensors, config = good["eagle"]
    names = sorted(tensors)
    for number in (1, 2):
        part = {key: tensors[key] for key in names[number - 1 :: 2]}
        put_down(tmp_path, part, config, name=name.format(f"-{number:05}-of-00002"))
    missing = f"{name.format('')}.index.json is missing, the index of "
    first, second = (name.format(f"-{number:05}-of-00002") for number in (1, 2))
    refused(tmp_path, target, f"{missing}{first}, {second}: fetch it too")
    (tmp_path / second).unlink()
    refused(tmp_path, target, f"{missing}{first}: fetch it too")
    put_down(tmp_path, tensors, config, name=f"other{Path(name).suffix}")
    refused(tmp_path, target, "which of ")


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_tensors_that_an_index_does_not_list_are_read(tmp_path, target, good, suffix):
    """vLLM and transformers choose files by the index, and load every tensor in them."""
    tensors, config = good["eagle"]
    names = sorted(tensors)
    parts = {f"a{suffix}": names[::2], f"b{suffix}": names[1::2]}
    for file, keys in parts.items():
        put_down(tmp_path, {key: tensors[key] for key in keys}, config, name=file)
    listed = {key: file for file, keys in parts.items() for key in keys if key != "fc.bias"}
    (tmp_path / f"model{suffix}.index.json").write_text(json.dumps({"weight_map": listed}))
    assert torch.equal(load_drafter(tmp_path, target).fc.bias, tensors["fc.bias"])


@pytest.mark.parametrize("listed", [True, False])
def test_a_tensor_in_two_shards_is_the_one_that_the_index_names(tmp_path, target, good, listed):
    tensors, config = good["eagle"]
    other = {"fc.bias": tensors["fc.bias"] + 1, "fc.weight": tensors["fc.weight"]}
    put_down(tmp_path, other, config, name="a.safetensors")
    put_down(tmp_path, {name: t for name, t in tensors.items() if name != "fc.weight"}, config, name="b.safetensors")
    places = dict.fromkeys(tensors, "b.safetensors") | {"fc.weight": "a.safetensors"}
    if not listed:
        del places["fc.bias"]
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    if listed:
        assert torch.equal(load_drafter(tmp_path, target).fc.bias, tensors["fc.bias"])
    else:
        refused(tmp_path, target, "fc.bias is in two files, and weight_map does not say which one holds")


def test_which_file_is_meant(tmp_path, target, good):
    tensors, config = good["hydra"]
    for name in ("a.safetensors", "b.safetensors"):
        put_down(tmp_path, tensors, config, name=name)
    refused(tmp_path, target, "which of a.safetensors, b.safetensors is the drafter? name the file")
    assert load_drafter(tmp_path / "b.safetensors", target).kind == "hydra"
    (tmp_path / "b.safetensors").unlink()
    assert load_drafter(tmp_path, target).kind == "hydra"


@pytest.mark.parametrize(
    ("kind", "file", "shards"), [("medusa", "medusa_lm_head.pt", False), ("hydra", "hydra_lm_head.pt", True)]
)
def test_heads_come_before_the_whole_model_beside_them(tmp_path, target, good, kind, file, shards):
    model = {name: tensor.clone() for name, tensor in target.model.state_dict().items()}
    name = "model-00001-of-00001.safetensors" if shards else "model.safetensors"
    put_down(tmp_path, model, target.model.config.to_dict(), name=name)
    if shards:
        index = {"metadata": {}, "weight_map": dict.fromkeys(model, name)}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    put_down(tmp_path, good[kind][0], name=file)
    assert load_drafter(tmp_path, target).kind == kind
    (tmp_path / file).unlink()
    assert isinstance(load_drafter(tmp_path, target), LanguageModel)


def test_what_is_no_drafter(tmp_path, target):
    refused(tmp_path, target, "holds no safetensors")
    save_file({"a.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    refused(tmp_path, target, "neither a drafter's tensors nor a language model's config.json: a.weight")
    target.model.config.save_pretrained(tmp_path)
    refused(tmp_path, target, "neither a drafter that treeopt knows nor a whole language model", "a.weight")
    save_file({"model.embed_tokens.weight": torch.zeros(61, 32)}, tmp_path / "model.safetensors")
    refused(tmp_path, target, "are missing")


@pytest.mark.parametrize("name", sorted(DAILY))
def test_nothing_is_read_of_what_does_not_fit(tmp_path, target, good, name, monkeypatch):
    tensors, config = good[name]
    key = next(key for key in tensors if key.endswith(("up_proj.weight", "linear.weight", "blocks.1.layers.0.weight")))
    put_down(tmp_path, tensors | {key: torch.zeros(7, 5)}, config)
    monkeypatch.setattr(Stored, "read", lambda *words: pytest.fail("values were read"))
    if "embed_tokens.weight" in tensors and name.startswith("eagle3"):  # compared with the target's, of the same shape
        monkeypatch.setattr("executor.drafters.eagle3.read_checkpoint.is_embedding", lambda *words: False)
        monkeypatch.setattr(Stored, "read", lambda self, name: None if "embed" in name else pytest.fail("read"))
    refused(tmp_path, target, key, "(7, 5)")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "config.json"])
def test_pointers_of_git_lfs_are_named(tmp_path, target, good, name):
    if name == "config.json":
        put_down(tmp_path, good["eagle"][0])
    (tmp_path / name).write_bytes(POINTER)
    refused(tmp_path, target, f"{name}: ", "a pointer of Git LFS, not the file: fetch it with `git lfs pull`")


@pytest.mark.parametrize("text", [b'{"error": "Invalid credentials"}', b"\n<!DOCTYPE html>"])
def test_answers_of_servers_are_no_tensors(tmp_path, target, text):
    (tmp_path / "model.safetensors").write_bytes(text)
    refused(tmp_path, target, "not a safetensors file but a text, such as a server's answer: fetch it again")


def test_names_on_a_hub_are_not_fetched(tmp_path, target):
    refused(tmp_path / "org" / "name", target, "no such file or folder")
    refused(Path("org/name"), target, "no such file or folder; a model of the Hugging Face hub is named hf:org/name")


def test_checkpoints_of_gguf_and_mlx_are_named(tmp_path, target):
    gguf, mlx, old = (tmp_path / name for name in ("gguf", "mlx", "old"))
    small_model().save_pretrained(mlx)
    put_down(mlx, tensors_of(mlx), config_of(mlx) | {"quantization": {"group_size": 64, "bits": 4}})
    for folder, name in ((gguf, "model.gguf"), (old, "weights.npz")):
        folder.mkdir()
        (folder / "config.json").write_text((mlx / "config.json").read_text().replace("quantization", "q"))
        (folder / name).write_bytes(b"GGUF")
    for path in (gguf, gguf / "model.gguf", mlx, old):
        said = "GGUF files are written, but not read" if path not in (mlx, old) else "weights of MLX .* are not read"
        for load in (partial(load_drafter, target=target), load_target):
            with pytest.raises(ExecutorError, match=f"{said}: name the Hugging Face checkpoint"):
                load(path)
    with pytest.raises(CostError, match="the header of this GGUF file cannot be read"):
        Shape.from_config(gguf / "model.gguf")


@pytest.mark.parametrize(("layout", "reason"), [(None, "File too large"), ("hydra", "is the disk full")])
def test_a_full_disk_leaves_no_file(tmp_path, target, layout, reason):
    """Safetensors reports it in one way, torch's own writer in another."""
    with disk_of(1500), pytest.raises(ExecutorError, match=f"hydra_lm_head.*: cannot be written: {reason}"):
        written(tmp_path, random_drafter("hydra", target), layout, target)
    assert not list(tmp_path.iterdir())
