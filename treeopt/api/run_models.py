"""Inputs of a real run: the target and the drafter on its device, the prompts as tokens, and how tokens are chosen."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from executor.prompts.message_parts import PARTS
from executor.target import NUMBER_TYPES, QUANTIZED
from treeopt import defaults
from treeopt.acceptance_rule_entries import RULES
from treeopt.api.messages import note, warn
from treeopt.defaults import RANDOM_REQUESTS
from treeopt.errors import UsageError, counted
from treeopt.policies import Policy
from treeopt.settings import Settings, setting
from treeopt.storage.hub_models import hub_hint, model_folder
from treeopt.tree import EMPTY, Tree

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from executor.drafters.base.drafter import Drafter
    from executor.prompts.prompt_files import Prompt
    from executor.target.target_model import Target
    from executor.verification.acceptance_rules import Rule


# Libraries that log details of themselves while they are imported.
VERBOSE = ("torchao", "torch.utils._pytree")


@dataclass(frozen=True, kw_only=True)
class Models(Settings):
    """The target and the drafter, and how to load them."""

    target: Path = setting(help="Folder of the target, a Hugging Face model, or hf:org/name of the hub.")
    drafter: Path | None = setting(
        None,
        help="Folder of the drafter, hf:org/name of the hub, prompt-lookup, or an engine's, such as "
        "prompt-lookup:vllm:2-4; suffix:8; mtp, the target's own; suffix:8+DIR, a lookup before a model.",
    )
    random_weights: bool = setting(
        False,
        help="Draw the weights: --target is then a folder with a config.json, or a shape (toy, 100m, 1b, 8b, 14b, 70b, "
        "which are always drawn); --drafter is medusa:K (K heads), layers:N (the target's first N layers) or eagle.",
    )
    assume_same_tokens: bool = setting(
        False, help="With a language model as the drafter: do not compare its tokens with the target's."
    )
    device: str = setting("auto", help="Where to run: cpu, cuda, cuda:1, ...; auto: cuda where there is one, else cpu.")
    dtype: str = setting(
        "auto",
        choices=("auto", "saved", *NUMBER_TYPES),
        help="Number type of the computation and of the cache; saved: the type that the target was saved in; auto: "
        "float32 on a CPU, saved elsewhere (bfloat16 with --random-weights).",
    )
    quantize: str | None = setting(None, choices=QUANTIZED, help="Quantise the target's linear layers to 8 or 4 bits.")
    tensor_parallel: bool = setting(False, help="Share the target among the processes that torchrun started.")
    threads: int | None = setting(None, least=1, help="CPU threads, at most 4 per core; default torch's choice.")

    def check(self) -> None:
        """Replace `hf:org/name` by the folder of the model, which is downloaded where the cache lacks it."""
        for name, path in (("target", self.target), ("drafter", self.drafter)):
            if path is not None:
                object.__setattr__(self, name, model_folder(path, weights=not self.random_weights))

    def resolved(self) -> "Models":
        """Return the same with the device and the number type that `auto` stands for on this machine."""
        from executor.target.load_hf_model import chosen_device

        device, dtype = chosen_device(self.device), self.dtype
        if dtype == "auto":
            dtype = "float32" if device == "cpu" else "bfloat16" if self.random_weights else "saved"
        return replace(self, device=device, dtype=dtype)


def quiet_libraries() -> None:
    """Silence libraries that log while they are imported; call it before anything imports torch."""
    for name in VERBOSE:
        logging.getLogger(name).setLevel(logging.ERROR)


def load_models(models: Models) -> "tuple[Target, Drafter]":
    """Load target and drafter; see `load_target_and_drafter`."""
    target, drafter = load_target_and_drafter(models)
    assert drafter is not None, "callers that need a drafter give one"
    return target, drafter


def load_target_and_drafter(models: Models, tree: Tree | Policy = EMPTY) -> "tuple[Target, Drafter | None]":
    """Load the target and, where one was given, the drafter, on the device.

    Raises:
        UsageError: several processes were started and each would do the whole work.
        ExecutorError: models that cannot be loaded, or do not fit each other; a target that cannot verify `tree`.
    """
    quiet_libraries()
    from executor.checkpoints import assumptions_of, load_drafter, warnings_of
    from executor.target.architectures import check_chain
    from executor.target.load_hf_model import dtype_name, load_target, prepare, read_config
    from executor.target.tensor_parallel import launched_processes
    from executor.target.tokenizer import check_same_tokens

    if launched_processes() > 1 and not models.tensor_parallel:
        raise UsageError(
            f"{launched_processes()} processes were started for one target: add --tensor-parallel, or start one"
        )
    models = models.resolved()
    prepare(models.device, threads=models.threads, tensor_parallel=models.tensor_parallel)
    if models.random_weights:
        return _random_models(models)
    check_weights(models)
    if tree.nodes and Path(models.target).is_dir():
        check_chain(read_config(models.target), tree)
    target = load_target(
        models.target,
        dtype="auto" if models.dtype == "saved" else models.dtype,
        device=models.device,
        quantize=models.quantize,
        tensor_parallel=models.tensor_parallel,
        packed=True,
    )
    warn([*target.warnings, *slow_type_warnings(dtype_name(target.dtype), target)])
    if target.attention_reason is not None:
        note([f"attention: {target.attention}, {target.attention_reason}"])
    note(kernel_notes(target))
    if models.drafter is None:
        return target, None
    drafter = load_drafter(models.drafter, target, packed=True)
    warn(warnings_of(drafter))
    note(assumptions_of(drafter))
    if drafter.kind == "language-model" and not models.assume_same_tokens:
        warn(check_same_tokens(models.target, models.drafter, target.vocabulary))
    warn(_other_target_warnings(models, target))
    return target, drafter


def check_weights(models: Models) -> None:
    """Raise UsageError if the target is a shape, which has sizes but no weights to load."""
    from simulate.model_sizes.hf_config import shape_name

    if shape_name(models.target) is not None:
        raise UsageError(
            f"--target {models.target}: a shape has sizes but no weights: name a model's folder, or measure the shape "
            "with random weights (`treeopt profile`, `treeopt validate`) or price it (`treeopt whatif`)"
        )


def slow_type_warnings(dtype: str, target: "Target") -> list[str]:
    """Warn if the target's device has no products of a type that could be replaced by another."""
    from executor.target.packed_linears import multiplies_bf16, quantization_of

    if dtype != "bfloat16" or multiplies_bf16(target.device) or quantization_of(target.model) is not None:
        return []
    return ["this processor has no bfloat16 products: float32 takes half the time or less"]


