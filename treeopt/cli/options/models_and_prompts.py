"""Models and prompts, as a command line names them, and how they are loaded."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.options import general
from treeopt.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase

    from executor.drafters.drafter import Drafter
    from executor.prompts.prompt_files import Prompt
    from executor.target.target_model import Target

# As executor.target.load_hf_model has them, which would load torch.
DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
QUANTIZED = ("int8", "int4")
# Libraries that remark on their own insides while they load.
TALKATIVE = ("torchao", "torch.utils._pytree")


@dataclass(frozen=True)
class Models:
    """The target and drafter that a command was given, and how to load them."""

    target: Path
    drafter: Path | None
    device: str
    dtype: str
    quantize: str | None
    tensor_parallel: bool
    threads: int | None
    random_weights: bool = False


device = click.option("--device", default="cpu", show_default=True, help="Where to run: cpu, cuda, cuda:1, ...")
_RANDOM = click.option(
    "--random-weights",
    is_flag=True,
    help="Draw the weights: --target is then a folder with a config.json, or toy, 100m, 1b, 8b, 14b or 70b; --drafter "
    "is medusa:K (heads), layers:N (the target's first N layers, so to speak) or eagle.",
)


def _models(*more: Callable[[Any], Any], drafter: bool) -> Callable[[Any], Any]:
    return general.bundle(
        "models",
        Models,
        click.option(
            "--target", type=general.FOLDER, required=True, help="Folder of the target, a Hugging Face model."
        ),
        click.option(
            "--drafter", type=general.FOLDER, required=drafter, help="Folder of the drafter, or prompt-lookup."
        ),
        *more,
        device,
        click.option(
            "--dtype",
            type=click.Choice(DTYPES),
            default="float32",
            show_default=True,
            help="Type computed in, and of the cache; auto: as the target was saved.",
        ),
        click.option(
            "--quantize", type=click.Choice(QUANTIZED), help="Store the target's linear layers in so few bits."
        ),
        click.option("--tensor-parallel", is_flag=True, help="Share the target out over the processes of torchrun."),
        click.option(
            "--threads", type=click.IntRange(min=1), help="CPU threads, at most 4 a core; default what torch takes."
        ),
    )


models, models_without_drafter = _models(drafter=True), _models(drafter=False)
models_or_shapes = _models(_RANDOM, drafter=True)


@dataclass(frozen=True)
class Prompts:
    """Where a command finds its prompts: some of a file's, or texts on the command line."""

    prompts_file: Path | None
    requests: int | None
    skip: int
    chat: bool = False
    texts: tuple[str, ...] = ()
    prompt_tokens: int | None = None

    def read(self) -> "list[Prompt]":
        """The prompts.

        Raises:
            UsageError: not one source, or more asked for than there are.
        """
        from executor.prompts.prompt_files import Prompt, read_prompts

        if (self.prompts_file is None) != bool(self.texts):
            raise UsageError("give either --prompts or --prompt")
        if self.prompts_file is None:
            if self.requests is not None or self.skip:
                raise UsageError("--requests and --skip choose from a file: give --prompts")
            if not all(self.texts) or any("\ud800" <= c <= "\udfff" for text in self.texts for c in text):
                raise UsageError("--prompt must be a text in Unicode, and not empty")
            return [self._taken(Prompt(text, where=f"--prompt {text!r}")) for text in self.texts]
        drawn = read_prompts(self.prompts_file)[self.skip :]
        if not drawn or (self.requests is not None and len(drawn) < self.requests):
            raise UsageError(
                f"{self.prompts_file}: {self.requests or 1} prompts wanted after skipping {self.skip}, "
                f"{len(drawn)} are left"
            )
        return [self._taken(prompt) for prompt in drawn[: self.requests]]

    def _taken(self, prompt: "Prompt") -> "Prompt":
        if not self.chat or prompt.turns:
            return prompt
        return replace(prompt, text="", turns=(("user", prompt.text),))


_PROMPTS = "JSON lines with `text`, or with conversations (`messages`, `conversations`, `turns`), which are answered."
_choice = (
    click.option("--requests", type=click.IntRange(min=1), help="Prompts to take; default all."),
    click.option(
        "--skip", type=click.IntRange(min=0), default=0, show_default=True, help="Prompts to leave out first."
    ),
    click.option("--chat", is_flag=True, help="Take texts as what a user says, through the target's chat template."),
)
prompts = general.bundle(
    "prompts",
    Prompts,
    click.option("--prompts", "prompts_file", type=general.FILE, required=True, help=_PROMPTS),
    *_choice,
)
prompts_or_random = general.bundle(
    "prompts",
    Prompts,
    click.option("--prompts", "prompts_file", type=general.FILE, help=_PROMPTS),
    click.option("--prompt-tokens", type=click.IntRange(min=2), help="In place of --prompts: so many random tokens."),
    *_choice,
)
prompts_or_texts = general.bundle(
    "prompts",
    Prompts,
    click.option("--prompt", "texts", multiple=True, help="A text to continue; may be given again."),
    click.option("--prompts", "prompts_file", type=general.FILE, help=_PROMPTS),
    *_choice,
)
new_tokens = click.option(
    "--new-tokens", type=click.IntRange(min=1), default=64, show_default=True, help="After each prompt."
)


def hush() -> None:
    """Silence the talkative; it must come before what imports torch, for they talk while they are imported."""
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)


def load_models(models: Models) -> "tuple[Target, Drafter]":
    """Target and drafter, on the device; see `load_target_and_drafter`."""
    target, drafter = load_target_and_drafter(models)
    assert drafter is not None, "a command that must have a drafter asks for it"
    return target, drafter


