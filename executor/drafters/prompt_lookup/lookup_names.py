"""Names of the drafters that copy from the text, such as `prompt-lookup:5` and `prompt-lookup:vllm:2-4`."""

import re
from collections.abc import Callable, Sequence

from executor.drafters.base.drafter import Drafter
from executor.drafters.prompt_lookup.drafter import PromptLookup
from executor.drafters.prompt_lookup.engine_rules import EngineLookup, EngineRule, LlamaCpp, Transformers, Vllm
from executor.target.target_model import Target
from executor.target.tokenizer import end_tokens
from treeopt.errors import UsageError

KIND = PromptLookup.kind
SGLANG = (
    f"{KIND}:sglang: SGLang's NGRAM drafts from one trie of all texts that a server has served, which a thread fills "
    f"while it decodes; what it proposes depends on other requests and on timing, so it cannot be replayed"
)


NUMBER = r"\d{1,20}"
Stops = Callable[[], Sequence[int]]  # end tokens, asked for only by a rule that reads them


def lookup_drafter(name: str, target: Target) -> Drafter | None:
    """Return the drafter of that name; None if the name is not of this family.

    Raises:
        UsageError: an unknown engine, or numbers that are not valid.
    """
    if name != KIND and not name.startswith(f"{KIND}:"):
        return None
    rule = engine_rule(name, lambda: end_tokens(target))
    if rule is not None:
        return EngineLookup(rule)
    size = name.removeprefix(KIND).removeprefix(":")
    if name != KIND and not re.fullmatch(NUMBER, size):
        raise UsageError(f"{name}: must be {KIND} or {KIND}:N, such as {KIND}:5, or {KIND}:ENGINE, such as {KIND}:vllm")
    return (PromptLookup(int(size)) if size else PromptLookup()).to(target.device)


def engine_rule(name: str, stops: Stops = tuple) -> EngineRule | None:
    """Return the engine's rule that a name states; None if it states no engine.

    Args:
        name: such as `prompt-lookup:vllm:2-4`.
        stops: returns the target's end tokens.

    Raises:
        UsageError: an engine whose rule cannot be replayed, or numbers that are not valid.
    """
    kind, _, rest = name.partition(":")
    engine, _, sizes = rest.partition(":")
    if kind != KIND or engine not in {*ENGINES, "sglang"}:
        return None
    if engine == "sglang":
        raise UsageError(SGLANG)
    form, make = ENGINES[engine]
    numbers = sizes.split("-") if name != f"{KIND}:{engine}" else []
    if not all(re.fullmatch(NUMBER, number) for number in numbers) or len(numbers) > 2:
        raise UsageError(f"{name}: must be {KIND}:{engine} or {KIND}:{engine}:{form}")
    return make(name, [int(number) for number in numbers], stops)


def _vllm(name: str, sizes: list[int], stops: Stops) -> EngineRule:
    return Vllm(sizes[0], sizes[-1]) if sizes else Vllm()


def _llama_cpp(name: str, sizes: list[int], stops: Stops) -> EngineRule:
    if len(sizes) == 1:
        raise UsageError(f"{name}: give both sizes, such as {KIND}:llama.cpp:12-48")
    return LlamaCpp(*sizes)


def _transformers(name: str, sizes: list[int], stops: Stops) -> EngineRule:
    if len(sizes) > 1:
        raise UsageError(f"{name}: give one number, max_matching_ngram_size, such as {KIND}:transformers:2")
    stop = tuple(stops())
    return Transformers(sizes[0], stop) if sizes else Transformers(stop=stop)


# Engine -> the form of its numbers, and what makes its rule.
ENGINES: dict[str, tuple[str, Callable[[str, list[int], Stops], EngineRule]]] = {
    "vllm": ("MIN-MAX", _vllm),
    "llama.cpp": ("N-M", _llama_cpp),
    "transformers": ("N", _transformers),
}
