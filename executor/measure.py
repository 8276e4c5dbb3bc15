"""Measure a profile: the real loop on real prompts, phase by phase, in shuffled blocks.

Times are medians over steps with every row busy. Plain decoding and all trees alternate, so that caches and
clocks are those of decoding, and slow drifts of the machine fall on all of them alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from executor.decode import Decoder
from executor.drafters.base import Drafter, usual_depth
from executor.fingerprint import device_name, identity
from executor.steps import Step
from executor.target import Target
from simulate.profile import BatchTimes, Profile
from treeopt.cost import StepShape
from treeopt.errors import CostError, UsageError
from treeopt.provenance import this_run
from treeopt.published import MEDUSA, published_trees
from treeopt.tree import Tree

TOKENS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 17, 20, 24, 28, 32, 33, 40, 48, 56, 64)
PLAIN = Tree((), ())


@dataclass
class Times:
    """Seconds of steps of one way to decode, block by block."""

    draft_s: list[list[float]] = field(default_factory=list)
    rest_s: list[list[float]] = field(default_factory=list)

    def add(self, steps: Sequence[Step]) -> None:
        """Add a block."""
        self.draft_s.append([step.draft_s for step in steps])
        self.rest_s.append([step.rest_s for step in steps])

    @property
    def draft(self) -> float:
        """Median seconds of drafting."""
        return float(np.median(np.concatenate(self.draft_s)))

    @property
    def rest(self) -> float:
        """Median seconds of everything else."""
        return float(np.median(np.concatenate(self.rest_s)))

    @property
    def blocks(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Median step seconds of each block."""
        return np.array([np.median(np.add(d, r)) for d, r in zip(self.draft_s, self.rest_s, strict=True)])


def block(decoder: Decoder, prompts: Sequence[Sequence[int]], *, steps: int, new_tokens: int) -> list[Step]:
    """`steps` steps with every row busy, after two that warm up; fewer if the prompts run out."""
    found: list[Step] = []
    for step in decoder.steps(prompts, new_tokens=new_tokens):
        if step.full:
            found.append(step)
        if len(found) == steps + 2:
            break
    if len(found) < 3:
        raise UsageError(f"{len(prompts)} prompts and new-tokens {new_tokens} make fewer than 3 steps of a full batch")
    return found[2:]


def grid(max_nodes: int, max_depth: int) -> list[Tree]:
    """Trees that cover sizes up to `max_nodes` and depths up to `max_depth`: chains, and prefixes of Medusa's tree."""
    paths = sorted(published_trees()[MEDUSA].paths, key=lambda path: (sum(path) + len(path), path))
    paths = [path for path in paths if len(path) <= max_depth]
    wide = [Tree.from_paths(paths[: tokens - 1]) for tokens in TOKENS if tokens - 1 <= min(max_nodes, len(paths))]
    chains = [Tree.chain(depth) for depth in range(1, min(max_depth, max_nodes) + 1)]
    return list(dict.fromkeys([*chains, *wide]))


