"""Collect a trace: let the target write, then record how the drafter ranks every token, in one teacher-forced pass."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from executor.decoding.decoder import Decoder
from executor.drafters.base.drafter import Drafter, history_of
from executor.drafters.language_model.drafter import LanguageModel
from executor.models import compute_as_recorded, device_name, identity, run_provenance, tokens_hash
from executor.prompts.prompt_files import Prompt
from executor.recording.record_candidates import candidate_trees, chain_confidences
from executor.recording.recording_settings import Recording
from executor.recording.teacher_forced import Arrays, Texts, forced_arrays
from executor.target.target_model import Target
from executor.target.tensor_parallel import is_main_rank
from executor.verification.acceptance_rules import Accepted
from executor.verification.tree_tensors import Draft
from executor.verification.typical_acceptance import Typical
from treeopt.errors import ExecutorError, UsageError
from treeopt.traces.candidates import Candidates
from treeopt.traces.resumable_shards import Head, gather, note
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

NGRAM = 4
SHARD = 8  # batches

Progress = Callable[[int], None]


def recorder(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[Prompt],
    tokens: Sequence[Sequence[int]],
    *,
    written: dict[int, list[list[int]]] | None = None,
    texts: Sequence[Sequence[int]] | None = None,
    progress: Progress = lambda requests: None,
    **settings: Any,
) -> tuple[Head, Callable[..., Trace]]:
    """Return the head of a trace, and what records the shard from a request on, as a run with this `meta` did.

    See `collect`.
    """
    recording = Recording(**settings)
    recording.check(target, drafter)
    _check_prompts(tokens, target, drafter, recording.new_tokens)
    size, computes_as, known = SHARD * recording.batch, [None], written
    if texts is not None:
        if len(texts) != len(tokens):
            raise UsageError(f"{len(texts)} texts were given for {len(tokens)} prompts")
        empty = next((number for number, text in enumerate(texts) if not text), None)
        if empty is not None:
            raise UsageError(f"text {empty} is empty")
        known = {first: [list(text) for text in texts[first : first + size]] for first in range(0, len(texts), size)}
    history = history_of(drafter)
    known = {} if known is None and history is not None else known

    def shard_from(start: int) -> _Shard:
        part = slice(start, start + size)
        return _Shard(target, drafter, recording, prompts[part], tokens[part], start, progress)

    def texts_from(start: int) -> list[list[int]]:
        if known is None:
            return shard_from(start).write()
        if start not in known:
            known[start] = shard_from(start).write()
        return known[start]

    def record(start: int, meta: Mapping[str, Any] | None = None) -> Trace:
        if meta is not None and computes_as != [meta.get("provenance")]:
            computes_as[:] = [meta.get("provenance")]
            compute_as_recorded(target, drafter, *computes_as)
        if history is not None and history.requests != start:  # a run that is resumed, or another worker's shards
            history.remember(text for first in range(0, start, size) for text in texts_from(first))
        return shard_from(start).record(texts_from(start))

    return Head(_meta(target, drafter, tokens, recording), asdict(recording), len(tokens), size), record


def collect(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[Prompt],
    tokens: Sequence[Sequence[int]],
    *,
    folder: Path | None = None,
    merged: bool = True,
    progress: Progress = lambda requests: None,
    **settings: Any,
) -> Trace:
    """Record what `target` writes after the prompts, and how `drafter` ranks it.

    Requests are written and recorded in shards of 8 batches, each with random numbers of its own.

    Args:
        target: the model whose output is wanted.
        drafter: what is recorded.
        prompts: the requests; their domains are stored, their texts are not.
        tokens: token ids of each prompt, two or more each.
        folder: where finished shards are stored; those that it holds are not made again, and the trace is the same.
        merged: see `gather`.
        progress: called with the requests finished since its last call, first when written, again when recorded.
        settings: those of `Recording`; and `written`, texts of shards by their first request, from another call for the
            same target, prompts and settings (and drafter, where texts depend on it), which are not written again and
            to which missing ones are added; or `texts`, the text of every request, as another program wrote it for the
            same target.

    Raises:
        UsageError: settings or prompts without meaning, or the folder was begun with others.
        ExecutorError: what cannot be recorded; see `Recording.check`.
        TraceError: the folder is damaged.
    """
    head, record = recorder(target, drafter, prompts, tokens, progress=progress, **settings)

    def parts(starts: range, meta: Mapping[str, Any] | None) -> Iterator[Trace]:
        return (record(start, meta) for start in starts)

    return gather(head, parts, folder=folder, progress=progress, writes=is_main_rank(), merged=merged)


def _check_prompts(tokens: Sequence[Sequence[int]], target: Target, drafter: Drafter, new_tokens: int) -> None:
    """Raise UsageError or ExecutorError if a prompt cannot be continued and recorded."""
    if not tokens:
        raise UsageError("there is no prompt to record")
    limits = {"the model's": target.context_limit}
    if isinstance(drafter, LanguageModel):
        limits["the drafter's"] = drafter.target.context_limit
    for number, prompt in enumerate(tokens):
        if len(prompt) < 2:
            raise UsageError(f"prompt {number} has {len(prompt)} tokens; a recorded prompt has at least 2")
        for whose, limit in limits.items():
            if limit is not None and len(prompt) + new_tokens > limit:
                raise ExecutorError(
                    f"prompt {number} has {len(prompt)} tokens: with {new_tokens} new ones it exceeds {whose} context "
                    f"of {limit}"
                )


def _meta(target: Target, drafter: Drafter, tokens: Sequence[Sequence[int]], recording: Recording) -> dict[str, Any]:
    """Return the `meta` of the trace, except what depends on the texts."""
    meta = {
        **recording.provenance(target, drafter),
        **identity(target, drafter),
        "prompts_sha256": tokens_hash(tokens),
        "repeated_4grams": {"prompts": round(repeated_share(tokens), 4)},
        "device": device_name(target.device),
        "provenance": run_provenance(target, drafter),
    }
    if repeated_prompts := len(tokens) - len({tuple(prompt) for prompt in tokens}):
        meta["repeated_prompts"] = repeated_prompts
    return meta


@dataclass(frozen=True)
class _Shard:
    """The requests from `first` on that are written and recorded together."""

    target: Target
    drafter: Drafter
    recording: Recording
    prompts: Sequence[Prompt]
    tokens: Sequence[Sequence[int]]
    first: int
    progress: Progress

    def write(self) -> list[list[int]]:
        """Let the target write; return the tokens of each text, in the order of the prompts."""
        recording = self.recording
        rule, tree = recording.rules(self.target, self.first).writing, recording.writing_tree
        decoder = Decoder(self.target, self.drafter, tree=tree, batch=recording.batch, rule=rule)
        texts: list[list[int]] = [[] for _ in self.tokens]
        open_requests: set[int] = set()
        for step in decoder.steps(self.tokens, new_tokens=recording.new_tokens, stop=recording.stop):
            still_open = {request for request in step.requests if request >= 0}
            self.progress(len(open_requests - still_open))
            open_requests = still_open
            for request, committed in zip(step.requests, step.committed, strict=True):
                if request >= 0:
                    texts[request].extend(committed)
        self.progress(len(open_requests))
        return texts

    def record(self, written: Sequence[Sequence[int]]) -> Trace:
        """Record the drafter along the texts."""
        recording, arrays = self.recording, self._arrays(written)
        lengths, domains = [len(text) for text in written], sorted({prompt.domain for prompt in self.prompts})
        grams, repeats = repeated_ngrams(written)
        return Trace(
            request=np.repeat(np.arange(len(self.tokens), dtype=np.int32), lengths),
            position=np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
            width=recording.width,
            **arrays,
            meta=note([tokens_hash([text]) for text in written], grams, repeats) | recording.tree_meta,
            domain=np.array([domains.index(prompt.domain) for prompt in self.prompts], dtype=np.int16),
            domain_names=tuple(domains),
            prompt_tokens=np.array([len(prompt) for prompt in self.tokens], dtype=np.int32),
        )

    def _arrays(self, written: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Return the arrays that depend on the drafter, by name."""
        target, drafter, recording = self.target, self.drafter, self.recording
        rule, policy = recording.rules(target, self.first).verifying, recording.candidates
        depth, names = recording.recorded_depth(drafter), recording.arrays(rule)
        how = {"depth": depth, "width": recording.width, "draws": recording.draws}
        forced: list[Arrays] = []
        drafted: list[Arrays] = []
        accepted: list[NDArray[np.bool_]] = []
        for start in range(0, len(self.tokens), recording.batch):
            part = slice(start, start + recording.batch)
            tokens = self.tokens[part]
            texts = Texts.read(target, drafter, tokens, written[part])
            arrays_of_texts = forced_arrays(target, drafter, texts, rule, names, **how)
            if recording.confidences:
                chains = chain_confidences(target, drafter, texts, depth)
                arrays_of_texts = [one | other for one, other in zip(arrays_of_texts, chains, strict=True)]
            forced += arrays_of_texts
            if policy is not None:
                drafted += candidate_trees(target, drafter, texts, policy, stride=recording.stride)
            if isinstance(rule, Typical):
                accepted += self._accepted(tokens, written[part], rule)
            self.progress(len(tokens))
        arrays: dict[str, Any] = _concatenate(forced)
        if policy is not None:
            trees = _concatenate(drafted)
            arrays["candidates"] = Candidates(np.append(0, trees.pop("sizes").cumsum()), **trees)
        if accepted:
            arrays["tree_kept"] = np.concatenate(accepted)
        return arrays

    def _accepted(
        self, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]], rule: Typical
    ) -> list[NDArray[np.bool_]]:
        """Return for each text, bool (length, nodes), the nodes that a step from each of its tokens would accept.

        Nodes that reach past the end of the text are not accepted.
        """
        target, drafter, tree = self.target, self.drafter, self.recording.writing_tree
        padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
        forced, lengths = ForcedText(rule, padded.to(target.device)), [len(text) for text in texts]
        for _ in Decoder(target, drafter, tree=tree, batch=len(texts), rule=forced).steps(prompts, new_tokens=lengths):
            pass
        accepted = torch.stack(forced.accepted[: max(lengths)], 1)[:, :, 1:].cpu().numpy()
        depths = np.array(tree.depths)
        return [
            nodes[:length] & (depths <= np.arange(length, 0, -1)[:, None])
            for nodes, length in zip(accepted, lengths, strict=True)
        ]


