"""Steps of streamed answers: how many tokens each chunk commits, and where the prefill ends."""

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace

from treeopt.engines.connections.completions_client import Chunk
from treeopt.engines.driver import Count, EngineStep
from treeopt.errors import EngineError


def steps_of(
    chunks: Generator[Chunk, None, None],
    number: int,
    *,
    draft: int,
    began_s: float,
    where: str,
    count: Count | None = None,
) -> Generator[EngineStep, None, None]:
    """Yield the steps of one request from the chunks of its answer; the last one is marked.

    A first chunk of several tokens holds the prefill's token and those of the first step.

    Args:
        chunks: of the answer.
        number: of the request.
        draft: drafted tokens per step.
        began_s: when the run began, on the clock of the chunks.
        where: the server, for messages.
        count: counts the tokens of a text.

    Raises:
        EngineError: a chunk does not show how many tokens it holds, or holds more than a step commits.
    """
    held: EngineStep | None = None
    total, text = 0, ""
    with closing(chunks):
        for chunk in chunks:
            text += chunk.text
            committed = _tokens(chunk, text, total, count, where)
            total += committed
            for size, tokens in _cut(committed, chunk.tokens, first=held is None):
                if size > draft + 1:
                    raise EngineError(
                        f"{where}: a chunk holds {size} tokens, a step of {draft} drafted tokens at most {draft + 1}: "
                        "the server does not stream by step (SGLang: --stream-interval 1), or drafts more than stated"
                    )
                if held is not None:
                    yield held
                held = EngineStep(number, size, chunk.at_s - began_s, tokens, prefill=held is None)
    if held is None:
        raise EngineError(f"{where}: the answer to request {number} holds no token")
    yield replace(held, ended=True)


def _cut(
    committed: int, tokens: tuple[int, ...] | None, *, first: bool
) -> Iterator[tuple[int, tuple[int, ...] | None]]:
    """Yield size and tokens of the steps in a chunk: one, or at the beginning also the prefill."""
    if not committed:
        return
    if first and committed > 1:
        yield 1, None if tokens is None else tokens[:1]
        yield committed - 1, None if tokens is None else tokens[1:]
    else:
        yield committed, tokens


def _tokens(chunk: Chunk, text: str, before: int, count: Count | None, where: str) -> int:
    """Return the number of tokens of a chunk."""
    if chunk.tokens is not None:
        return len(chunk.tokens)
    if chunk.total is not None:
        if chunk.total < before:
            raise EngineError(f"{where}: `usage.completion_tokens` fell from {before} to {chunk.total}")
        return chunk.total - before
    if chunk.logged is not None:
        return chunk.logged
    if not chunk.text:
        return 0
    if count is None:
        raise EngineError(
            f"{where}: chunks do not say how many tokens they hold (no token_ids, usage or logprobs): give --target, "
            "whose tokenizer counts them"
        )
    return max(count(text) - before, 0)
