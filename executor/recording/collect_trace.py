"""Collect a trace: let the target write, then ask the drafter about every position in one teacher-forced pass."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.decoding.decoder import Decoder
from executor.drafters.drafter import Drafter
from executor.models.fingerprint import device_name, identity, tokens_hash
from executor.prompts.prompt_files import Prompt
from executor.recording.record_candidates import candidate_trees
from executor.recording.recording_settings import Recording
from executor.recording.teacher_forced import Arrays, Texts, along
from executor.recording.teacher_forced import rank_of as rank_of
from executor.recording.typical_nodes import nodes_kept
from executor.target.target_model import Target
from executor.target.tensor_parallel import is_main_rank
from executor.verification.typical_acceptance import Typical
from treeopt.errors import ExecutorError, UsageError
from treeopt.storage.provenance import this_run
from treeopt.traces.candidates import Candidates
from treeopt.traces.merge_split import joined
from treeopt.traces.resumable_shards import Shards, note, told
from treeopt.traces.trace import Trace

NGRAM = 4
SHARD = 8  # batches

Progress = Callable[[int], None]


def collect(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[Prompt],
    tokens: Sequence[Sequence[int]],
    *,
    folder: Path | None = None,
    written: dict[int, list[list[int]]] | None = None,
    progress: Progress = lambda requests: None,
    **settings: Any,
) -> Trace:
    """A trace of what `target` writes after the prompts, and of how `drafter` ranks it.

    Requests are written and recorded in shards of 8 batches, each with random numbers of its own.

    Args:
        target: the model whose output is wanted.
        drafter: what is recorded.
        prompts: the requests; their domains are kept, their texts are not.
        tokens: token ids of each prompt, two or more each.
        folder: keep finished shards here; those that are there already are not made again, and the trace is the same.
        written: texts of shards by their first request, of another call for the same target, prompts and settings
            (and drafter, where texts depend on it): those that are there are not written again, the others are added.
        progress: told the requests finished since it was last called, first when written, again when recorded.
        settings: those of `Recording`.

    Raises:
        UsageError: settings or prompts without meaning, or the folder was begun with others.
        ExecutorError: what cannot be recorded; see `Recording.check`.
        TraceError: the folder is damaged.
    """
    recording = Recording(**settings)
    recording.check(target, drafter)
    if not tokens:
        raise UsageError("there is no prompt to record")
    for number, prompt in enumerate(tokens):
        if len(prompt) < 2:
            raise UsageError(f"prompt {number} has {len(prompt)} tokens; a recorded prompt has at least 2")
        if target.context_limit is not None and len(prompt) + recording.new_tokens > target.context_limit:
            raise ExecutorError(
                f"prompt {number} has {len(prompt)} tokens: with {recording.new_tokens} new ones it exceeds the "
                f"model's context of {target.context_limit}"
            )
    meta = {
        **recording.provenance(target, drafter),
        **identity(target, drafter),
        "prompts_sha256": tokens_hash(tokens),
        "repeated_4grams": {"prompts": round(repeated_share(tokens), 4)},
        "device": device_name(target.device),
        "provenance": this_run(),
    }
    if again := len(tokens) - len({tuple(prompt) for prompt in tokens}):
        meta["repeated_prompts"] = again
    shards = None if folder is None else Shards.begin(folder, meta, asdict(recording), len(tokens))
    pieces = [] if shards is None else list(shards.traces)
    done = sum(piece.requests for piece in pieces)
    progress(2 * done)
    while done < len(tokens):
        part = slice(done, done + SHARD * recording.batch)
        texts = {} if written is None else written
        if done not in texts:
            texts[done] = _write(target, drafter, tokens[part], recording, done, progress)
        pieces.append(_shard(target, drafter, prompts[part], tokens[part], texts[done], recording, done, progress))
        done += pieces[-1].requests
        if shards is not None and is_main_rank():
            shards.add(pieces[-1])
    return joined(pieces, told(meta if shards is None else shards.meta, pieces))


def _shard(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[Prompt],
    tokens: Sequence[Sequence[int]],
    written: Sequence[Sequence[int]],
    recording: Recording,
    first: int,
    progress: Progress,
) -> Trace:
    """The requests from `first` on."""
    verifying, _ = recording.rules(target, first)
    wanted, policy = recording.wanted(drafter, verifying), recording.candidates
    found: list[Arrays] = []
    drafted: list[Arrays] = []
    kept: list[NDArray[np.bool_]] = []
    for start in range(0, len(tokens), recording.batch):
        part = slice(start, start + recording.batch)
        texts = Texts.read(target, drafter, tokens[part], written[part])
        found += along(target, drafter, texts, wanted)
        if policy is not None:
            drafted += candidate_trees(target, drafter, texts, policy, stride=recording.stride)
        if isinstance(verifying, Typical):
            kept += nodes_kept(target, drafter, tokens[part], written[part], rule=verifying, tree=recording.drawn)
        progress(len(tokens[part]))
    arrays: dict[str, Any] = _together(found)
    if policy is not None:
        trees = _together(drafted)
        arrays["candidates"] = Candidates(np.append(0, trees.pop("sizes").cumsum()), **trees)
    if kept:
        arrays["tree_kept"] = np.concatenate(kept)
    lengths, names = [len(text) for text in written], sorted({p.domain for p in prompts})
    grams, repeats = repeated(written)
    return Trace(
        request=np.repeat(np.arange(len(tokens), dtype=np.int32), lengths),
        position=np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
        width=recording.width,
        **arrays,
        meta=note([tokens_hash([text]) for text in written], grams, repeats) | recording.kept_of,
        domain=np.array([names.index(p.domain) for p in prompts], dtype=np.int16),
        domain_names=tuple(names),
        prompt_tokens=np.array([len(prompt) for prompt in tokens], dtype=np.int32),
    )


def _write(
    target: Target,
    drafter: Drafter,
    tokens: Sequence[Sequence[int]],
    recording: Recording,
    first: int,
    progress: Progress,
) -> list[list[int]]:
    """The tokens of each text, in the order of the prompts, which are those from `first` on."""
    rule = recording.rules(target, first)[1]
    decoder = Decoder(target, drafter, tree=recording.drawn, batch=recording.batch, rule=rule)
    texts: list[list[int]] = [[] for _ in tokens]
    open_requests: set[int] = set()
    for step in decoder.steps(tokens, new_tokens=recording.new_tokens, stop=recording.stop):
        here = {request for request in step.requests if request >= 0}
        progress(len(open_requests - here))
        open_requests = here
        for request, committed in zip(step.requests, step.committed, strict=True):
            if request >= 0:
                texts[request].extend(committed)
    progress(len(open_requests))
    return texts


def _together(pieces: Sequence[Arrays]) -> Arrays:
    """Arrays of the same names, one after the other."""
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def repeated_share(texts: Sequence[Sequence[int]], length: int = NGRAM) -> float:
    """Share of a text's n-grams that stood in the same text before, over all texts.

    >>> repeated_share([[1, 2, 1, 2, 1, 2]], length=2)
    0.6
    """
    grams, repeats = repeated(texts, length)
    return repeats / grams if grams else 0.0


def repeated(texts: Sequence[Sequence[int]], length: int = NGRAM) -> tuple[int, int]:
    """N-grams of the texts, and how many of them stood in the same text before."""
    grams = repeats = 0
    for text in texts:
        counts = Counter(tuple(text[i : i + length]) for i in range(len(text) - length + 1))
        grams += sum(counts.values())
        repeats += sum(counts.values()) - len(counts)
    return grams, repeats
