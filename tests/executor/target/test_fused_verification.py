"""Which targets verify by fused kernels, that a wrong kernel is noticed, and that the model stays what it was."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, GraniteConfig, HeliumConfig, Ministral3Config, SmolLM3Config

from executor.kernels import few_rows_linear, fused_forward
from executor.kernels.fused_forward import FusedForward
from executor.models import compute_as_recorded, run_provenance, weights_hash
from executor.target import fused_verification
from executor.target.fused_verification import LARGE as LARGE_TREES
from executor.target.fused_verification import SMALL as SMALL_TREES
from executor.target.fused_verification import device_refusal, fuse, worst_error
from executor.target.load_hf_model import load_target
from executor.target.target_model import Target
from tests.helpers.interpreted_kernels import fusable_target, mend_products_of_bfloat16, take_wide_blocks
from tests.helpers.model_families import family
from tests.helpers.models import SMALL, small_target
from tests.helpers.slow_params import slow_unless
from treeopt.errors import ExecutorError

ROOT = Path(__file__).resolve().parent.parent.parent.parent


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch):
    monkeypatch.setattr(fused_verification, "DEVICE", "cpu")
    compare(monkeypatch, SMALL_TREES[0])  # the interpreter takes most of a minute for all
    take_wide_blocks(monkeypatch)
    mend_products_of_bfloat16(monkeypatch)


def compare(monkeypatch, *small, large=()) -> None:
    monkeypatch.setattr(fused_verification, "SMALL", small)
    monkeypatch.setattr(fused_verification, "LARGE", large)


def wrapped(config) -> Target:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16)
    return Target(model.eval())


def is_refused(target: Target) -> bool:
    fuse(target)
    return target.fused is None and target.fused_reason.startswith("they compute something else than the model (")


# --- who has them


@pytest.mark.parametrize(
    ("kind", "dtype", "large"),
    [
        ("qwen3", torch.float32, (1, 1, 1024)),
        ("qwen3", torch.bfloat16, (1, 1, 1024)),
        ("phi3", torch.float32, (1, 1, 1024)),
        pytest.param("qwen3", torch.bfloat16, (3, 22, 1024), marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_what_rounding_causes_is_far_from_the_limit(kind, dtype, large, monkeypatch):
    compare(monkeypatch, *SMALL_TREES, large=(large,))
    target = fusable_target(kind, dtype=dtype)
    assert worst_error(target, FusedForward(target.model.get_decoder())) < 0.5


@pytest.mark.parametrize("sizes", [LARGE_TREES[0], pytest.param(LARGE_TREES[-1], marks=pytest.mark.slow)])
def test_sizes_that_do_not_run_show_at_load(sizes, monkeypatch):
    layer = FusedForward.layer

    def short_of_memory(self, number, hidden, places):
        if (*hidden.shape[:2], places.view) == sizes:
            raise RuntimeError("out of resource: shared memory")
        return layer(self, number, hidden, places)

    compare(monkeypatch, SMALL_TREES[0], large=(sizes,))
    monkeypatch.setattr(FusedForward, "layer", short_of_memory)
    target = fusable_target()
    fuse(target)
    assert target.fused_reason == "they do not run here: out of resource: shared memory"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("DEVICE", "cuda", "they are for CUDA"),
        ("find_spec", lambda name: None, "Triton is not installed"),
        ("device_refusal", lambda device: "too old", "too old"),
        ("processes", lambda: 2, "the model is split over processes"),
    ],
)
def test_where_kernels_cannot_run_there_are_none(monkeypatch, name, value, reason):
    monkeypatch.setattr(fused_verification, name, value)
    target = small_target()
    fuse(target)
    assert (target.fused, target.fused_reason) == (None, reason)


@pytest.mark.parametrize(
    ("cuda", "capability", "reason"),
    [
        ("13.0", (9, 0), None),
        ("13.0", (8, 9), "they were tried only on devices of compute capability 9, this one has 8.9"),
        (None, (9, 0), "they are for NVIDIA's devices"),
    ],
)
def test_devices_that_are_not_hopper_have_none(cuda, capability, reason, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert device_refusal(torch.device("cuda")) == reason


def test_kernels_are_launched_on_the_device_of_the_target(monkeypatch):
    """Triton launches on the current device, which need not be that of the tensors."""
    entered, inside = [], []

    @contextmanager
    def device_of(tensor):
        entered.append(tensor.device)
        inside.append(True)
        yield
        inside.pop()

    attend = fused_forward.attend_to_tree

    def checked(*args):
        assert inside
        return attend(*args)

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(fused_forward, "attend_to_tree", checked)
    target = fusable_target()
    fuse(target)
    assert target.fused_reason is None
    target.allocate(1, 16)
    target.prefill([0], [[1, 2, 3]])
    one = torch.zeros(1, 1, dtype=torch.long)
    target.verify(one, one[0] + 3, one, torch.ones(1, 1, 1, dtype=torch.bool), 16)
    assert len(entered) == 2


@pytest.mark.parametrize(("name", "words"), [("mistral", {}), ("llama", {"attention": "sdpa"})])
def test_windows_and_other_attentions_have_none(name, words):
    target = Target(AutoModelForCausalLM.from_config(family(name).model.config), **words)
    fuse(target)
    assert (target.fused, target.fused_reason) == (None, "its attention has a window, or is not the usual one")


def test_other_families_have_none():
    target = small_target("gpt_neox")
    fuse(target)
    assert (target.fused, target.fused_reason) == (None, "it is not built as Llama is")


@pytest.mark.parametrize(
    ("name", "error", "reason"),
    [
        ("attend_to_tree", RuntimeError("Failed to find C compiler.\nPlease specify."), "Failed to find C compiler."),
        ("_joined", torch.OutOfMemoryError("CUDA out of memory."), "CUDA out of memory."),
    ],
)
def test_kernels_that_do_not_run_leave_the_model_its_own_forward(monkeypatch, name, error, reason):
    """Triton needs a C compiler, and its errors have many classes; weights of one input are joined in new memory."""

    def fail(*args):
        raise error

    target = fusable_target()
    own = target.model.state_dict()
    monkeypatch.setattr(fused_forward, name, fail)
    fuse(target)
    assert (target.fused, target.cache) == (None, None)
    assert target.fused_reason == f"they do not run here: {reason}"
    assert all(value.equal(own[key]) for key, value in target.model.state_dict().items())


# --- what names do not tell is found by numbers


@pytest.mark.parametrize(
    "config",
    [
        GraniteConfig(**SMALL, embedding_multiplier=1.01),
        pytest.param(GraniteConfig(**SMALL, residual_multiplier=1.01), marks=pytest.mark.slow),
        HeliumConfig(**SMALL | {"pad_token_id": 0}, num_key_value_heads=2, head_dim=8),  # rotates neighbours
        pytest.param(SmolLM3Config(**SMALL | {"pad_token_id": 0}, no_rope_layers=[1, 0]), marks=pytest.mark.slow),
    ],
    ids=["embedding", "residual", "helium", "no positions"],
)
def test_other_arithmetic_is_refused(config):
    target = wrapped(config)
    assert fused_forward.refusal(target.model.get_decoder()) is None
    assert is_refused(target)


def test_what_changes_with_the_position_is_found_at_the_end_of_the_context():
    """Names refuse Ministral 3 already."""
    positions = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "llama_4_scaling_beta": 0.5}
    positions |= {"original_max_position_embeddings": 128}
    target = wrapped(
        Ministral3Config(**SMALL | {"pad_token_id": 0}, num_key_value_heads=2, head_dim=8, rope_parameters=positions)
    )
    assert worst_error(target, FusedForward(target.model.get_decoder())) > 1


# --- planted faults


def model(path: str, **others) -> Callable:
    """Return a fault: the own forward of a module reads other attributes than the kernels, functions of the module."""

    def forward(self, *args, **words):
        known = {name: getattr(self, name) for name in others}
        for name, value in {name: other(self) for name, other in others.items()}.items():
            setattr(self, name, value)
        output = type(self).__mro__[1].forward(self, *args, **words)
        for name, value in known.items():
            setattr(self, name, value)
        return output

    def plant(decoder, monkeypatch) -> None:
        module = decoder.get_submodule(path)
        module.__class__ = type("Other", (type(module),), {"forward": forward})

    return plant


def kernels(owner, name: str, change: Callable) -> Callable:
    """Return a fault: a function of the kernels, changed."""
    return lambda decoder, monkeypatch: monkeypatch.setattr(owner, name, change(getattr(owner, name)))


def first_tree(own: Callable) -> Callable:
    return lambda *args: own(*args[:4], args[4][:1].contiguous(), *args[5:])


def own_norm_again(own: Callable) -> Callable:
    def layer(self, number, *args):
        output, norm = own(self, number, *args)
        return output, norm and self._layers[number].norm

    return layer


LOUDER = {"weight": lambda own: nn.Parameter(own.weight * 1.01)}
EPSILON = {"variance_epsilon": lambda own: 1e-2}
EXCHANGED = {"gate_proj": lambda own: own.up_proj, "up_proj": lambda own: own.gate_proj}
FAULTS = {
    "attention scaling": ("llama", model("layers.1.self_attn", scaling=lambda own: own.scaling * 1.05)),
    "last norm": ("llama", model("norm", **LOUDER)),
    "layer's norm": ("llama", model("layers.0.input_layernorm", **LOUDER)),
    "epsilon": ("llama", model("layers.1.post_attention_layernorm", **EPSILON)),
    "last epsilon": ("llama", model("norm", **EPSILON)),
    "gelu": ("llama", model("layers.1.mlp", act_fn=lambda own: nn.GELU())),
    "packed gelu": ("phi3", model("layers.1.mlp", activation_fn=lambda own: nn.GELU())),
    "gate and up": ("llama", model("layers.0.mlp", **EXCHANGED)),
    "head norm": ("qwen3", model("layers.1.self_attn", q_norm=lambda own: own.k_norm)),
    "head norm's epsilon": ("qwen3", model("layers.1.self_attn.k_norm", **EPSILON)),
    "rotary base": ("llama", kernels(fused_forward, "Rotation", lambda own: lambda f, *a: own(f**1.01, *a))),
    "bias": ("qwen2", kernels(fused_forward, "_joined_bias", lambda own: lambda layers: None)),
    "mask": (
        "llama",
        kernels(
            fused_forward, "attend_to_tree", lambda own: lambda *a: own(*a[:4], torch.ones_like(a[4]).tril(), *a[5:])
        ),
    ),
    "mask of each sequence": ("llama", kernels(fused_forward, "attend_to_tree", first_tree)),
    "norm of the next layer": ("llama", kernels(FusedForward, "layer", own_norm_again)),
    "head of one row": ("llama", kernels(FusedForward, "scores", lambda own: lambda *args: own(*args) * 1.2)),
    "keys": (
        "llama",
        kernels(fused_forward, "rotate_and_store", lambda own: lambda *a: own(*a[:3], a[3].clone(), *a[4:])),
    ),
    "one row": ("llama", kernels(few_rows_linear, "row_linear", lambda own: lambda *args: own(*args) * 1.01)),
    "not a number": ("llama", kernels(FusedForward, "last_norm", lambda own: lambda *args: own(*args) * torch.nan)),
}


DAILY = {"gelu", "norm of the next layer"}  # one of the model, one of the kernels


@pytest.mark.parametrize("name", slow_unless(lambda name: name in DAILY, FAULTS))
def test_planted_faults_are_found_in_bfloat16(name, monkeypatch):
    kind, plant = FAULTS[name]
    compare(monkeypatch, SMALL_TREES[name == "one row"])
    target = fusable_target(kind, dtype=torch.bfloat16)
    plant(target.model.get_decoder(), monkeypatch)
    assert is_refused(target)


# --- without Triton

LOADED = """
import sys
sys.modules["triton"] = None  # not installed, as importing and looking for it go
from executor.target import fused_verification
from executor.target.load_hf_model import load_target
target = load_target(sys.argv[1], packed=True)
assert not [name for name in sys.modules if name.startswith("executor.kernels")]
target.allocate(1, 16)
target.prefill([0], [[1, 2, 3]])
print(target.fused_reason)
fused_verification.DEVICE = "cpu"
fused_verification.fuse(target)
print(target.fused_reason)
"""


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "llama"
    small_target().model.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_models_load_without_triton(stored):
    """And where it is installed, no kernels are imported for a model on CPU."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(stored)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["they are for CUDA", "Triton is not installed"]


