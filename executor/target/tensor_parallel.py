"""Several processes that hold one model: who speaks for them, what can be shared out, and that all see the same.

The sharding is transformers' own (tensor parallelism under torchrun); nothing is sharded here. Every process runs the
same program on the same inputs and must take the same decisions, so each needs the whole logits, bit for bit.
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
# Their outputs are heads: cut between two of them, never through one.
ATTENTION_INPUTS = ("k_proj", "qkv_proj", "query_key_value")
PROBE_TOKENS = 4


def launched() -> int:
    """How many processes torchrun started, this one included; 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if dist.is_torchelastic_launched() else 1


def local_device(device: str) -> str:
    """The device of this process: of several that torchrun started, cuda is that of its local rank.

    >>> local_device("cpu")
    'cpu'
    """
    return f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" and launched() > 1 else device


def processes() -> int:
    """How many processes hold the model together; 1 when there is no group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_main_rank() -> bool:
    """Whether this process prints and writes for all; true when it is the only one.

    >>> is_main_rank()
    True
    """
    return processes() == 1 or dist.get_rank() == 0


def sharding(path: Any, config: Any, device: str) -> DistributedConfig:
    """How transformers is to share a model of this configuration out over the processes of torchrun.

    Raises:
        ExecutorError: there are no other processes, they are to run on a device that transformers would not take, or
            the model cannot be cut into so many parts.
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
                raise ExecutorError(
                    f"{path}: its {count} {kind} heads cannot be shared out evenly over {size} processes"
                )
    return DistributedConfig(tp_plan="auto")


def check_agreement(target: Target) -> None:
    """Refuse a sharded model whose processes do not see the same, whole logits and features.

    Raises:
        ExecutorError: what is partial, or differs from the main process's.
    """
    found = target.features(torch.arange(PROBE_TOKENS, device=target.device)[None] % target.vocabulary)
    for name, value, width in (
        ("logits", found.logits, target.vocabulary),
        ("features", found.features, target.hidden),
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
    """End this process's part in the group, if it is in one; the last thing that a program does when all went well.

    PyTorch now and then aborts a process that ends within its group (github.com/pytorch/pytorch/issues/190489). After
    an error nobody need leave: others may still wait for this process, and its launcher stops them.
    """
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor of which each process may hold a part; every process must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
