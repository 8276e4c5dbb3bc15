"""Self-distillation: training text that the target writes itself, as answers to users and continuations of texts.

A drafter predicts what its target will write, so that is the text to train it on. Texts are written chunk by chunk,
each with random numbers of its own: an interrupted run resumes with the missing chunk, and ends with the same texts as
an uninterrupted one.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import PreTrainedTokenizerBase

from executor.decoding.decoder import Decoder
from executor.models import identity
from executor.prompts.chat_template import as_fields, messages_of, up_to_answer
from executor.prompts.conversation_forms import Turns, has_tools
from executor.target.target_model import Target
from executor.target.tensor_parallel import launched_processes
from executor.target.tokenizer import stop_tokens
from executor.train.token_rows import Text, tokenizer_hash
from executor.verification.acceptance_rules import Greedy, Rule
from executor.verification.sampling_rules import SampleAndMatch
from executor.verification.temperature_top_k_top_p import Warp, seeded_generator
from treeopt.errors import ExecutorError
from treeopt.storage.user_files import write_text
from treeopt.storage.work_file import WorkFile, beside

CHUNKS = 4  # batches written together
Head = tuple[Mapping[str, Any], int, int]  # what texts depend on, their number, and how many are written together
Parts = Callable[[Iterable[int]], Iterator[list[dict[str, Any]]]]  # writes the chunks that begin at these texts


@dataclass(frozen=True)
class Writing:
    """The settings of self-distillation.

    Attributes:
        temperature: 0 for greedy text. Medusa's authors write at 0.3.
        new_tokens: longest answer or continuation.
        prompt_tokens: a long text is cut into stretches of `prompt_tokens` + `new_tokens`; the first `prompt_tokens`
            of each are the prompt.
        batch: texts written together.
        seed: of the sampling.
    """

    temperature: float = 0.3
    new_tokens: int = 192
    prompt_tokens: int = 64
    batch: int = 8
    seed: int = 0


def chunk_writer(
    target: Target, tokenizer: PreTrainedTokenizerBase, texts: Sequence[Text], writing: Writing
) -> tuple[Head, Callable[[int], list[dict[str, Any]]]]:
    """Return the head of all texts, and what writes the chunk from a text on; see `rewrite`."""

    def fits(prompt: Sequence[int]) -> bool:
        return target.context_limit is None or len(prompt) + writing.new_tokens <= target.context_limit

    asked = [prompt for text in texts for prompt in _prompts(tokenizer, text, writing)]
    for text in asked:
        prompt = _Piece(tokenizer, text).prompt() or []
        if max(prompt, default=0) >= target.vocabulary:
            raise ExecutorError(f"{text.where}: token {max(prompt)}, the target's vocabulary has {target.vocabulary}")
        if not fits(prompt):
            raise ExecutorError(
                f"{text.where}: its {len(prompt)} tokens and {writing.new_tokens} more exceed the target's context of "
                f"{target.context_limit}"
            )
    size = CHUNKS * writing.batch

    def write(start: int) -> list[dict[str, Any]]:
        rule: Rule = Greedy()
        if writing.temperature:
            digest = hashlib.sha256(f"{writing.seed} {start // size}".encode()).digest()
            generator = seeded_generator(target.device, int.from_bytes(digest[:7], "big"))
            rule = SampleAndMatch(Warp(writing.temperature), generator)
        pieces = [_Piece(tokenizer, text) for text in asked[start : start + size]]
        stop = stop_tokens(target, tokenizer)
        while True:  # turn by turn, all conversations together
            prompts = {piece: prompt for piece in pieces if (prompt := piece.prompt()) is not None}
            for piece in [piece for piece, prompt in prompts.items() if not fits(prompt)]:
                piece.end()
                del prompts[piece]
            if not prompts:
                return [piece.record() for piece in pieces]
            decoder = Decoder(target, batch=min(writing.batch, len(prompts)), rule=rule)
            answers = decoder.generate(list(prompts.values()), new_tokens=writing.new_tokens, stop=stop)
            for (piece, prompt), answer in zip(prompts.items(), answers, strict=True):
                piece.answer(prompt, list(answer.tokens), cut=answer.tokens[-1] not in stop)

    given = [[text.turns, text.text, *([text.extras] if text.extras else [])] for text in asked]
    digest = hashlib.sha256(json.dumps(given).encode()).hexdigest()[:16]
    settings = {**identity(target, None), "writing": vars(writing), "asked": len(asked), "asked_sha256": digest}
    return (settings, len(asked), size), write


def rewrite(
    target: Target,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[Text],
    output: Path,
    writing: Writing,
    elsewhere: tuple[Head, Parts] | None = None,
    *,
    progress: Callable[[int], None] = lambda pieces: None,
) -> None:
    """Let `target` write answers and continuations for `texts` into `output`, JSON lines with text and tokens.

    The turns of users and the system stay, each answer is the target's own; a text without turns is cut into stretches
    whose beginnings are continued. A conversation ends before the turn whose answer the target's context does not
    hold. What a work file beside `output` holds is not written again.

    Args:
        target: the model that writes.
        tokenizer: its tokenizer.
        texts: conversations, prompts, or texts of any length.
        output: the file; written when everything is done.
        writing: the settings.
        elsewhere: the head and what writes the chunks in other processes, for the same target, texts and settings.
        progress: called with the number of texts finished.

    Raises:
        UsageError: the work file belongs to other texts, another target or other settings.
        ExecutorError: not even the first answer fits the target's context, or the target lacks a token of its prompt;
            names the text.
    """
    if elsewhere is None:
        head, write = chunk_writer(target, tokenizer, texts, writing)
        elsewhere = head, partial(map, write)
    (settings, count, size), parts = elsewhere
    with WorkFile(beside(output), settings) as work:
        records: list[dict[str, Any]] = work.pieces("text", dict)
        progress(len(records))
        starts = range(len(records) // size * size, count, size)
        for start, written in zip(starts, parts(starts), strict=True):
            for record in written[max(0, len(records) - start) :]:
                work.put("text", record)
                records.append(record)
                progress(1)
    if target.cache is not None:
        target.cache.release()
        target.cache = None
    write_text(output, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    work.remove()


def rewritten(
    target: Target,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[Text],
    folder: Path,
    writing: Writing,
    elsewhere: tuple[Head, Parts] | None = None,
    *,
    progress: Callable[[int], None] = lambda pieces: None,
) -> list[Path]:
    """Write the files below `folder`, see `rewrite`, and return them; each of several processes writes a share.

    A finished file is not written again.
    """
    count = launched_processes()
    rank = int(os.environ["RANK"]) if count > 1 else 0
    files = [folder / f"self-distilled-{number + 1}-of-{count}.jsonl" for number in range(count)]
    if not files[rank].exists():
        rewrite(target, tokenizer, texts[rank::count], files[rank], writing, elsewhere, progress=progress)
    # Shares end at different times, and a group's usual patience is 10 minutes. Training will have the same group.
    PartialState(cpu=target.device.type == "cpu", timeout=timedelta(days=1)).wait_for_everyone()
    return files


def stretches(texts: Sequence[Text], tokenizer: PreTrainedTokenizerBase, writing: Writing) -> int:
    """Return the number of texts that will be written."""
    return sum(1 for text in texts for _ in _prompts(tokenizer, text, writing))


def _prompts(tokenizer: PreTrainedTokenizerBase, text: Text, writing: Writing) -> Iterator[Text]:
    """Yield what the target is given of a text: its turns without answers, or the beginnings of its stretches."""
    if text.turns:
        turns = tuple(turn for turn in before_tools(text.turns) if turn[0] != "assistant")
        if any(turn[0] == "user" for turn in turns):
            yield Text(text.where, turns=turns, extras=text.extras)
        return
    if text.prompt:
        yield Text(text.where, text=text.prompt)
        return
    encoding = tokenizer(text.text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    spans = encoding["offset_mapping"]
    for start in range(0, len(spans), writing.prompt_tokens + writing.new_tokens):
        stop = min(start + writing.prompt_tokens, len(spans))
        piece = text.text[spans[start][0] : spans[stop - 1][1]]
        if piece.strip():
            yield Text(text.where, text=piece)


def before_tools(turns: Turns) -> Turns:
    """Return the turns before the first tool call: the target's own calls would get other answers.

    >>> before_tools((("user", "a"), ("assistant", "", '{"tool_calls": []}'), ("tool", "b"), ("user", "c")))
    (('user', 'a'),)
    """
    count = next((i for i in range(len(turns)) if has_tools(turns[i : i + 1])), len(turns))
    return turns[:count]


class _Piece:
    """A text that is being written: the turns so far, the turns to come, and the tokens of those so far."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, text: Text) -> None:
        self._tokenizer, self._text = tokenizer, text
        self._turns: list[dict[str, Any]] = []
        self._waiting = messages_of(text.turns)
        self._continuation: dict[str, Any] = {}
        self._sequences: list[dict[str, Any]] = []

    def prompt(self) -> list[int] | None:
        """Return the tokens after which the next answer, or the continuation, is written; None when all is done."""
        if not self._text.turns:
            done, text = self._continuation, self._text.text
            return None if done else list(self._tokenizer(text, add_special_tokens=True, verbose=False)["input_ids"])
        count = next((n for n, turn in enumerate(self._waiting, 1) if turn["role"] == "user"), None)
        if count is None:
            return None
        self._turns += self._waiting[:count]
        self._waiting = self._waiting[count:]
        return up_to_answer(self._tokenizer, self._turns, self._text.where, extras=self._text.extras)

    def end(self) -> None:
        """End the conversation after its last answer."""
        self._waiting = []
        self._turns = self._turns[: 1 + max(n for n, turn in enumerate(self._turns) if turn["role"] == "assistant")]

    def answer(self, prompt: list[int], answer: list[int], *, cut: bool) -> None:
        """Add what the target wrote after `prompt`; `cut` if the limit ended it."""
        if self._text.turns:
            self._turns.append({"role": "assistant", "content": self._decoded(answer)})
        else:
            begun, whole = self._decoded(prompt), self._decoded(prompt + answer)  # the answer alone may lack a space
            text = self._text.text
            self._continuation = {"text": text + whole[len(begun) :], "prompt": text, "cut": cut}
        sequences = self._sequences
        # Templates may change earlier turns: then another sequence begins.
        if not (sequences and prompt[: len(sequences[-1]["tokens"])] == sequences[-1]["tokens"]):
            sequences.append({"learnt": []})
        sequences[-1]["tokens"] = prompt + answer
        sequences[-1]["learnt"].append([len(prompt), len(prompt) + len(answer)])

    def record(self) -> dict[str, Any]:
        """Return the record of the text; see `token_rows`."""
        content = {"messages": self._turns, **as_fields(self._text.extras)} if self._text.turns else self._continuation
        return {**content, "tokenizer": tokenizer_hash(self._tokenizer), "sequences": self._sequences}

    def _decoded(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))
