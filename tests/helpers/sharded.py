"""One process of a shared-out target, which torchrun starts in `test_load_hf_model.py`; pytest does not collect it."""

import json
import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from executor.models import device_name, identity
from executor.target.load_hf_model import load_target, prepare
from executor.target.target_model import Target
from executor.target.tensor_parallel import is_main_rank, leave
from executor.verification.tree_tensors import Topology
from tests.helpers.models import random_heads, random_prompts
from treeopt.errors import ExecutorError
from treeopt.tree import Tree

TREE = Tree.from_paths([(0, 0, 0), (0, 1), (1, 0), (2,)])
LENGTHS = (5, 9)


def decoded(target: Target) -> dict[str, Tensor]:
    """What a prefill, two verified trees with a commit between, and the drafter's view of the head give."""
    found: dict[str, Tensor] = {}
    prompts = random_prompts(LENGTHS)
    target.allocate(len(prompts), 64)
    found["prefill 0"], found["prefill 1"] = target.prefill([0, 1], prompts)
    topology = Topology.of(TREE, target.device)
    lengths = torch.tensor(LENGTHS)
    roots = torch.tensor([[7], [11]])
    for step in range(2):
        drafted = torch.tensor(random_prompts([TREE.nodes] * 2, seed=step + 1))
        out = target.verify(torch.cat([roots, drafted], 1), lengths, topology.depth, topology.ancestors, 40)
        found[f"logits {step}"], found[f"features {step}"] = out.logits, out.features
        found[f"choices {step}"] = out.logits.argmax(-1)
        # As if the first path's first two nodes were accepted in one sequence, the last child in the other.
        path = topology.path[0, [5, 4]][:, : 2 + 1]
        target.cache.compact(lengths, path)
        roots = found[f"choices {step}"].gather(1, path[:, -1:])
        lengths = lengths + torch.tensor([3, 2])
    heads = random_heads()
    found["drafted"] = next(heads.teacher_forced(target, lengths[None], out.features[:1, :2], 1)).scores
    generator = torch.Generator(device=target.device).manual_seed(5)
    found["sampled"] = torch.multinomial(out.logits[0].softmax(-1), 1, generator=generator)
    assert all(type(value) is Tensor for value in found.values())
    return {name: value.contiguous() for name, value in found.items()}


def main(folder: Path) -> None:
    rank = int(os.environ["RANK"])
    prepare("cpu", threads=1, tensor_parallel=True)
    said: dict[str, object] = {"main": is_main_rank()}
    for model in sorted(folder.glob("*/config.json")):
        name = model.parent.name
        try:
            target = load_target(model.parent, tensor_parallel=True)
        except ExecutorError as error:
            said[name] = str(error)
            continue
        save_file(decoded(target), folder / f"{name}.{rank}.safetensors")
        keys, _ = target.cache.stores
        said[name] = {"heads": keys.shape[2], "identity": identity(target, random_heads())["target"]}
    said |= {"main": is_main_rank(), "device": device_name(torch.device("cpu"))}
    for label, settings in (("quantize", {"quantize": "int8"}), ("device refused", {"device": "cuda:1"})):
        try:
            load_target(folder / "llama", tensor_parallel=True, **settings)
        except ExecutorError as error:
            said[label] = str(error)
    (folder / f"said.{rank}.json").write_text(json.dumps(said))
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