# --- the model stays what it was


def test_weights_and_their_hash_are_unchanged(tmp_path):
    """Views of one tensor are saved one by one."""
    target = fusable_target("qwen2")
    before = {name: value.clone() for name, value in target.model.state_dict().items()}
    known = weights_hash(target.model)
    fuse(target)
    assert weights_hash(target.model) == known
    target.model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert set(stored) == set(before)
    assert all(stored[name].equal(value) for name, value in before.items())
    size = sum(value.nbytes for value in before.values())
    assert (tmp_path / "model.safetensors").stat().st_size < size + 8192  # names and shapes
    assert load_target(tmp_path, packed=True).fused is not None


def test_compiled_targets_run_their_own_forward(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda forward, **options: forward)
    monkeypatch.setattr(fused_verification, "worst_error", lambda *args: 0.0)
    target = fusable_target()
    fuse(target)
    target.compile()
    assert (target.fused, target.fused_reason) == (None, "the model's forward is compiled")


# --- resumed runs


def test_a_run_without_kernels_is_resumed_without(monkeypatch):
    monkeypatch.setattr(fused_verification, "worst_error", lambda *args: 0.0)
    target = fusable_target()
    fuse(target)
    recorded = json.loads(json.dumps(run_provenance(target, None)))
    compute_as_recorded(target, None, recorded)
    assert target.fused is not None
    del recorded["fused"]
    compute_as_recorded(target, None, recorded)
    assert (target.fused, target.fused_reason) == (None, "the run that is resumed did not use them")


def test_a_run_with_kernels_is_not_resumed_without(monkeypatch):
    """On another kind of device it may be."""
    target = small_target()
    monkeypatch.setattr(fused_verification, "find_spec", lambda name: None)
    fuse(target)
    with pytest.raises(ExecutorError, match=r"fused kernels, here it cannot \(Triton is not installed\)"):
        compute_as_recorded(target, None, {"fused": ["target"]})
    monkeypatch.setattr(fused_verification, "DEVICE", "cuda")
    compute_as_recorded(target, None, {"fused": ["target"]})