def measure_profile(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    *,
    batches: Sequence[int],
    max_nodes: int = 63,
    max_depth: int | None = None,
    new_tokens: int = 64,
    rounds: int = 5,
    steps: int = 16,
    seed: int = 0,
    progress: Callable[[int], None] = lambda blocks: None,
) -> Profile:
    """The profile of `target` with `drafter` on the target's device.

    Args:
        target: the verifying model.
        drafter: what proposes.
        prompts: token ids of requests; enough of them to keep the largest batch busy.
        batches: batch sizes.
        max_nodes: largest tree, at most 63.
        max_depth: deepest tree; default all levels that the drafter has, at most 8.
        new_tokens: tokens decoded after each prompt.
        rounds: blocks of each way to decode and batch size.
        steps: steps of a block.
        seed: of the order of blocks and prompts.
        progress: told every finished block.

    Raises:
        UsageError: settings without meaning, or too few prompts.
    """
    batches = sorted(set(batches))
    if not batches or batches[0] < 1:
        raise UsageError(f"batch sizes must be at least 1, got {batches}")
    if not 1 <= max_nodes <= TOKENS[-1] - 1:
        raise UsageError(f"max-nodes must be in 1..{TOKENS[-1] - 1}, got {max_nodes}")
    if max_depth is not None and not 1 <= max_depth <= drafter.max_depth:
        raise UsageError(f"max-depth must be in 1..{drafter.max_depth} (the drafter's), got {max_depth}")
    if rounds < 2 or steps < 1:
        raise UsageError(f"at least 2 rounds of 1 step are needed, got {rounds} of {steps}")
    if len(prompts) < batches[-1]:
        raise UsageError(f"batch {batches[-1]} needs as many prompts, got {len(prompts)}")
    trees = [PLAIN, *grid(max_nodes, usual_depth(drafter) if max_depth is None else max_depth)]
    rng = np.random.default_rng(seed)
    times = {(batch, tree): Times() for batch in batches for tree in trees}
    decoders = {key: Decoder(target, drafter, tree=key[1], batch=key[0], timed=True) for key in times}
    for _ in range(rounds):
        for index in rng.permutation(len(times)).tolist():
            key = list(times)[index]
            order = rng.permutation(len(prompts)).tolist()
            drawn = [prompts[i] for i in order]
            times[key].add(block(decoders[key], drawn, steps=steps, new_tokens=new_tokens))
            progress(1)
    lengths = [len(prompt) for prompt in prompts]
    return Profile(
        tuple(_batch_times(batch, {tree: times[batch, tree] for tree in trees}) for batch in batches),
        context=(min(lengths), max(lengths) + new_tokens),
        relative_error=_relative_error(batches, trees, times),
        meta={
            **identity(target, drafter),
            "device": device_name(target.device),
            "rounds": rounds,
            "steps": steps,
            "seed": seed,
            "new_tokens": new_tokens,
            "prompts": len(prompts),
            "provenance": this_run(),
        },
    )


def _batch_times(batch: int, times: dict[Tree, Times]) -> BatchTimes:
    speculative = [tree for tree in times if tree.nodes]
    depths = sorted({tree.depth for tree in speculative})
    sizes = sorted({tree.nodes for tree in speculative})
    draft = [(d, float(np.median([times[t].draft for t in speculative if t.depth == d]))) for d in depths]
    rest = [(n + 1, float(np.median([times[t].rest for t in speculative if t.nodes == n]))) for n in sizes]
    plain = times[PLAIN]
    return BatchTimes(batch, float(np.median(np.add(plain.draft, plain.rest))), tuple(draft), tuple(rest))


def _relative_error(batches: Sequence[int], trees: Sequence[Tree], times: dict[tuple[int, Tree], Times]) -> float:
    """95th percentile of |predicted / measured - 1| of step over plain step, each block predicted by the others.

    A block's tree size is left out of the table as well, so interpolation is part of the error.
    """
    errors = []
    for batch in batches:
        plain = times[batch, PLAIN].blocks
        for tree in trees[1:]:
            others = {t: times[batch, t] for t in trees if t.nodes == 0 or t.nodes != tree.nodes}
            try:
                table = _batch_times(batch, others)
                predicted = float(table.step_s([StepShape.of(tree, batch=batch)])[0]) / table.plain_s
            except CostError:  # the smallest or largest size: the others say nothing of it
                continue
            measured = float(np.median(times[batch, tree].blocks / plain))
            errors.append(abs(predicted / measured - 1))
    if not errors:  # one or two sizes: nothing can be left out, blocks can still be compared with one another
        quotients = [times[batch, tree].blocks / times[batch, PLAIN].blocks for batch in batches for tree in trees[1:]]
        errors = [abs(q / np.median(q) - 1).max() for q in quotients]
    return float(np.quantile(errors, 0.95))
