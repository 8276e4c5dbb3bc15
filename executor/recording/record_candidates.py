"""Record candidate trees, or a chain's confidences, at the positions of given texts: live drafting with forced text.

The drafter is given the texts' tokens one by one, as the loop would commit them, and drafts at each position. So its
state is the live one, and a recorded tree is what a step from there would have chosen from.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from executor.decoding.tree_growth import Pool, draft_levels, join_levels
from executor.drafters.base.drafter import Admitted, Committed, Drafter
from executor.recording.teacher_forced import Arrays, Texts
from executor.target.target_model import Target
from executor.verification.acceptance_rules import Greedy
from treeopt.errors import ExecutorError
from treeopt.policies import DynamicTree

MOST_CHILDREN = 2**8  # ranks are stored in 8 bits
MOST_CANDIDATES = 2**15  # and places in 16
BUCKET = 64  # views of the caches are multiples of this many tokens


def check_candidates(target: Target, drafter: Drafter, policy: DynamicTree) -> None:
    """Raise ExecutorError, naming the limit, if the candidates of `policy` cannot be drafted and stored."""
    if policy.depth > drafter.max_depth:
        raise ExecutorError(f"candidates have depth {policy.depth}, the drafter drafts {drafter.max_depth} at most")
    limit = min(target.vocabulary, MOST_CHILDREN)
    if policy.children > limit:
        raise ExecutorError(f"candidates may have {limit} children, {policy.children} are wanted")
    count = policy.drafting.candidates
    if count > MOST_CANDIDATES:
        raise ExecutorError(f"a position may have {MOST_CANDIDATES} candidates, {count} are wanted")


def candidate_trees(
    target: Target, drafter: Drafter, texts: Texts, policy: DynamicTree, *, stride: int = 1
) -> list[Arrays]:
    """Record each text's candidates, as deep and wide as `policy` goes, at every `stride`-th position, by name.

    They are `sizes`, int64 (length,), and those of `Candidates`.
    """
    positions: list[list[Arrays]] = [[] for _ in texts.written]
    size = policy.drafting.candidates
    rank = np.tile(np.arange(policy.children, dtype=np.uint8), sum(policy.drafting.expanded))
    for position, pool, *_ in _pools(target, drafter, texts, policy, stride):
        hit = _hits(pool, texts, position, policy).cpu().numpy()
        parent, logs = pool.above.to(torch.int16).cpu().numpy(), pool.logs.cpu().numpy()
        for i, length in enumerate(texts.written):
            if position < length:
                positions[i].append({"parent": parent[i], "rank": rank, "logprob": logs[i], "hit": hit[i]})
    return [
        {
            "sizes": np.where(np.arange(length) % stride == 0, size, 0),
            **{name: np.concatenate([arrays[name] for arrays in trees]) for name in trees[0]},
        }
        for length, trees in zip(texts.written, positions, strict=True)
    ]


def confidence_source(drafter: Drafter) -> str:
    """Return what confidences are: the output of the drafter's `confidence_head`, or its probability of the token."""
    return "probability" if getattr(drafter, "confidence_head", None) is None else "head"


def chain_confidences(target: Target, drafter: Drafter, texts: Texts, depth: int) -> list[Arrays]:
    """Record for each text `confidence`, float16 (length, depth), along the live chain; see `confidence_source`."""
    arrays = [{"confidence": np.zeros((length, depth), dtype=np.float16)} for length in texts.written]
    chain = DynamicTree(nodes=depth, depth=depth, beam=1, width=1)
    for position, pool, state, root in _pools(target, drafter, texts, chain, 1):
        if confidence_source(drafter) == "head":
            head: Any = drafter
            own = head.confidences(state, torch.cat([root[:, None], pool.tokens[:, :-1]], 1)).float()
        else:
            own = pool.logs.exp().nan_to_num()  # no number where nothing is proposed
        confidence = own.cpu().numpy()
        for i, length in enumerate(texts.written):
            if position < length:
                arrays[i]["confidence"][position] = confidence[i]
    return arrays


@torch.no_grad()
def _pools(
    target: Target, drafter: Drafter, texts: Texts, policy: DynamicTree, stride: int
) -> Iterator[tuple[int, Pool, Any, Tensor]]:
    """Yield each recorded position, all candidates, the drafter's state and the roots; ignore texts that have ended."""
    tokens, features = texts.tokens, texts.outputs.features
    batch, longest = tokens.shape
    prompts, written = (torch.tensor(lengths, device=tokens.device) for lengths in (texts.prompts, texts.written))
    room = sum(policy.drafting.expanded)
    capacity = _rounded(longest + policy.depth + 1 + room)
    state = drafter.begin(target, batch, policy.depth, longest, capacity)
    start, row = max(texts.prompts), torch.arange(batch, device=tokens.device)
    lines = [line[:length] for line, length in zip(tokens[:, :start].tolist(), texts.prompts, strict=True)]
    drafter.admit(state, Admitted.of(range(batch), lines, features[:, : start - 1]))
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
            *_, levels = draft_levels(policy.drafting, drafter, state, root, Greedy())
            yield position, join_levels(levels), state, root


def _rounded(tokens: int) -> int:
    return -(-tokens // BUCKET) * BUCKET


def _hits(pool: Pool, texts: Texts, position: int, policy: DynamicTree) -> Tensor:
    """Return which candidates lie on the texts' own path, bool (batch, size)."""
    tokens, device = texts.tokens, texts.tokens.device
    prompts, written = (torch.tensor(lengths, device=device)[:, None] for lengths in (texts.prompts, texts.written))
    hits = torch.ones(len(tokens), 1, dtype=torch.bool, device=device)  # the root, then the candidates
    start = 0
    for level, expanded in enumerate(policy.drafting.expanded):
        part = slice(start, start + expanded * policy.children)
        truth = tokens.gather(1, (prompts + position + level).clamp(max=tokens.shape[1] - 1))
        true = (pool.tokens[:, part] == truth) & (position + level < written)
        hits = torch.cat([hits, true & hits.gather(1, pool.above[:, part] + 1)], 1)
        start = part.stop
    return hits[:, 1:]