def _concatenate(pieces: Sequence[Arrays]) -> Arrays:
    """Return the arrays of all pieces, one after the other, by name."""
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def repeated_share(texts: Sequence[Sequence[int]], length: int = NGRAM) -> float:
    """Return the share of n-grams that stood earlier in the same text, over all texts.

    >>> repeated_share([[1, 2, 1, 2, 1, 2]], length=2)
    0.6
    """
    grams, repeats = repeated_ngrams(texts, length)
    return repeats / grams if grams else 0.0


def repeated_ngrams(texts: Sequence[Sequence[int]], length: int = NGRAM) -> tuple[int, int]:
    """Return the number of n-grams in the texts, and how many of them stood earlier in the same text."""
    grams = repeats = 0
    for text in texts:
        counts = Counter(tuple(text[i : i + length]) for i in range(len(text) - length + 1))
        grams += sum(counts.values())
        repeats += sum(counts.values()) - len(counts)
    return grams, repeats


class ForcedText:
    """A rule that records which nodes another rule would accept in each step, and emits given texts instead.

    Row i of a run follows text i, so all requests must begin together.

    Attributes:
        rule: the rule whose accepted nodes are recorded.
        accepted: per step bool (batch, count), the root first.
    """

    lossless = needs_scores = sampled_candidates = False

    def __init__(self, rule: Typical, texts: Tensor) -> None:
        """Begin before the first step; `texts` are int64 (batch, longest), padded."""
        self.rule, self._texts = rule, texts
        self.accepted: list[Tensor] = []

    def check(self, tree: Tree) -> None:
        """Allow any tree."""

    def candidates(self, scores: Tensor, width: int) -> Tensor:
        """Return the candidates of the recorded rule."""
        return self.rule.candidates(scores, width)

    def accept(self, logits: Tensor, draft: Draft) -> Accepted:
        """Accept no node, and emit the texts' next tokens; the last one is repeated when a text is over."""
        step = min(len(self.accepted), self._texts.shape[1] - 1)
        self.accepted.append(self.rule.kept(logits, draft))
        root = torch.zeros_like(self._texts[:, :1])
        path = root.expand(-1, draft.topology.path.shape[-1])
        return Accepted.of(draft, root[:, 0], path, self._texts[:, step : step + 1])
