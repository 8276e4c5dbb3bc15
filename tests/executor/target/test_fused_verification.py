"""Which targets verify by fused kernels, that a wrong kernel is noticed, and that the model stays what it was."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GraniteConfig, HeliumConfig, LlamaConfig, Ministral3Config, SmolLM3Config

from executor.kernels import few_rows_linear, fused_forward
from executor.kernels.few_rows_linear import Around
from executor.kernels.fused_forward import FusedForward
from executor.models.fingerprint import compute_as_recorded, run_provenance, weights_hash
from executor.target import fused_verification
from executor.target.fused_verification import device_refusal, fuse, worst_error
from executor.target.load_hf_model import load_target
from executor.target.target_model import Target
from tests.helpers.interpreted_kernels import fusable_target, mend_products_of_bfloat16, take_wide_blocks
from tests.helpers.model_families import family
from tests.helpers.models import SMALL, small_target
from treeopt.errors import ExecutorError

ROOT = Path(__file__).resolve().parent.parent.parent.parent


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch):
    monkeypatch.setattr(fused_verification, "DEVICE", "cpu")
    take_wide_blocks(monkeypatch)


def wrapped(config) -> Target:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    return Target(model.eval())


# --- who has them


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_rounding_causes_is_far_from_the_limit(dtype, monkeypatch):
    mend_products_of_bfloat16(monkeypatch)
    target = fusable_target("qwen3", dtype=dtype)
    assert worst_error(target, FusedForward(target.model.get_decoder())) < 0.5


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
    """Large trees would need more shared memory than most have, which a small tree at load does not show."""
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
        pytest.param(LlamaConfig(**SMALL, hidden_act="gelu"), marks=pytest.mark.slow),
        HeliumConfig(**SMALL | {"pad_token_id": 0}, num_key_value_heads=2, head_dim=8),  # rotates neighbours
        SmolLM3Config(**SMALL | {"pad_token_id": 0}, no_rope_layers=[1, 0]),
    ],
    ids=["embedding", "residual", "gelu", "helium", "no positions"],
)
def test_other_arithmetic_is_refused(config):
    target = wrapped(config)
    assert fused_forward.refusal(target.model.get_decoder()) is None
    fuse(target)
    assert target.fused is None
    assert target.fused_reason.startswith("they compute something else than the model (")


def test_what_changes_with_the_position_is_found_at_the_end_of_the_context():
    """Names refuse Ministral 3 already."""
    positions = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "llama_4_scaling_beta": 0.5}
    positions |= {"original_max_position_embeddings": 128}
    target = wrapped(
        Ministral3Config(**SMALL | {"pad_token_id": 0}, num_key_value_heads=2, head_dim=8, rope_parameters=positions)
    )
    assert worst_error(target, FusedForward(target.model.get_decoder())) > 1


# --- planted faults


def scale(fused: FusedForward, monkeypatch) -> None:
    fused._layers[1].scale *= 1.05


def positions(fused: FusedForward, monkeypatch) -> None:
    own = fused.rotation
    fused.rotation = lambda hidden, at: own(hidden, at + (at > 13))


def epsilon(fused: FusedForward, monkeypatch) -> None:
    monkeypatch.setattr(fused_forward, "_norm", lambda module: (module.weight, module.variance_epsilon + 1e-2))


def residual(fused: FusedForward, monkeypatch) -> None:
    own = fused_forward.linear

    def without(x, weight, around):
        return own(x, weight, Around(around.norm, around.bias, None, around.gated))

    monkeypatch.setattr(fused_forward, "linear", without)


def exchanged(fused: FusedForward, monkeypatch) -> None:
    layer = fused._layers[1]
    layer._joined_gate_up = layer._joined_gate_up.roll(len(layer._joined_gate_up) // 2, 0)


def bias(fused: FusedForward, monkeypatch) -> None:
    fused._layers[0]._bias = None


def head_norms(fused: FusedForward, monkeypatch) -> None:
    fused._layers[0]._head_norms = [None, None]


def last_norm(fused: FusedForward, monkeypatch) -> None:
    own = fused.last_norm
    fused.last_norm = lambda hidden: own(hidden) * 1.01


def mask(fused: FusedForward, monkeypatch) -> None:
    own = fused_forward.attend_to_tree
    monkeypatch.setattr(
        fused_forward,
        "attend_to_tree",
        lambda q, k, v, lengths, above, *rest: own(q, k, v, lengths, torch.ones_like(above).tril(), *rest),
    )


def one_row(fused: FusedForward, monkeypatch) -> None:
    own = few_rows_linear.row_linear
    monkeypatch.setattr(few_rows_linear, "row_linear", lambda *args: own(*args) * 1.05)


def not_a_number(fused: FusedForward, monkeypatch) -> None:
    own = fused.last_norm
    fused.last_norm = lambda hidden: own(hidden).fill_(torch.nan)


FAULTS = [
    ("llama", scale),
    ("llama", positions),
    ("llama", epsilon),
    ("llama", residual),
    ("llama", exchanged),
    ("qwen2", bias),
    ("qwen3", head_norms),
    ("llama", last_norm),
    ("llama", mask),
    ("llama", one_row),
    ("llama", not_a_number),
]


@pytest.mark.parametrize(("kind", "fault"), FAULTS, ids=[fault.__name__ for _, fault in FAULTS])
def test_planted_faults_are_found(kind, fault, monkeypatch):
    target = fusable_target(kind)
    fused = FusedForward(target.model.get_decoder())
    fault(fused, monkeypatch)
    assert worst_error(target, fused) > 1


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
    target = fusable_target()
    fuse(target)
    target.compile()
    assert (target.fused, target.fused_reason) == (None, "the model's forward is compiled")


# --- resumed runs


def test_a_run_without_kernels_is_resumed_without(monkeypatch):
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
