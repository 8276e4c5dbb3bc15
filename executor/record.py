"""Collect a trace: let the target write, then ask the drafter about every position in one teacher-forced pass."""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from executor.acceptance import Greedy, Rule, SampleAndMatch
from executor.decode import Decoder
from executor.drafters.base import Drafter, usual_depth
from executor.fingerprint import device_name, identity, tokens_hash
from executor.prompts import Prompt
from executor.sampling import Warp
from executor.target import Target
from treeopt.errors import ExecutorError, UsageError
from treeopt.provenance import this_run
from treeopt.trace import MAX_WIDTH, MISSED, PAST_END, Trace

NGRAM = 4

Progress = Callable[[int], None]


def collect(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[Prompt],
    tokens: Sequence[Sequence[int]],
    *,
    new_tokens: int,
    width: int,
    depth: int | None = None,
    temperature: float = 0.0,
    stop: Sequence[int] = (),
    batch: int = 8,
    seed: int = 0,
    progress: Progress = lambda requests: None,
) -> Trace:
    """A trace of what `target` writes after the prompts, and of how `drafter` ranks it.

    Temperature 0 writes greedily; above, text is sampled and the trace holds for sample-and-match
    verification, whose acceptance is a match of the sampled token just as greedy's is of the argmax.

    Args:
        target: the model whose output is wanted.
        drafter: what is recorded.
        prompts: the requests; their domains are kept, their texts are not.
        tokens: token ids of each prompt, two or more each.
        new_tokens: tokens written after each prompt.
        width: candidates looked at, W.
        depth: levels looked at, D; default all that the drafter has, at most 8.
        temperature: of the target.
        stop: tokens that end a request.
        batch: requests decoded together.
        seed: of the sampling.
        progress: told the requests finished since it was last called.

    Raises:
        UsageError: settings or prompts without meaning.
        ExecutorError: the drafter is shallower than `depth`, or the width exceeds the vocabulary.
    """
    depth = usual_depth(drafter) if depth is None else depth
    if not 0 <= temperature < math.inf:
        raise UsageError(f"temperature must be 0 or more and finite, got {temperature}")
    if not 1 <= depth <= drafter.max_depth:
        raise ExecutorError(f"depth must be in 1..{drafter.max_depth} (the drafter's), got {depth}")
    if not 1 <= width <= min(target.vocabulary, MAX_WIDTH):
        limit = f"{target.vocabulary} (the vocabulary)" if target.vocabulary <= MAX_WIDTH else f"{MAX_WIDTH}"
        raise ExecutorError(f"width must be in 1..{limit}, got {width}")
    for number, prompt in enumerate(tokens):
        if len(prompt) < 2:
            raise UsageError(f"prompt {number} has {len(prompt)} tokens; a recorded prompt has at least 2")
    generator = torch.Generator(device=target.device).manual_seed(seed)
    rule: Rule = Greedy() if temperature == 0 else SampleAndMatch(Warp(temperature), generator)
    written = _write(Decoder(target, batch=batch, rule=rule), tokens, new_tokens, stop, progress)
    ranks: list[NDArray[np.int16]] = []
    for start in range(0, len(tokens), batch):
        part = slice(start, start + batch)
        ranks += _ranks(target, drafter, tokens[part], written[part], depth, width)
        progress(len(tokens[part]))
    lengths = [len(text) for text in written]
    names = sorted({p.domain for p in prompts})
    meta = {
        "verification": "greedy" if temperature == 0 else "sample-and-match",
        "temperature": temperature,
        "new_tokens": new_tokens,
        "seed": seed,
        **identity(target, drafter),
        "prompts_sha256": tokens_hash(tokens),
        "text_sha256": tokens_hash(written),
        "repeated_4grams": {
            "written": round(repeated_share(written), 4),
            "prompts": round(repeated_share(tokens), 4),
        },
        "device": device_name(target.device),
        "provenance": this_run(),
    }
    return Trace(
        request=np.repeat(np.arange(len(tokens), dtype=np.int32), lengths),
        position=np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
        rank=np.concatenate(ranks),
        width=width,
        meta=meta,
        domain=np.array([names.index(p.domain) for p in prompts], dtype=np.int16),
        domain_names=tuple(names),
    )


def _write(
    decoder: Decoder,
    tokens: Sequence[Sequence[int]],
    new_tokens: int,
    stop: Sequence[int],
    progress: Progress,
) -> list[list[int]]:
    """The tokens of each text, in the order of the prompts."""
    texts: list[list[int]] = [[] for _ in tokens]
    open_requests: set[int] = set()
    for step in decoder.steps(tokens, new_tokens=new_tokens, stop=stop):
        here = {request for request in step.requests if request >= 0}
        progress(len(open_requests - here))
        open_requests = here
        for request, committed in zip(step.requests, step.committed, strict=True):
            if request >= 0:
                texts[request].extend(committed)
    progress(len(open_requests))
    return texts


def _ranks(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    texts: Sequence[Sequence[int]],
    depth: int,
    width: int,
) -> list[NDArray[np.int16]]:
    """Of each request, int16 (length, depth): rank at depth k of the token k further on, for every anchor."""
    longest = max(len(p) + len(t) for p, t in zip(prompts, texts, strict=True))
    tokens = torch.zeros(len(prompts), longest, dtype=torch.long)
    for i, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        tokens[i, : len(prompt) + len(text)] = torch.tensor([*prompt, *text])
    tokens = tokens.to(target.device)
    ranks = [np.full((len(text), depth), PAST_END, dtype=np.int16) for text in texts]
    features = target.features(tokens, drafter.taps).features
    with torch.no_grad():
        for k, forced in enumerate(drafter.teacher_forced(target, tokens, features, depth), 1):
            # An anchor's feature stands one before its root, and the root one before the text.
            place = rank_of(forced.scores[:, : -1 - k], tokens[:, 1 + k :]).cpu().numpy()
            for i, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
                inside = max(len(text) - k + 1, 0)
                found = place[i, len(prompt) - 2 :][:inside]
                ranks[i][:inside, k - 1] = np.where(found < width, found, MISSED)
    return ranks


def rank_of(scores: Tensor, truth: Tensor) -> Tensor:
    """How many tokens score above the true one, the first of equals first; scores (..., V), truth (...)."""
    own = scores.gather(-1, truth[..., None])
    index = torch.arange(scores.shape[-1], device=scores.device)
    return ((scores > own) | ((scores == own) & (index < truth[..., None]))).sum(-1)


def repeated_share(texts: Sequence[Sequence[int]], length: int = NGRAM) -> float:
    """Share of a text's n-grams that stood in the same text before, over all texts.

    >>> repeated_share([[1, 2, 1, 2, 1, 2]], length=2)
    0.6
    """
    grams = repeats = 0
    for text in texts:
        counts = Counter(tuple(text[i : i + length]) for i in range(len(text) - length + 1))
        grams += sum(counts.values())
        repeats += sum(counts.values()) - len(counts)
    return repeats / grams if grams else 0.0
