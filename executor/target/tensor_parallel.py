"""Tensor parallelism: one model split over several processes, and checks that all of them compute the same.

The sharding is transformers' own (tensor parallelism under torchrun); nothing is sharded here. Every process runs the
same program on the same inputs and must make the same decisions, so each needs the whole logits, bit for bit.
"""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers.distributed.configuration_utils import DistributedConfig

from executor.target.target_model import Target
from treeopt.errors import ExecutorError

LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
# Their outputs are attention heads: split between heads, never through one.
ATTENTION_INPUTS = ("k_proj", "qkv_proj", "query_key_value")
PROBE_TOKENS = 4


def launched_processes() -> int:
    """Return the number of processes that torchrun started, this one included; 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if dist.is_torchelastic_launched() else 1


def local_device(device: str) -> str:
    """Return the device of this process: under torchrun, cuda is the device of its local rank.

    >>> local_device("cpu")
    'cpu'
    """
    return f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" and launched_processes() > 1 else device


def processes() -> int:
    """Return the number of processes that hold the model together; 1 without a group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_main_rank() -> bool:
    """Return whether this process prints and writes for all; True when it is the only one.

    >>> is_main_rank()
    True
    """
    return processes() == 1 or dist.get_rank() == 0


def sharding(path: Any, config: Any, device: str) -> DistributedConfig:
    """Return the setting with which transformers splits a model of this configuration over torchrun's processes.

    Raises:
        ExecutorError: there are no other processes, transformers would use another device, or the model cannot be
            split into this number of parts.
    """
    if any(name not in os.environ for name in LAUNCHER) or (size := int(os.environ["WORLD_SIZE"])) < 2:
        raise ExecutorError(
            "tensor parallelism needs two processes or more, started together: torchrun --nproc-per-node 2 ..."
        )
    taken = (torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")).type
    if device != taken:
        raise ExecutorError(
            f"device {device}: with tensor parallelism each process takes the {taken} device of its local rank; "
            f"give {taken}"
        )
    text = config.get_text_config()
    plan = getattr(text, "base_model_tp_plan", None)
    if not plan:
        raise ExecutorError(f"{path}: transformers has no tensor-parallel plan for {config.model_type} models")
    heads = {"attention": int(text.num_attention_heads)}
    heads["key/value"] = int(getattr(text, "num_key_value_heads", None) or heads["attention"])
    if any(name.endswith(ATTENTION_INPUTS) and style == "colwise" for name, style in plan.items()):
        for kind, count in heads.items():
            if count % size:
                raise ExecutorError(f"{path}: its {count} {kind} heads cannot be split evenly over {size} processes")
    return DistributedConfig(tp_plan="auto")


def check_agreement(target: Target) -> None:
    """Refuse a sharded model whose processes do not compute the same, whole logits and features.

    Raises:
        ExecutorError: logits or features are partial, or differ from the main process's.
    """
    outputs = target.features(torch.arange(PROBE_TOKENS, device=target.device)[None] % target.vocabulary)
    for name, value, width in (
        ("logits", outputs.logits, target.vocabulary),
        ("features", outputs.features, target.hidden),
    ):
        if isinstance(value, DTensor) or value.shape[-1] != width:
            raise ExecutorError(f"{target.name}: its tensor-parallel plan leaves the {name} in parts")
        main = value.contiguous().clone()
        dist.broadcast(main, src=0)
        same = torch.tensor(int(torch.equal(main, value)), device=value.device)
        dist.all_reduce(same, op=dist.ReduceOp.MIN)
        if not same.item():
            raise ExecutorError(f"{target.name}: the processes compute different {name}; use devices of one kind")


def leave() -> None:
    """Leave the process group, if there is one; the last call of a program that succeeded.

    PyTorch now and then aborts a process that ends within its group (github.com/pytorch/pytorch/issues/190489). After
    an error do not leave: others may still wait for this process, and the launcher stops them.
    """
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor, of which each process may hold a part; every process must call."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