def kernel_notes(target: "Target") -> list[str]:
    """Say on CUDA why fused kernels are not used."""
    if target.device.type != "cuda" or target.fused_reason is None:
        return []
    half = str(target.dtype) == "torch.float16" and "bfloat16" in target.fused_reason
    return [f"fused kernels are not used: {target.fused_reason}{': give --dtype bfloat16' if half else ''}"]


def _other_target_warnings(models: Models, target: "Target") -> list[str]:
    """Warn if the drafter names another target that it was made for; its shapes fit this one.

    A target that was trained together with its drafter lies below it, under a name of its own.
    """
    from executor.checkpoints import trained_for

    assert models.drafter is not None
    name = trained_for(models.drafter)
    folder = models.drafter.parent if models.drafter.is_file() else models.drafter
    together = models.target.resolve().parent == folder.resolve()
    if name in (None, target.name) or together:
        return []
    return [f"{models.drafter} was made for the target {name}, this one is {target.name}"]


def _random_models(models: Models) -> "tuple[Target, Drafter]":
    """Return target and drafter with random weights."""
    if models.quantize is not None or models.tensor_parallel or models.dtype == "saved":
        raise UsageError("--random-weights does not take --quantize, --tensor-parallel or --dtype saved")
    from executor.models import random_drafter, random_target
    from executor.target.load_hf_model import DTYPES

    target = random_target(models.target, dtype=DTYPES[models.dtype], device=models.device, packed=True)
    warn(slow_type_warnings(models.dtype, target))
    note(kernel_notes(target))
    return target, random_drafter(str(models.drafter), target, packed=True)


@dataclass(frozen=True, kw_only=True)
class Sampling(Settings):
    """Settings of verification."""

    rule: str | None = setting(
        None,
        choices=RULES,
        help="Verification rule; default greedy, or sample-and-match at a temperature above 0.",
    )
    temperature: float = setting(0.0, least=0, help="Sampling temperature; 0: greedy.")
    top_k: int | None = setting(None, least=1, help="Sample from the K most likely tokens.")
    top_p: float = setting(
        1.0,
        above=0,
        most=1,
        help="Sample from the smallest set of tokens whose probabilities sum to at least P.",
    )
    seed: int = defaults.seed()

    @property
    def name(self) -> str:
        """The rule's name."""
        return self.rule or ("greedy" if self.temperature == 0 else "sample-and-match")

    def check(self) -> None:
        """Raise UsageError where settings do not go together."""
        if self.temperature == 0 and (self.top_k is not None or self.top_p < 1):
            raise UsageError("--top-k and --top-p are for sampling: give --temperature")
        if (self.temperature == 0) != (self.name == "greedy"):
            raise UsageError("--rule greedy needs --temperature 0, and every other rule a temperature above 0")

    def rule_for(self, target: "Target") -> "Rule":
        """Return the rule, with a generator on the target's device."""
        from executor.verification.acceptance_rules import make_rule
        from executor.verification.temperature_top_k_top_p import Warp, seeded_generator

        if self.temperature == 0:
            return make_rule(self.name)
        warp = Warp(self.temperature, self.top_k, self.top_p)
        return make_rule(self.name, warp=warp, generator=seeded_generator(target.device, self.seed))


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
        help="Records with a `text` or `prompt`, or conversations (`messages`, `conversations`, `turns`), answered: "
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
    from executor.prompts.message_parts import Report
    from executor.prompts.prompt_files import encoded
    from executor.target.tokenizer import load_tokenizer, stop_tokens

    read = prompts.read()
    if target is None:
        tokenizer = engine_tokenizer(models.target)
        if tokenizer is None:
            raise UsageError(
                f"--target {models.target}: no such folder; prompts are encoded with the tokenizer of the target"
                f"{hub_hint(models.target)}"
            )
    else:
        tokenizer = load_tokenizer(models.target, vocabulary=target.vocabulary)
    if not tokenizer.chat_template and any(prompt.turns for prompt in read):
        if prompts.chat:
            raise UsageError(f"--chat: the tokenizer of {models.target} has no chat template: omit --chat")
        warn(["the tokenizer has no chat template: turns are joined by line ends"])
    report = Report(prompts.leave_out)
    pairs = encoded(tokenizer, read, report)  # without those that the template refuses, if these are to be left out
    warn(report.remarks)
    if not pairs:
        raise UsageError(f"{prompts.prompts}: no prompt is left: omit --leave-out, or name longer prompts")
    texts, tokens = [prompt for prompt, _ in pairs], [ids for _, ids in pairs]
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
