"""A device that is not there: its tensors lie on the CPU, and refuse to meet any that were made elsewhere.

What runs on a GPU must make every tensor there. On the CPU nobody notices one that was not; here an operator that is
given both raises `MixedError`. A step must not copy from one to the other either, for the host would wait: inside
`Device.kept_apart` that raises too.

A program, since a device once registered is there for good: `python -m tests.helpers.foreign_device` does the jobs
that its input names and prints what came of each.
"""

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from executor.decoding.batch_rows import Rows
from executor.decoding.decoder import Decoder
from executor.decoding.dynamic_growth import AskingGrowth
from executor.drafters.base.drafter import Drafter
from executor.drafters.language_model.drafter import LanguageModel
from executor.profiling.measure_steps import measure_profile
from executor.profiling.profile_settings import Measuring
from executor.prompts.prompt_files import Prompt
from executor.recording.collect_trace import collect
from executor.runners.loop_runner import LoopRunner
from executor.target.target_model import Target
from executor.verification.acceptance_rules import make_rule
from executor.verification.replayed_acceptance import Imposed
from executor.verification.temperature_top_k_top_p import Warp
from tests.executor.decoding.test_host_reads import ASKING, TREES
from tests.helpers.drafters import MAKE, random_drafter
from tests.helpers.models import random_heads, random_prompts, small_model, small_target
from treeopt.policies import DynamicTree
from treeopt.traces.trace import Trace

NAME = "apart"
COPIES = ("aten::_to_copy", "aten::copy_", "aten::_copy_from")
PROMPTS = random_prompts((7, 1, 5, 9, 3))
SHAPES = TREES | ASKING


class MixedError(Exception):
    """An operator was given tensors of both devices."""


class CrossingError(Exception):
    """A step copied from one device to the other."""


class Apart(Tensor):
    """A tensor of the device; `inner` is the CPU's that it stands for."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Apart":
        return Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("outside of Device")


class Device(TorchDispatchMode):
    """While it lasts, the device is there."""

    crossing = True

    @contextmanager
    def kept_apart(self) -> Iterator[None]:
        self.crossing = False
        try:
            yield
        finally:
            self.crossing = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, asked = func._schema.name, kwargs.get("device")
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        ours = {id(x.inner): x for x in given if isinstance(x, Apart)}
        there = bool(ours) if asked is None else torch.device(asked).type == NAME
        mixed = bool(ours) and not all(isinstance(x, Apart) for x in given)
        if name in COPIES:
            if not self.crossing and (mixed or bool(ours) != there):
                raise CrossingError(name)
        elif mixed and (any(x.dim() and not isinstance(x, Apart) for x in given) or "index_put" in name):
            raise MixedError(f"{name}: {[(type(x).__name__, tuple(x.shape)) for x in given]}")
        if not self.crossing and ours and name == "aten::_local_scalar_dense":
            raise CrossingError(name)
        inner_args, inner_kwargs = tree_map(lambda x: x.inner if isinstance(x, Apart) else x, (args, kwargs))
        found = func(*inner_args, **(inner_kwargs if asked is None else {**inner_kwargs, "device": "cpu"}))
        if not there:
            return found

        def outer(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            return ours[id(x)] if id(x) in ours else Apart(x)

        return tree_map(outer, found)


def register() -> torch.library.Library:
    """Make the device known to torch; `torch.tensor` asks for its memory behind every mode's back."""
    _setup_privateuseone_for_python_backend(NAME)
    library = torch.library.Library("aten", "IMPL")

    def strided(size: Any, stride: Any, dtype: Any = None, **_: Any) -> Tensor:
        return Apart(torch.empty_strided(size, stride, dtype=dtype))

    def copied(source: Any, goal: Any, non_blocking: bool = False) -> Tensor:
        ends = [x.inner if isinstance(x, Apart) else x for x in (source, goal)]
        ends[1].copy_(ends[0])
        return goal  # type: ignore[no-any-return]

    library.impl(
        "empty.memory_format", lambda size, dtype=None, **_: Apart(torch.empty(size, dtype=dtype)), "PrivateUse1"
    )
    library.impl("empty_strided", strided, "PrivateUse1")
    library.impl("_copy_from", copied, "PrivateUse1")
    return library


# --- jobs: each gives the same on every device


def models(kind: str, device: str) -> tuple[Target, Drafter]:
    """A small target and a drafter of a kind, both with random weights."""
    target = Target(small_model().to(device))
    if kind == "language-model":
        return target, LanguageModel(Target(small_model(seed=1).to(device)))
    drafter = random_drafter(kind, small_target()) if kind in MAKE else random_heads(heads=3)
    return target, drafter.to(device)


