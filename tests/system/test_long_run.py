"""A loop that runs for long holds no more than one that ran for a while: tensors, their bytes, and the process.

Thousands of short requests pass through a few rows. Live tensors are counted at six equidistant steps: neither
their number nor their bytes may be larger in the last third than in the first, but for what differs from step to step
(requests on their way: four tensors, 4 KiB). The resident set, in which allocators round, may grow by 8 MiB: less than
10,000 steps that lose 1 KiB each.
"""

import gc
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from executor.decoding.decoder import Decoder
from executor.decoding.request_queue import Gathered
from executor.device import Clock, Mark
from executor.drafters.language_model.drafter import LanguageModel
from executor.target.target_model import Target
from executor.verification.acceptance_rules import make_rule
from executor.verification.temperature_top_k_top_p import Warp, seeded_generator
from tests.helpers.models import noisy, random_heads, small_model, small_target
from treeopt.policies import DynamicTree
from treeopt.tree import Tree

RESIDENT = 8 * 2**20
KINDS = ["plain", "medusa", "language-model", "dynamic"]


def tensors() -> tuple[int, int]:
    """Live tensors and the bytes of their memory, each storage once."""
    gc.collect()
    found = [o for o in gc.get_objects() if type(o) in (torch.Tensor, torch.nn.Parameter)]
    return len(found), sum({o.data_ptr(): o.untyped_storage().nbytes() for o in found}.values())


def resident() -> int:
    """Bytes of this process in memory."""
    pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    return int(pages) * 4096


def requests(count: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(61) for _ in range(rng.randrange(1, 9))] for _ in range(count)]


def decoder(kind: str, late: int) -> Decoder:
    rule = make_rule(
        "point-mass" if kind == "dynamic" else "sample-and-match",
        warp=Warp(),
        generator=seeded_generator(torch.device("cpu"), 0),
    )
    if kind == "plain":
        return Decoder(small_target(), batch=3, rule=rule, late=late)
    if kind == "medusa":
        return Decoder(small_target(), random_heads(), tree=Tree.full(2, 2), batch=3, rule=rule, late=late)
    tree = DynamicTree(nodes=6, depth=2, beam=3) if kind == "dynamic" else Tree.from_paths([(0, 0), (1, 0)])
    return Decoder(
        small_target(), LanguageModel(Target(noisy(small_model()))), tree=tree, batch=3, rule=rule, late=late
    )


def watched(kind: str, late: int, steps: int) -> Iterator[tuple[int, int, int]]:
    """Tensors, bytes and resident set, six times in `steps` steps."""
    gathered = Gathered()
    every = steps // 6
    for number, step in enumerate(decoder(kind, late).steps(requests(steps), new_tokens=7, stop=[5]), 1):
        gathered.add(step)
        if number % every == 0:
            yield (*tensors(), resident())
        if number == steps:
            assert gathered.ended > steps / 6  # rows were refilled all the time
            return
    raise AssertionError("the requests did not last")


def check(kind: str, late: int, steps: int) -> None:
    found = list(watched(kind, late, steps))
    counts, sizes, residents = ([row[i] for row in found] for i in range(3))
    assert max(counts[-2:]) <= max(counts[:2]) + 4
    assert max(sizes[-2:]) <= max(sizes[:2]) + 4096
    assert max(residents[-2:]) <= max(residents[:2]) + RESIDENT


@pytest.mark.slow
@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_steps_leave_nothing_behind(kind, late):
    check(kind, late, 10_000)


@pytest.mark.slow
@pytest.mark.parametrize("leak", ["outcomes", "graphs"])
def test_the_watch_notices_a_leak(monkeypatch, leak):
    """One small tensor a step."""
    held = []
    mark = Clock.mark

    def keeping(self: Clock) -> Mark:
        held.append(torch.zeros(16) if leak == "outcomes" else torch.ones(1, requires_grad=True) * 2)
        return mark(self)

    monkeypatch.setattr(Clock, "mark", keeping)
    with pytest.raises(AssertionError):
        check("plain", 0, 120)