def load_target_and_drafter(models: Models) -> "tuple[Target, Drafter | None]":
    """Target and, where one was given, drafter, on the device.

    Raises:
        UsageError: several processes were started and each would do the whole work.
    """
    hush()
    from executor.checkpoints import load_drafter
    from executor.target.load_hf_model import dtype_name, load_target, prepare
    from executor.target.tensor_parallel import launched

    if launched() > 1 and not models.tensor_parallel:
        raise UsageError(f"{launched()} processes were started for one target: give --tensor-parallel, or start one")
    prepare(models.device, threads=models.threads, tensor_parallel=models.tensor_parallel)
    if models.random_weights:
        return _drawn_models(models)
    target = load_target(
        models.target,
        dtype=models.dtype,
        device=models.device,
        quantize=models.quantize,
        tensor_parallel=models.tensor_parallel,
        packed=True,
    )
    warn_of_slow(dtype_name(target.dtype), target)
    if target.attention_reason is not None and is_main_rank():
        click.echo(f"attention: {target.attention}, {target.attention_reason}", err=True)
    if models.drafter is None:
        return target, None
    drafter = load_drafter(models.drafter, target, packed=True)
    _warn_of_another_target(models, target)
    return target, drafter


def warn_of_slow(dtype: str, target: "Target") -> None:
    """Warn on stderr if the target's device has no products of a type that could be another."""
    from executor.target.packed_linears import multiplies_bf16
    from executor.target.quantization import quantization_of

    slow = dtype == "bfloat16" and not multiplies_bf16(target.device)
    if slow and quantization_of(target.model) is None and is_main_rank():
        click.echo("Warning: this processor has no bfloat16 products: float32 takes half the time and less", err=True)


def _warn_of_another_target(models: Models, target: "Target") -> None:
    """Warn on stderr if the drafter says that it was made for another target, by name; its shapes fit this one.

    A target that learnt with its drafter lies below it, under a name of its own.
    """
    from executor.checkpoints import trained_for

    assert models.drafter is not None
    named = trained_for(models.drafter)
    folder = models.drafter.parent if models.drafter.is_file() else models.drafter
    together = models.target.resolve().parent == folder.resolve()
    if named not in (None, target.name) and not together and is_main_rank():
        click.echo(f"Warning: {models.drafter} was made for the target {named}, this one is {target.name}", err=True)


def _drawn_models(models: Models) -> "tuple[Target, Drafter]":
    """Target and drafter with random weights."""
    if models.quantize is not None or models.tensor_parallel or models.dtype == "auto":
        raise UsageError("--random-weights goes without --quantize, --tensor-parallel and --dtype auto")
    from executor.models.random_weights import random_drafter, random_target
    from executor.target.load_hf_model import DTYPES

    target = random_target(models.target, dtype=DTYPES[models.dtype], device=models.device, packed=True)
    warn_of_slow(models.dtype, target)
    return target, random_drafter(str(models.drafter), target, packed=True)


def is_main_rank() -> bool:
    """Whether this process is the one that prints and writes; ask when models are loaded."""
    from executor.target.tensor_parallel import is_main_rank

    return is_main_rank()


@dataclass(frozen=True)
class Requests:
    """Prompts, their token ids, the tokens that end a text, and what turns tokens into text."""

    prompts: "Sequence[Prompt]"
    tokens: list[list[int]]
    stop: list[int]
    tokenizer: "PreTrainedTokenizerBase"


def load_prompts(models: Models, model: "Target", prompts: Prompts, *, shortest: int = 1) -> Requests:
    """The requests that a command was given.

    Raises:
        UsageError: more prompts asked for than there are, one of fewer than `shortest` tokens, or `--chat` for a
            tokenizer that has no chat template.
        ExecutorError: the chat template refuses a conversation.
    """
    from executor.prompts.prompt_files import encode
    from executor.target.tokenizer import load_tokenizer, stop_tokens

    drawn = prompts.read()
    tokenizer = load_tokenizer(models.target, vocabulary=model.vocabulary)
    if not tokenizer.chat_template and any(p.turns for p in drawn):
        if prompts.chat:
            raise UsageError(f"--chat: the tokenizer of {models.target} has no chat template")
        if is_main_rank():
            click.echo("Warning: the tokenizer has no chat template: turns are joined by line ends", err=True)
    tokens = encode(tokenizer, drawn)
    for number, prompt in enumerate(tokens, prompts.skip):
        if len(prompt) < shortest:
            source = prompts.prompts_file or "--prompt"
            raise UsageError(f"{source}: prompt {number} has {len(prompt)} tokens, at least {shortest} are needed")
    return Requests(drawn, tokens, stop_tokens(model, tokenizer), tokenizer)


RANDOM_REQUESTS = 64  # random prompts unless told


def load_tokens(models: Models, model: "Target", prompts: Prompts) -> tuple[list[list[int]], list[int]]:
    """Token ids of the prompts, of a file's or random ones, and the tokens that end a text.

    Raises:
        UsageError: not one source, or as `load_prompts` does.
        ExecutorError: random ones beyond the model's context.
    """
    if (prompts.prompts_file is None) == (prompts.prompt_tokens is None):
        raise UsageError("give either --prompts or --prompt-tokens")
    if prompts.chat and prompts.prompt_tokens is not None:
        raise UsageError("--chat is of --prompts: random tokens are nothing that a user says")
    if prompts.prompt_tokens is None:
        asked = load_prompts(models, model, prompts)
        return asked.tokens, asked.stop
    import numpy as np

    model.check_length(prompts.prompt_tokens)
    size = (prompts.skip + (prompts.requests or RANDOM_REQUESTS), prompts.prompt_tokens)
    drawn: list[list[int]] = np.random.default_rng(0).integers(0, model.vocabulary, size).tolist()
    return drawn[prompts.skip :], []