def decode(device: str, *, kind: str, rule: str, tree: str) -> Any:
    """Tokens and accepted lengths, requests being replaced, outcomes read late."""
    target, drafter = models(kind, device)
    warp = None if rule == "greedy" else Warp(1.2, 40, 0.9)
    made = make_rule(rule, warp=warp, generator=torch.Generator().manual_seed(0))
    decoder = Decoder(target, drafter, tree=SHAPES[tree], batch=2, rule=made, late=1)
    return [[found.tokens, found.accepted] for found in decoder.generate(PROMPTS, new_tokens=12)]


def impose(device: str) -> Any:
    """Accepted lengths that a trace imposes."""
    target, drafter = models("medusa", device)
    rng, (requests, length) = torch.Generator().manual_seed(0), (5, 12)
    rank = torch.randint(-1, 3, (requests * length, 3), generator=rng).to(torch.int16).numpy()
    position = torch.arange(length, dtype=torch.int32).repeat(requests).numpy()
    for depth in range(3):
        rank[position + depth >= length, depth] = -2
    request = torch.arange(requests, dtype=torch.int32).repeat_interleave(length).numpy()
    tree = TREES["branching"]
    rule = Imposed(Trace(request, position, rank, 3), tree)
    decoder = Decoder(target, drafter, tree=tree, batch=2, rule=rule, late=1)
    return [found.accepted for found in decoder.generate(PROMPTS, new_tokens=length)]


def record(device: str, *, kind: str, beam: int = 0, **settings: Any) -> Any:
    """A trace's arrays, with candidates of so wide a beam; of texts drawn at a temperature, which depend on when
    outcomes are read, their shapes.
    """
    if beam:
        settings["candidates"] = DynamicTree(nodes=beam, depth=2, beam=beam)
    target, drafter = models(kind, device)
    tokens = random_prompts((7, 2, 5), seed=2)
    prompts = [Prompt(f"{number}") for number in range(len(tokens))]
    trace = collect(target, drafter, prompts, tokens, new_tokens=10, width=4, batch=2, **settings)
    found = [trace.rank, trace.accept, trace.kept, trace.draft_prob]
    if trace.candidates is not None:
        found += [trace.candidates.logprob, trace.candidates.hit]
    arrays = [part for part in found if part is not None]
    return [list(part.shape) if "temperature" in settings else part.tolist() for part in arrays]


def profile(device: str) -> Any:
    """Sizes and depths that were measured."""
    target, drafter = models("medusa", device)
    sizes = {"max_nodes": 3, "rounds": 2, "steps": 1, "new_tokens": 12, "policies": True}
    found = measure_profile(LoopRunner(target, drafter), random_prompts([5] * 4), Measuring(batch=(1, 2), **sizes))
    return [[times.batch, [n for n, _ in times.rest], [d for d, _ in times.draft]] for times in found.batches]


FAULTS: dict[str, Callable[[Tensor], object]] = {
    "mixed": lambda x: x + torch.ones(x.shape[-1]),
    "index": lambda x: x[torch.zeros(1, dtype=torch.long)],
    "copied": lambda x: x.cpu(),
    "brought": lambda x: torch.ones(2).to(x.device),
    "read": lambda x: x.sum().item(),
    "listed": lambda x: x.tolist(),
}


def fail(device: str, *, fault: str) -> Any:
    """A fault planted in each step."""
    target, drafter = models("medusa", device)
    verify = Target.verify

    def faulty(self: Target, *args: Any, **words: Any) -> Any:
        outputs = verify(self, *args, **words)
        FAULTS[fault](outputs.logits)
        return outputs

    Target.verify = faulty  # type: ignore[method-assign]
    try:
        return len(Decoder(target, drafter, tree=TREES["branching"]).generate(PROMPTS, new_tokens=4))
    finally:
        Target.verify = verify  # type: ignore[method-assign]


JOBS: dict[str, Callable[..., Any]] = {
    "decode": decode,
    "impose": impose,
    "record": record,
    "profile": profile,
    "fail": fail,
}


def main() -> None:
    """Do the jobs, keeping steps apart, but for trees whose drafting asks the host."""
    library = register()
    assert library is not None
    device = Device()

    def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
        def inner(rows: Rows, *args: Any, **words: Any) -> Any:
            if method is drafting and isinstance(rows.growth, AskingGrowth):
                return method(rows, *args, **words)
            with device.kept_apart():
                return method(rows, *args, **words)

        return inner

    generator = torch.Generator
    torch.Generator = lambda device="cpu": generator()  # type: ignore[assignment,misc]  # chances come from the host's
    drafting = Rows.draft
    for name in ("draft", "verify", "accept", "commit"):
        setattr(Rows, name, guarded(getattr(Rows, name)))
    results = []
    for job, settings in json.load(sys.stdin):
        try:
            with device:
                results.append(JOBS[job](NAME, **settings))
        except Exception:  # noqa: BLE001 - the test shows it
            results.append(traceback.format_exc())
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
