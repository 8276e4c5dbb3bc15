"""Load the target and the drafter of a run, on its device: from folders, or with random weights."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from executor.target import NUMBER_TYPES, QUANTIZED
from treeopt.api.messages import note, warn
from treeopt.errors import UsageError
from treeopt.settings import Settings, setting

if TYPE_CHECKING:
    from executor.drafters.base.drafter import Drafter
    from executor.target.target_model import Target

# Libraries that log details of themselves while they are imported.
VERBOSE = ("torchao", "torch.utils._pytree")


@dataclass(frozen=True, kw_only=True)
class Models(Settings):
    """The target and the drafter, and how to load them."""

    target: Path = setting(help="Folder of the target, a Hugging Face model.")
    drafter: Path | None = setting(
        None, help="Folder of the drafter, or prompt-lookup, or an engine's, such as prompt-lookup:vllm:2-4."
    )
    random_weights: bool = setting(
        False,
        help="Draw the weights: --target is then a folder with a config.json, or a shape (toy, 100m, 1b, 8b, 14b, 70b, "
        "which are always drawn); --drafter is medusa:K (K heads), layers:N (the target's first N layers) or eagle.",
    )
    assume_same_tokens: bool = setting(
        False, help="With a language model as the drafter: do not compare its tokens with the target's."
    )
    device: str = setting("auto", help="Where to run: cpu, cuda, cuda:1, ...; auto: cuda where there is one, else cpu.")
    dtype: str = setting(
        "auto",
        choices=("auto", "saved", *NUMBER_TYPES),
        help="Number type of the computation and of the cache; saved: the type that the target was saved in; auto: "
        "float32 on a CPU, saved elsewhere (bfloat16 with --random-weights).",
    )
    quantize: str | None = setting(None, choices=QUANTIZED, help="Quantise the target's linear layers to 8 or 4 bits.")
    tensor_parallel: bool = setting(False, help="Share the target among the processes that torchrun started.")
    threads: int | None = setting(None, least=1, help="CPU threads, at most 4 per core; default torch's choice.")

    def or_shape(self) -> "Models":
        """Return the same with random weights where the target is a shape such as `8b`, which has none of its own."""
        from simulate.model_sizes.hf_config import shape_name

        return replace(self, random_weights=self.random_weights or shape_name(self.target) is not None)

    def resolved(self) -> "Models":
        """Return the same with the device and the number type that `auto` stands for on this machine."""
        from executor.target.load_hf_model import chosen_device

        device, dtype = chosen_device(self.device), self.dtype
        if dtype == "auto":
            dtype = "float32" if device == "cpu" else "bfloat16" if self.random_weights else "saved"
        return replace(self, device=device, dtype=dtype)


def quiet_libraries() -> None:
    """Silence libraries that log while they are imported; call it before anything imports torch."""
    for name in VERBOSE:
        logging.getLogger(name).setLevel(logging.ERROR)


def load_models(models: Models) -> "tuple[Target, Drafter]":
    """Load target and drafter; see `load_target_and_drafter`."""
    target, drafter = load_target_and_drafter(models)
    assert drafter is not None, "callers that need a drafter give one"
    return target, drafter


def load_target_and_drafter(models: Models) -> "tuple[Target, Drafter | None]":
    """Load the target and, where one was given, the drafter, on the device.

    Raises:
        UsageError: several processes were started and each would do the whole work.
        ExecutorError: models that cannot be loaded, or do not fit each other.
    """
    quiet_libraries()
    from executor.checkpoints import assumptions_of, load_drafter, warnings_of
    from executor.target.load_hf_model import dtype_name, load_target, prepare
    from executor.target.tensor_parallel import launched_processes
    from executor.target.tokenizer import check_same_tokens

    if launched_processes() > 1 and not models.tensor_parallel:
        raise UsageError(
            f"{launched_processes()} processes were started for one target: add --tensor-parallel, or start one"
        )
    models = models.resolved()
    prepare(models.device, threads=models.threads, tensor_parallel=models.tensor_parallel)
    if models.random_weights:
        return _random_models(models)
    check_weights(models)
    target = load_target(
        models.target,
        dtype="auto" if models.dtype == "saved" else models.dtype,
        device=models.device,
        quantize=models.quantize,
        tensor_parallel=models.tensor_parallel,
        packed=True,
    )
    warn([*target.warnings, *slow_type_warnings(dtype_name(target.dtype), target)])
    if target.attention_reason is not None:
        note([f"attention: {target.attention}, {target.attention_reason}"])
    note(kernel_notes(target))
    if models.drafter is None:
        return target, None
    drafter = load_drafter(models.drafter, target, packed=True)
    warn(warnings_of(drafter))
    note(assumptions_of(drafter))
    if drafter.kind == "language-model" and not models.assume_same_tokens:
        warn(check_same_tokens(models.target, models.drafter, target.vocabulary))
    warn(_other_target_warnings(models, target))
    return target, drafter


def check_weights(models: Models) -> None:
    """Raise UsageError if the target is a shape, which has sizes but no weights to load."""
    from simulate.model_sizes.hf_config import shape_name

    if shape_name(models.target) is not None:
        raise UsageError(
            f"--target {models.target}: a shape has sizes but no weights: name a model's folder, or measure the shape "
            "with random weights (`treeopt profile`, `treeopt validate`) or price it (`treeopt whatif`)"
        )


def slow_type_warnings(dtype: str, target: "Target") -> list[str]:
    """Warn if the target's device has no products of a type that could be replaced by another."""
    from executor.target.packed_linears import multiplies_bf16
    from executor.target.quantization import quantization_of

    if dtype != "bfloat16" or multiplies_bf16(target.device) or quantization_of(target.model) is not None:
        return []
    return ["this processor has no bfloat16 products: float32 takes half the time or less"]


def kernel_notes(target: "Target") -> list[str]:
    """Say on CUDA why fused kernels are not used."""
    if target.device.type != "cuda" or target.fused_reason is None:
        return []
    return [f"fused kernels are not used: {target.fused_reason}"]


def is_main_rank() -> bool:
    """Return whether this process prints and writes; ask when models are loaded."""
    from executor.target.tensor_parallel import is_main_rank

    return is_main_rank()


def _other_target_warnings(models: Models, target: "Target") -> list[str]:
    """Warn if the drafter names another target that it was made for; its shapes fit this one.

    A target that was trained together with its drafter lies below it, under a name of its own.
    """
    from executor.checkpoints import trained_for

    assert models.drafter is not None
    name = trained_for(models.drafter)
    folder = models.drafter.parent if models.drafter.is_file() else models.drafter
    together = models.target.resolve().parent == folder.resolve()
    if name in (None, target.name) or together:
        return []
    return [f"{models.drafter} was made for the target {name}, this one is {target.name}"]


def _random_models(models: Models) -> "tuple[Target, Drafter]":
    """Return target and drafter with random weights."""
    if models.quantize is not None or models.tensor_parallel or models.dtype == "saved":
        raise UsageError("--random-weights does not take --quantize, --tensor-parallel or --dtype saved")
    from executor.models.random_weights import random_drafter, random_target
    from executor.target.load_hf_model import DTYPES

    target = random_target(models.target, dtype=DTYPES[models.dtype], device=models.device, packed=True)
    warn(slow_type_warnings(models.dtype, target))
    note(kernel_notes(target))
    return target, random_drafter(str(models.drafter), target, packed=True)
