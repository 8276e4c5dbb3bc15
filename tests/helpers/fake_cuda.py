"""A CUDA device that is not there: its tensors have shapes but no values, and torch's CUDA objects do nothing.

`FakeTensorMode` raises when the host asks for a value or for a shape that depends on one, and when an operator is given
tensors of both devices. `Queued` refuses the rest of what makes the host wait, or what a real device refuses.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from executor.decoding import cuda_graphs
from executor.decoding.decoder import Decoder, LaunchedStep
from executor.drafters.base.drafter import Drafter
from executor.drafters.language_model.drafter import LanguageModel
from executor.target.target_model import Target

CUDA = torch.device("cuda", 0)
COPIES = {"aten::_to_copy": 6, "aten::copy_": 2}  # operator: place of the argument `non_blocking`
INDEXED = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")


class WaitError(Exception):
    """The host waited for the device."""


class Queued(TorchDispatchMode):
    """Refuses copies between host and device that are not queued, among them those of indices and of numbers.

    Attributes:
        calls: operators that passed.
    """

    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func._schema.name
        if name in INDEXED and args[0].device.type == "cuda":
            # A number that is put at indices is made on the host first, and copied.
            given = [*args[1], *(args[2:3] if "put" in name else ())]
            if any(x is not None and x.device.type != "cuda" for x in given):
                raise WaitError(f"{name}: from the host")
        found = func(*args, **kwargs)
        if name in COPIES:
            place = COPIES[name]
            queued = kwargs.get("non_blocking", len(args) > place and args[place])
            ends = (args[0].device, (args[1] if name == "aten::copy_" else found).device)
            if ends[0] != ends[1] and not queued:
                raise WaitError(f"{name}: {ends}")
        self.calls += 1
        return found


class _Unpinned(TorchFunctionMode):
    """Makes tensors without pinned memory, which needs a device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)
        return func(*args, **kwargs)


@contextmanager
def _guarded() -> Iterator[None]:
    """Let torch switch to the device, which does nothing, as it does with `meta`; a CPU build of torch refuses to."""
    folder = Path(torch.__file__).parent / "lib"
    library = ctypes.CDLL(str(next(folder.glob("*c10.*"))))
    guards = (ctypes.c_void_p * 21).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")  # by c10::DeviceType
    cuda, meta, before = 1, 14, guards[1]
    guards[cuda] = before or guards[meta]
    try:
        yield
    finally:
        guards[cuda] = before


class _Event:
    def __init__(self, enable_timing: bool = False) -> None: ...
    def record(self, stream: object = None) -> None: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, end: "_Event") -> float:
        return 1.0


class _Stream:
    def __init__(self, device: object = None) -> None: ...
    def wait_stream(self, stream: object) -> None: ...


class _Graph:
    def replay(self) -> None: ...
    def register_generator_state(self, generator: torch.Generator) -> None: ...


STANDINS: dict[str, Any] = {
    "Event": _Event,
    "Stream": _Stream,
    "CUDAGraph": _Graph,
    "current_stream": _Stream,
    "stream": nullcontext,
    "device": nullcontext,
    "graph": lambda graph, pool, stream: nullcontext(),
    "graph_pool_handle": lambda: 0,
    "synchronize": lambda device: None,
    "empty_cache": lambda: None,
    "set_sync_debug_mode": lambda mode: None,
    "memory_reserved": lambda device: 0,
    "memory_allocated": lambda device: 0,
    "mem_get_info": lambda device: (2**40, 2**40),
}


@contextmanager
def fake_cuda(*models: Target | Drafter) -> Iterator[None]:
    """Inside, a device `cuda` exists; what was made outside must be `moved`.

    Targets and language models among `models` first measure, by reading, what they measure once.
    """
    for model in models:
        for target in (model, getattr(model, "target", None)):
            if isinstance(target, Target):
                _measured(target)
    with pytest.MonkeyPatch.context() as patch, _guarded(), FakeTensorMode(), _Unpinned():
        for name, standin in STANDINS.items():
            patch.setattr(torch.cuda, name, standin)
        patch.setattr(torch.backends.cuda, "enable_cudnn_sdp", lambda enabled: None)
        cuda_graphs._stream.cache_clear()
        yield
    cuda_graphs._stream.cache_clear()


def moved(module: nn.Module) -> nn.Module:
    """Move a module's parameters and buffers, and nothing else, to the device, as `Module.to` would.

    Rotary frequencies of drafters are no part of their module; the first forward moves them, and waits this once.
    """
    for part in module.modules():
        for rotary in getattr(part, "_rotary", ()):
            moved(rotary)
        for held in (part._parameters, part._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    fake: Tensor = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=CUDA)
                    held[name] = nn.Parameter(fake, requires_grad=False) if held is part._parameters else fake
    return module


def moved_target(target: Target) -> Target:
    """Move a target that has measured what it measures once."""
    model = moved(target.model)
    assert isinstance(model, PreTrainedModel)
    found = Target(model, name=target.name)
    vars(found).update(_measured(target))
    return found


def _measured(target: Target) -> dict[str, Any]:
    return {"layout": target.layout, "head_scaling": target.head_scaling}


def moved_drafter(drafter: Any) -> Any:
    """Move a drafter; a language model is wrapped anew, since it makes tensors when it is."""
    return LanguageModel(moved_target(drafter.target)) if isinstance(drafter, LanguageModel) else moved(drafter)


def trace(decoder: Decoder, prompts: list[list[int]], *, new_tokens: int) -> tuple[int, int]:
    """Run the loop; return its steps and the operators that it called. Each step accepts one drafted token, if any.

    Raises:
        Exception: a step reads from the device, waits for it, or mixes devices.
    """
    accepted = min(1, decoder.growth.depth)

    def read(step: LaunchedStep) -> list[list[int]]:
        rows, width = step.outcome.shape
        return [[accepted, accepted, 1, *[2] * (width - 3)]] * rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LaunchedStep, "read", read)
        patch.setattr(cuda_graphs, "WARM_UP", 1)
        steps = decoder.steps(prompts, new_tokens=new_tokens)
        with Queued() as mode:
            return sum(1 for _ in steps), mode.calls
