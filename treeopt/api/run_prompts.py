"""Read the prompts of a run and turn them into tokens: a file's, texts, or random tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from executor.prompts.message_parts import PARTS
from treeopt.api.messages import note, warn
from treeopt.api.run_models import Models, quiet_libraries
from treeopt.defaults import RANDOM_REQUESTS
from treeopt.errors import UsageError, counted
from treeopt.settings import Settings, setting

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from executor.prompts.prompt_files import Prompt
    from executor.target.target_model import Target


MOST_RANDOM = 2**26  # tokens of random prompts


def leave_out() -> Any:
    """Return the setting of the parts of records that are left out."""
    return setting(
        frozenset(),
        choices=tuple(PARTS),
        form="parts",
        help="Parts of records that are left out, between commas: tools, thoughts, system; or unreadable, which skips "
        "records that cannot be read or that the chat template refuses. Default: nothing.",
    )


@dataclass(frozen=True, kw_only=True)
class Prompts(Settings):
    """The source of prompts: part of a file, texts, or random tokens."""

    texts: tuple[str, ...] = setting((), option="--prompt", help="A text to continue; may be given several times.")
    prompts: Path | None = setting(
        None,
        form="folder",
        help="Records with `text`, or with conversations (`messages`, `conversations`, `turns`), which are answered: "
        "JSON lines, a JSON list, parquet, arrow, or a folder of them.",
    )
    prompt_tokens: int | None = setting(
        None, least=2, form="tokens", help="In place of --prompts: length of random prompts in tokens."
    )
    requests: int | None = setting(None, least=1, help="Number of prompts to take; default all.")
    skip: int = setting(0, least=0, help="Number of prompts to leave out first.")
    chat: bool = setting(False, help="Put texts through the target's chat template, as a user's turn.")
    leave_out: frozenset[str] = leave_out()

    def read(self) -> "list[Prompt]":
        """Read the prompts, warn of what the files hold that is not read, and name the fields without effect.

        Raises:
            UsageError: not exactly one source, or more prompts asked for than there are.
        """
        from executor.prompts.message_parts import Report
        from executor.prompts.prompt_files import Prompt, read_prompts

        if (self.prompts is None) != bool(self.texts):
            raise UsageError("give either --prompts or --prompt")
        if self.prompts is None:
            if self.requests is not None or self.skip:
                raise UsageError("--requests and --skip choose from a file: give --prompts")
            if not all(self.texts) or any("\ud800" <= c <= "\udfff" for text in self.texts for c in text):
                raise UsageError("--prompt must be a Unicode text that is not empty")
            return [self._as_turn(Prompt(text, where=f"--prompt {text!r}")) for text in self.texts]
        report = Report(self.leave_out)
        prompts = read_prompts(self.prompts, report)[self.skip :]
        warn(report.remarks)
        note(report.unread_fields)
        if not prompts or (self.requests is not None and len(prompts) < self.requests):
            raise UsageError(
                f"{self.prompts}: {counted(self.requests or 1, 'prompt')} wanted after skipping {self.skip}, "
                f"{len(prompts)} are left: give a smaller --requests or --skip"
            )
        return [self._as_turn(prompt) for prompt in prompts[: self.requests]]

    def _as_turn(self, prompt: "Prompt") -> "Prompt":
        if not self.chat or prompt.turns:
            return prompt
        return replace(prompt, text="", turns=(("user", prompt.text),))


@dataclass(frozen=True)
class Requests:
    """Prompts, their token ids, the tokens that end a text, and the tokenizer."""

    prompts: "Sequence[Prompt]"
    tokens: list[list[int]]
    stop: list[int]
    tokenizer: "PreTrainedTokenizerBase"


def load_prompts(models: Models, target: "Target | None", prompts: Prompts, *, shortest: int = 1) -> Requests:
    """Read prompts and encode them with the target's tokenizer.

    Args:
        models: name the target's folder.
        target: the target; None: an engine loads it itself, and ends texts by its own rule.
        prompts: what is read.
        shortest: fewest tokens of a prompt.

    Raises:
        UsageError: more prompts asked for than there are, one of fewer than `shortest` tokens, no folder of a target,
            or `chat` with a tokenizer that has no chat template.
        ExecutorError: the chat template refuses a conversation.
    """
    from executor.target.tokenizer import load_tokenizer, stop_tokens

    read = prompts.read()
    if target is None:
        tokenizer = engine_tokenizer(models.target)
        if tokenizer is None:
            raise UsageError(
                f"--target {models.target}: no such folder; prompts are encoded with the tokenizer of the target"
            )
    else:
        tokenizer = load_tokenizer(models.target, vocabulary=target.vocabulary)
    texts, tokens = _encoded(tokenizer, read, prompts, models.target)
    for number, prompt in enumerate(tokens, prompts.skip):
        if len(prompt) < shortest:
            source = prompts.prompts or "--prompt"
            raise UsageError(f"{source}: prompt {number} has {len(prompt)} tokens, at least {shortest} are needed")
    return Requests(texts, tokens, [] if target is None else stop_tokens(target, tokenizer), tokenizer)


def engine_tokenizer(target: Path) -> "PreTrainedTokenizerBase | None":
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


def _encoded(
    tokenizer: "PreTrainedTokenizerBase", texts: "Sequence[Prompt]", prompts: Prompts, target: Path | str
) -> "tuple[Sequence[Prompt], list[list[int]]]":
    """Return prompts and their token ids, without those that the template refuses if these are to be left out.

    Raises:
        UsageError: `chat` with a tokenizer that has no chat template; or no prompt is left.
        ExecutorError: the chat template refuses a conversation.
    """
    from executor.prompts.message_parts import Report
    from executor.prompts.prompt_files import encoded

    if not tokenizer.chat_template and any(prompt.turns for prompt in texts):
        if prompts.chat:
            raise UsageError(f"--chat: the tokenizer of {target} has no chat template: omit --chat")
        warn(["the tokenizer has no chat template: turns are joined by line ends"])
    report = Report(prompts.leave_out)
    pairs = encoded(tokenizer, texts, report)
    warn(report.remarks)
    if not pairs:
        raise UsageError(f"{prompts.prompts}: no prompt is left: omit --leave-out, or name longer prompts")
    return [prompt for prompt, _ in pairs], [tokens for _, tokens in pairs]


def load_tokens(models: Models, target: "Target | None", prompts: Prompts) -> tuple[list[list[int]], list[int]]:
    """Return token ids of a file's prompts or of random ones, and the tokens that end a text; see `load_prompts`.

    Raises:
        UsageError: not exactly one source, or as `load_prompts` does.
        ExecutorError: random prompts beyond the target's context.
    """
    if (prompts.prompts is None) == (prompts.prompt_tokens is None):
        raise UsageError("give either --prompts or --prompt-tokens")
    if prompts.prompt_tokens is None:
        requests = load_prompts(models, target, prompts)
        return requests.tokens, requests.stop
    if prompts.chat:
        raise UsageError("--chat applies only to --prompts: random tokens are no user's turn")
    if target is None:
        raise UsageError("--engine does not take --prompt-tokens: give --prompts")
    target.check_length(prompts.prompt_tokens)
    size = (prompts.skip + (prompts.requests or RANDOM_REQUESTS), prompts.prompt_tokens)
    if size[0] * size[1] > MOST_RANDOM:
        raise UsageError(
            f"--requests {size[0] - prompts.skip} after --skip {prompts.skip} of --prompt-tokens {size[1]} are "
            f"more than {MOST_RANDOM} random tokens: give fewer --requests"
        )
    tokens: list[list[int]] = np.random.default_rng(0).integers(0, target.vocabulary, size).tolist()
    return tokens[prompts.skip :], []
