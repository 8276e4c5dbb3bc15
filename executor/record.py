"""Collect a trace: let the target write, then ask the drafter about every position in one teacher-forced pass."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from executor.acceptance import Greedy, Rule, SampleAndMatch, make_rule
from executor.candidates import candidate_trees, check_candidates
from executor.decode import Decoder
from executor.drafters.base import Drafter, usual_depth
from executor.fingerprint import device_name, identity, tokens_hash
from executor.forced import Arrays, Texts, Wanted, along
from executor.forced import rank_of as rank_of
from executor.odds import check_recorded, manner
from executor.prompts import Prompt
from executor.sampling import Warp, seeded
from executor.target import Target
from treeopt.errors import ExecutorError, UsageError
from treeopt.policy import DynamicTree
from treeopt.provenance import this_run
from treeopt.trace import MAX_WIDTH, Candidates, Trace

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
    rule: str | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    probabilities: bool = False,
    draws: int = 16,
    candidates: DynamicTree | None = None,
    stride: int = 1,
    stop: Sequence[int] = (),
    batch: int = 8,
    seed: int = 0,
    progress: Progress = lambda requests: None,
) -> Trace:
    """A trace of what `target` writes after the prompts, and of how `drafter` ranks it.

    Temperature 0 writes greedily; above, the text is a sample of the target, whatever the rule. Its ranks are what
    sample-and-match keeps, just as those of greedy text are what greedy keeps; for rules that draw candidates from
    the drafter's law the trace also says how likely each is to be kept (`accept`, see odds.py).

    Args:
        target: the model whose output is wanted.
        drafter: what is recorded.
        prompts: the requests; their domains are kept, their texts are not.
        tokens: token ids of each prompt, two or more each.
        new_tokens: tokens written after each prompt.
        width: candidates looked at, W.
        depth: levels looked at, D; default all that the drafter has, at most 8.
        rule: of verification; default greedy, above temperature 0 sample-and-match.
        temperature: of the target; top_k, top_p likewise.
        top_k: see `Warp`.
        top_p: see `Warp`.
        probabilities: also record the drafter's probabilities of its candidates, the entropies of drafter and target
            and, above temperature 0, how likely each candidate is to be kept.
        draws: simulated where that has no closed form.
        candidates: also record whole candidate trees, as deep and wide as this policy drafts them, for dynamic trees.
        stride: positions of a request from one with candidates to the next.
        stop: tokens that end a request.
        batch: requests decoded together.
        seed: of the sampling.
        progress: told the requests finished since it was last called.

    Raises:
        UsageError: settings or prompts without meaning, or a rule that a trace cannot speak of.
        ExecutorError: the drafter is shallower than `depth`, the width exceeds the vocabulary, or there are too many
            candidates.
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
    generator = seeded(target.device, seed)
    warp = None if temperature == 0 else Warp(temperature, top_k, top_p)
    name = rule or ("greedy" if warp is None else "sample-and-match")
    verified = make_rule(name, warp=warp, generator=generator)
    check_recorded(verified)
    if candidates is not None:
        check_candidates(target, drafter, candidates)
        if verified.sampled_candidates:
            raise UsageError(f"rule {name} draws its candidates: a tree that keeps the best of them would bias it")
    writing: Rule = Greedy() if warp is None else SampleAndMatch(warp, generator)
    written = _write(Decoder(target, batch=batch, rule=writing), tokens, new_tokens, stop, progress)
    wanted = Wanted(
        depth=depth,
        width=width,
        rule=verified,
        probabilities=probabilities,
        accept=verified.sampled_candidates or (probabilities and warp is not None),
        draws=draws,
    )
    found: list[Arrays] = []
    drafted: list[Arrays] = []
    for start in range(0, len(tokens), batch):
        part = slice(start, start + batch)
        texts = Texts.read(target, drafter, tokens[part], written[part])
        found += along(target, drafter, texts, wanted)
        if candidates is not None:
            drafted += candidate_trees(target, drafter, texts, candidates, stride=stride)
        progress(len(tokens[part]))
    lengths = [len(text) for text in written]
    arrays: dict[str, Any] = _together(found)
    if candidates is not None:
        trees = _together(drafted)
        offset = np.append(0, trees.pop("sizes").cumsum())
        arrays["candidates"] = Candidates(offset=offset, **trees)
    names = sorted({p.domain for p in prompts})
    meta = {
        "verification": name,
        "temperature": temperature,
        **({} if top_k is None else {"top_k": top_k}),
        **({} if top_p == 1 else {"top_p": top_p}),
        **({"accept": manner(verified, width, draws)} if wanted.accept else {}),
        **({"draft_prob": "warped" if verified.sampled_candidates else "temperature 1"} if probabilities else {}),
        **({} if candidates is None else {"candidates": _reach(candidates, stride)}),
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
        width=width,
        **arrays,
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


def _reach(candidates: DynamicTree, stride: int) -> dict[str, int]:
    """How far recorded candidates go, for provenance."""
    policy = {"depth": candidates.depth, "beam": candidates.beam, "width": candidates.children}
    return policy | {"stride": stride}


def _together(pieces: Sequence[Arrays]) -> Arrays:
    """Arrays of the same names, one after the other."""
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


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
