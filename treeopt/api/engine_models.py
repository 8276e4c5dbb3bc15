"""An inference engine in words, as options name it, and the prompts that it decodes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.api.run_models import quiet_libraries
from treeopt.api.run_prompts import Prompts, encoded_prompts
from treeopt.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from treeopt.engines.driver_settings import EngineSettings


@dataclass(frozen=True)
class EngineChoice:
    """An engine in words, as options name it.

    Attributes:
        engine: vllm, llama.cpp, sglang, openai; None: treeopt's own loop.
        urls: addresses, each with its draft length: ((3, "http://..."),).
        engine_python: interpreter of the environment that holds the engine.
        engine_args: further arguments of its launch, as one line.
        method: how the engine drafts, in its own word.
        engine_target: the target as the engine reads it; None: the target's folder.
        engine_drafter: the drafter as the engine reads it; None: the drafter's folder.
        servers: servers alive at a time.
        engine_timeout: longest time in seconds that the engine may take to start, and then to send anything.
    """

    engine: str | None = None
    urls: tuple[tuple[int, str], ...] = ()
    engine_python: Path | None = None
    engine_args: str = ""
    method: str | None = None
    engine_target: str | None = None
    engine_drafter: str | None = None
    servers: int = 1
    engine_timeout: float = 600.0

    def settings(self, target: Path, drafter: Path | None, *, concurrency: int) -> "EngineSettings":
        """Return the settings of the driver for these models.

        Raises:
            UsageError: the engine cannot be named so.
        """
        from treeopt.engines.driver_settings import EngineSettings

        assert self.engine is not None
        tokenizer = _tokenizer(target)
        count = None if tokenizer is None else lambda text: len(tokenizer.encode(text, add_special_tokens=False))
        named = None if drafter is None else str(drafter)
        lookup = named if named is not None and named.startswith("prompt-lookup") else None
        return EngineSettings(
            self.engine,
            self.engine_target or str(target),
            self.engine_drafter or (named if lookup is None else None),
            self.method,
            dict(self.urls) if self.urls else None,
            self.engine_python,
            self.engine_args,
            self.servers,
            self.engine_timeout,
            concurrency,
            count,
            lookup,
        )


def _tokenizer(target: Path) -> "PreTrainedTokenizerBase | None":
    """Return the tokenizer in a target's folder; None if `target` is the name of a model elsewhere."""
    if not target.is_dir():
        return None
    quiet_libraries()
    from executor.target.tokenizer import load_tokenizer
    from simulate.model_sizes.hf_config import parsed

    return load_tokenizer(target, vocabulary=parsed(target, _vocabulary))


def _vocabulary(config: Mapping[str, Any]) -> int:
    """Return the number of tokens that a config.json states, also one with images beside its texts."""
    from simulate.model_sizes.hf_config import positive

    text = config.get("text_config")
    return positive("vocab_size", config.get("vocab_size", text.get("vocab_size") if isinstance(text, dict) else None))


def engine_prompts(target: Path, prompts: Prompts) -> list[list[int]]:
    """Return the prompts' token ids, with the tokenizer in the target's folder.

    Raises:
        UsageError: no such folder, or as `Prompts.read` does.
    """
    tokenizer = _tokenizer(target)
    if tokenizer is None:
        raise UsageError(f"--target {target}: no such folder; prompts are encoded with the tokenizer of the target")
    return encoded_prompts(tokenizer, prompts.read(), prompts, target)[1]
