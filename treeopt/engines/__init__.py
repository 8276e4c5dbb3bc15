"""Engines that a plan can be handed to, by name; one a file."""

from collections.abc import Callable, Mapping

from treeopt.engines import medusa, sglang, vllm
from treeopt.engines.base import Export

ENGINES: Mapping[str, Callable[..., Export]] = {
    "medusa": medusa.export,
    "sglang": sglang.export,
    "vllm": vllm.export,
}
