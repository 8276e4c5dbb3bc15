"""Whole candidate trees at the positions of given texts: the live growth, led along what was written.

The drafter is handed the texts' tokens one by one, as the loop would commit them, and drafts at each position; so its
state is the live one, and a recorded tree is what a step from there would have chosen from.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from executor.decoding.candidate_pool import Pool, drawn, joined
from executor.drafters.drafter import Committed, Drafter
from executor.recording.teacher_forced import Arrays, Texts
from executor.target.target_model import Target
from executor.verification.acceptance_rules import Greedy
from treeopt.errors import ExecutorError
from treeopt.policies import DynamicTree

MOST_CHILDREN = 2**8  # ranks are stored in 8 bits
MOST_CANDIDATES = 2**15  # and places in 16
BUCKET = 64  # the caches are looked at in multiples of so many tokens


def check_candidates(target: Target, drafter: Drafter, policy: DynamicTree) -> None:
    """Refuse trees that cannot be drafted or stored.

    Raises:
        ExecutorError: names the limit.
    """
    if policy.depth > drafter.max_depth:
        raise ExecutorError(f"candidates have depth {policy.depth}, the drafter drafts {drafter.max_depth} at most")
    limit = min(target.vocabulary, MOST_CHILDREN)
    if policy.children > limit:
        raise ExecutorError(f"candidates may have {limit} children, {policy.children} are wanted")
    wanted = policy.drafting.candidates
    if wanted > MOST_CANDIDATES:
        raise ExecutorError(f"a position may have {MOST_CANDIDATES} candidates, {wanted} are wanted")


def candidate_trees(
    target: Target, drafter: Drafter, texts: Texts, policy: DynamicTree, *, stride: int = 1
) -> list[Arrays]:
    """Of each text the candidates at every `stride`-th position: `sizes` int64 (length,), and as in `Candidates`.

    Args:
        target: what is drafted for.
        drafter: what drafts.
        texts: prompts and what was written after them.
        policy: how far candidates go; its nodes, min_probability and budget choose among them and say nothing here.
        stride: positions from one drafted at to the next.
    """
    found: list[list[Arrays]] = [[] for _ in texts.written]
    size = policy.drafting.candidates
    rank = np.tile(np.arange(policy.children, dtype=np.uint8), sum(policy.drafting.expanded))
    for position, pool in _pools(target, drafter, texts, policy, stride):
        hit = _hits(pool, texts, position, policy).cpu().numpy()
        parent, logs = pool.above.to(torch.int16).cpu().numpy(), pool.logs.cpu().numpy()
        for i, length in enumerate(texts.written):
            if position < length:
                found[i].append({"parent": parent[i], "rank": rank, "logprob": logs[i], "hit": hit[i]})
    return [
        {
            "sizes": np.where(np.arange(length) % stride == 0, size, 0),
            **{name: np.concatenate([one[name] for one in each]) for name in each[0]},
        }
        for length, each in zip(texts.written, found, strict=True)
    ]


@torch.no_grad()
def _pools(
    target: Target, drafter: Drafter, texts: Texts, policy: DynamicTree, stride: int
) -> Iterator[tuple[int, Pool]]:
    """Positions and the candidates there, of all texts together; of a text that is over they have no meaning."""
    tokens, features = texts.tokens, texts.outputs.features
    batch, longest = tokens.shape
    prompts, written = (torch.tensor(lengths, device=tokens.device) for lengths in (texts.prompts, texts.written))
    room = sum(policy.drafting.expanded)
    capacity = _rounded(longest + policy.depth + 1 + room)
    state = drafter.begin(target, batch, policy.depth, longest, capacity)
    start, row = max(texts.prompts), torch.arange(batch, device=tokens.device)
    drafter.admit(state, row, tokens[:, :start], features[:, : start - 1], prompts)
    nothing = torch.zeros(batch, 1, dtype=torch.long, device=tokens.device)
    for position in range(max(texts.written)):
        place = prompts - 1 + written.clamp(max=position + 1) - 1  # of the root
        root = tokens[row, place]
        counts = (position < written).long() * (position > 0)
        new = Committed(root[:, None], features[row, place - 1][:, None], nothing, counts, in_place=True)
        drafter.extend(state, new, view=min(capacity, _rounded(start + position + room)), all_fed=True)
        if position % stride:
            drafter.level(state, root[:, None], nothing)  # the root is fed all the same
        else:
            *_, levels = drawn(policy.drafting, drafter, state, root, Greedy())
            yield position, joined(levels)


def _rounded(tokens: int) -> int:
    return -(-tokens // BUCKET) * BUCKET


def _hits(pool: Pool, texts: Texts, position: int, policy: DynamicTree) -> Tensor:
    """Which candidates the texts continue through, bool (batch, size)."""
    tokens, device = texts.tokens, texts.tokens.device
    prompts, written = (torch.tensor(lengths, device=device)[:, None] for lengths in (texts.prompts, texts.written))
    found = torch.ones(len(tokens), 1, dtype=torch.bool, device=device)  # the root, then the candidates
    start = 0
    for level, expanded in enumerate(policy.drafting.expanded):
        part = slice(start, start + expanded * policy.children)
        truth = tokens.gather(1, (prompts + position + level).clamp(max=tokens.shape[1] - 1))
        true = (pool.tokens[:, part] == truth) & (position + level < written)
        found = torch.cat([found, true & found.gather(1, pool.above[:, part] + 1)], 1)
        start = part.stop
    return found[:, 1:]
