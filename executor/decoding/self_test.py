"""The self test of `treeopt doctor`: a small random model must write the same text with and without drafts.

It takes seconds and needs no files. The drafter is the target with noise on its weights, so that some drafts are
accepted and some are not.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from executor.decoding.decoder import Decoder
from executor.device import free_bytes
from executor.drafters.language_model.drafter import LanguageModel
from executor.models import device_name, random_target
from executor.target.fused_verification import device_refusal, fuse
from executor.target.load_hf_model import DTYPES
from executor.target.packed_linears import multiplies_bf16
from executor.target.target_model import Target
from treeopt.tree import Tree

# Units in the last place, at the size of the largest logit, that the chosen token may lie below the best one. In half
# precision the rounding of the logits themselves; in fp32 and fp64 that of the sums behind them.
MARGIN = {torch.bfloat16: 4, torch.float16: 4, torch.float32: 64, torch.float64: 64}


@dataclass(frozen=True)
class Audit:
    """The comparison of a text with the argmax of a plain forward.

    Attributes:
        tokens: tokens compared.
        differing: tokens that are not the argmax (the first of equals).
        unexcused: tokens whose logit lies below the best by more than the margin.
        worst: largest distance below the best, in units in the last place.
    """

    tokens: int
    differing: int
    unexcused: int
    worst: float

    @classmethod
    def total(cls, audits: Iterable["Audit"]) -> "Audit":
        """Add up the counts of several texts.

        >>> Audit.total([Audit(10, 1, 0, 2.0), Audit(5, 0, 0, 0.0)])
        Audit(tokens=15, differing=1, unexcused=0, worst=2.0)
        """
        texts = list(audits)
        return cls(
            sum(text.tokens for text in texts),
            sum(text.differing for text in texts),
            sum(text.unexcused for text in texts),
            max((text.worst for text in texts), default=0.0),
        )


def audit_text(target: Target, prompt: Sequence[int], tokens: Sequence[int]) -> Audit:
    """Compare `tokens`, written after `prompt`, with the argmax at each position, given the text before it."""
    text = torch.tensor([[*prompt, *tokens]], device=target.device)
    logits = target.features(text[:, :-1]).logits[0, len(prompt) - 1 :]
    written = text[0, len(prompt) :]
    chosen = logits.gather(1, written[:, None])[:, 0].double()
    scale = logits.abs().amax(1).double()
    unit = torch.exp2(torch.log2(scale.clamp(min=torch.finfo(logits.dtype).tiny)).floor())
    distance = (logits.amax(1).double() - chosen) / (unit * torch.finfo(logits.dtype).eps)
    return Audit(
        tokens=len(tokens),
        differing=int((logits.argmax(1) != written).sum()),
        unexcused=int((distance > MARGIN[target.dtype]).sum()),
        worst=float(distance.max()) if len(tokens) else 0.0,
    )


NOISE = 0.05  # on the drafter's weights, in their standard deviations
SPREAD = 0.35  # standard deviation of the weights: logits lie far enough apart that rounding does not decide
LEAST = 1.5  # tokens per step: if fewer drafts are accepted, the trial shows nothing
PROMPTS = ([5, 17, 3, 99, 41, 7], [8], [200, 11, 12, 13, 14, 15, 16, 17, 18], [64, 64, 2])
NEW_TOKENS = 24
TREE = Tree.from_paths([(0, 0, 0), (0, 1), (1, 0), (2,)])


@dataclass(frozen=True)
class Trial:
    """A trial and its result.

    Attributes:
        name: the statement that must hold.
        holds: True if it does.
        `detail`: the figures, or the error; the name is a key of `doctor --json`.
    """

    name: str
    holds: bool
    detail: str


def facts(device: str) -> dict[str, Any]:
    """Return the device's name, free memory and arithmetic; JSON values.

    On CUDA also its version and capability, and why fused kernels are not used there (None: models decide).
    """
    tested = torch.device(device)
    values = {
        "name": device_name(tested),
        "free_bytes": free_bytes(tested),
        "bf16_products": multiplies_bf16(tested),
    }
    if tested.type != "cuda":
        return values
    capability = list(torch.cuda.get_device_capability(tested))
    return values | {"cuda": torch.version.cuda, "capability": capability, "no_fused_kernels": device_refusal(tested)}


def trials(device: str) -> Iterator[Trial]:
    """Run the trials: greedy texts with drafts, in fp32 against Hugging Face's `generate`, in half precision audited.

    On CUDA graphs are tried with fused kernels, where it has them. An error is reported as a trial that does not hold.
    """
    cuda = torch.device(device).type == "cuda"
    yield _trial("fp32: the loop writes what generate does", partial(_equal, device))
    if cuda:
        yield _trial("fp32: CUDA graphs write what generate does", partial(_equal, device, graphs=True))
    for dtype in ("bfloat16", "float16") if cuda else ("bfloat16",):
        yield _trial(f"{dtype}: tokens are the argmax but for rounding", partial(_audit, device, dtype=dtype))


def _trial(name: str, run: Callable[[], tuple[bool, str]]) -> Trial:
    try:
        return Trial(name, *run())
    except Exception as error:  # noqa: BLE001 - a driver's, a kernel's, a compiler's: reported, and the others still run
        return Trial(name, holds=False, detail=" ".join(f"{type(error).__name__}: {error}".split())[:500])


def _equal(device: str, *, graphs: bool = False) -> tuple[bool, str]:
    target, texts, tau = _decode(device, "float32", graphs=graphs)
    differing = sum(text != _generate(target, prompt) for text, prompt in zip(texts, PROMPTS, strict=True))
    forward = "fused kernels" if target.fused is not None else f"the model's own forward ({target.fused_reason})"
    figures = f"{differing} of {len(texts)} texts differ; tau {tau:.2f}"
    return differing == 0 and tau > LEAST, f"{forward}: {figures}" if graphs else figures


def _audit(device: str, *, dtype: str) -> tuple[bool, str]:
    target, texts, tau = _decode(device, dtype)
    audit = Audit.total(audit_text(target, prompt, text) for prompt, text in zip(PROMPTS, texts, strict=True))
    figures = f"{audit.unexcused} of {audit.tokens} tokens lie beyond the margin; tau {tau:.2f}"
    return audit.unexcused == 0 and tau > LEAST, figures


def _decode(device: str, dtype: str, *, graphs: bool = False) -> tuple[Target, list[list[int]], float]:
    """Decode a ragged batch whose rows are refilled; return the target, its texts and the tokens per step."""
    target = random_target("toy", dtype=DTYPES[dtype], device=device)
    noisy = copy.deepcopy(target.model)
    rng = torch.Generator().manual_seed(0)
    for weight, noisy_weight in zip(target.model.parameters(), noisy.parameters(), strict=True):
        values = SPREAD * torch.randn(weight.shape, generator=rng) if weight.dim() > 1 else torch.ones(weight.shape)
        weight.data.copy_(values)
        noisy_weight.data.copy_(values + NOISE * SPREAD * torch.randn(weight.shape, generator=rng))
    if graphs:
        fuse(target)
    decoder = Decoder(target, LanguageModel(Target(noisy)), tree=TREE, batch=2, graphs=graphs)
    generations = decoder.generate(PROMPTS, new_tokens=NEW_TOKENS)
    tokens, steps = (sum(len(getattr(g, name)) for g in generations) for name in ("tokens", "accepted"))
    return target, [list(generation.tokens) for generation in generations], tokens / steps


def _generate(target: Target, prompt: list[int]) -> list[int]:
    tokens = torch.tensor([prompt], device=target.device)
    mask = torch.ones_like(tokens)
    model: Any = target.model
    output = model.generate(tokens, attention_mask=mask, do_sample=False, max_new_tokens=NEW_TOKENS)
    text: list[int] = output[0, len(prompt) :].tolist()
    return text
