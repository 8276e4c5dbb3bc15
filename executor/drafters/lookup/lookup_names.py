"""Names of the drafters that copy from the text, such as `prompt-lookup:5` and `prompt-lookup:vllm:2-4`."""

import re
from collections.abc import Callable

from executor.drafters.drafter import Drafter
from executor.drafters.lookup.engine_lookup import EngineLookup
from executor.drafters.lookup.engine_rules import EngineRule, LlamaCpp, Transformers, Vllm
from executor.drafters.lookup.prompt_lookup import PromptLookup
from executor.target.target_model import Target
from executor.target.tokenizer import end_tokens
from treeopt.errors import UsageError

KIND = PromptLookup.kind
SGLANG = (
    f"{KIND}:sglang: SGLang's NGRAM drafts from one trie of all texts that a server has served, which a thread fills "
    f"while it decodes; what it proposes depends on other requests and on timing, so it cannot be replayed"
)


NUMBER = r"\d{1,20}"


def lookup_drafter(name: str, target: Target) -> Drafter | None:
    """Return the drafter of that name; None if the name is not of this family.

    Raises:
        UsageError: an unknown engine, or numbers that are not valid.
    """
    if name != KIND and not name.startswith(f"{KIND}:"):
        return None
    first, _, sizes = name.removeprefix(KIND).removeprefix(":").partition(":")
    if name == KIND:
        return PromptLookup().to(target.device)
    if first == "sglang":
        raise UsageError(SGLANG)
    if first in ENGINES:
        form, make = ENGINES[first]
        numbers = sizes.split("-") if name != f"{KIND}:{first}" else []
        if not all(re.fullmatch(NUMBER, number) for number in numbers) or len(numbers) > 2:
            raise UsageError(f"{name}: must be {KIND}:{first} or {KIND}:{first}:{form}")
        return EngineLookup(make(name, [int(number) for number in numbers], target))
    if sizes or not re.fullmatch(NUMBER, first):
        raise UsageError(f"{name}: must be {KIND} or {KIND}:N, such as {KIND}:5, or {KIND}:ENGINE, such as {KIND}:vllm")
    return PromptLookup(int(first)).to(target.device)


def _vllm(name: str, sizes: list[int], target: Target) -> EngineRule:
    return Vllm(sizes[0], sizes[-1]) if sizes else Vllm()


def _llama_cpp(name: str, sizes: list[int], target: Target) -> EngineRule:
    if len(sizes) == 1:
        raise UsageError(f"{name}: give both sizes, such as {KIND}:llama.cpp:12-48")
    return LlamaCpp(*sizes)


def _transformers(name: str, sizes: list[int], target: Target) -> EngineRule:
    if len(sizes) > 1:
        raise UsageError(f"{name}: give one number, max_matching_ngram_size, such as {KIND}:transformers:2")
    stop = tuple(end_tokens(target))
    return Transformers(sizes[0], stop) if sizes else Transformers(stop=stop)


# Engine -> the form of its numbers, and what makes its rule.
ENGINES: dict[str, tuple[str, Callable[[str, list[int], Target], EngineRule]]] = {
    "vllm": ("MIN-MAX", _vllm),
    "llama.cpp": ("N-M", _llama_cpp),
    "transformers": ("N", _transformers),
}
