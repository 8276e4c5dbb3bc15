"""Trainable drafters for a small target: with random weights, or fitted to what the target writes."""

from collections.abc import Callable, Sequence
from functools import cache, partial

import pytest
import torch
from torch import Tensor, nn

from executor.decoding.batch_rows import Rows
from executor.decoding.decoder import Decoder
from executor.drafters.base.decoder_layer import layer_config
from executor.drafters.base.drafter import Admitted, Drafter
from executor.drafters.dflash.drafter import DFlash
from executor.drafters.eagle.drafter import Eagle
from executor.drafters.eagle3.drafter import Eagle3, usual_taps
from executor.drafters.hydra.drafter import Hydra
from executor.drafters.language_model.drafter import LanguageModel
from executor.drafters.medusa.drafter import MedusaHeads
from executor.drafters.mtp.drafter import Mtp
from executor.drafters.mtp.several import SeveralMtp
from executor.drafters.ngram.drafter import NGram
from executor.drafters.p_eagle.drafter import PEagle
from executor.drafters.pard.drafter import Pard
from executor.drafters.prompt_lookup.drafter import PromptLookup
from executor.target.target_model import Target
from executor.verification.tree_tensors import Draft
from tests.helpers.models import HIDDEN, VOCABULARY, noisy, random_heads, random_prompts, small_model, small_target

Make = Callable[[Target], nn.Module]


def admitted(tokens: Tensor, features: Tensor, lengths: Sequence[int]) -> Admitted:
    """Requests in rows 0, 1, ...: the first tokens of each text, with the target's features before the last."""
    texts = [text[:length] for text, length in zip(tokens.tolist(), lengths, strict=True)]
    return Admitted.of(range(len(texts)), texts, features[:, : max(lengths) - 1])


def paths_of(draft: Draft, row: int) -> dict[int, tuple[int, ...]]:
    """The tokens of the way to each drafted node of a row, the root's left out."""
    topology = draft.topology.expand(len(draft.tokens))
    nodes = [n for n in range(1, topology.count) if topology.present is None or bool(topology.present[row, n])]
    lines = {n: topology.path[row, n, 1 : int(topology.depth[row, n]) + 1] for n in nodes}
    return {n: tuple(draft.tokens[row, line].tolist()) for n, line in lines.items()}


def compare_drafts(
    monkeypatch: pytest.MonkeyPatch,
    decoder: Decoder,
    prompts: list[list[int]],
    new_tokens: int,
    agree: Callable[[object, list[int], dict[int, tuple[int, ...]]], None],
) -> int:
    """Decode and let `agree` look at the growth, committed text and paths of every drafted tree; the nodes seen."""
    texts, seen = {}, 0
    admit, commit = Rows.admit, Rows.commit

    def admitting(self: Rows, rows, prompts, requests) -> None:
        texts.update({row: list(prompt) for row, prompt in zip(rows, prompts, strict=True)})
        admit(self, rows, prompts, requests)

    def committing(self: Rows, draft: Draft, *outcome: object) -> None:
        nonlocal seen
        for row in [row for row in texts if not self.idle[row]]:
            assert int(draft.tokens[row, 0]) == texts[row][-1]
            paths = paths_of(draft, row)
            agree(self.growth, texts[row], paths)
            seen += len(paths)
        commit(self, draft, *outcome)
        for row, text in texts.items():
            text.extend(self.committed.tokens[row, : int(self.committed.counts[row])].tolist())

    monkeypatch.setattr(Rows, "admit", admitting)
    monkeypatch.setattr(Rows, "commit", committing)
    decoder.generate(prompts, new_tokens=new_tokens)
    return seen


def _eagle3(target: Target, *, make: type[Eagle3] = Eagle3, ids: Tensor | None = None, **options: object) -> Eagle3:
    config = layer_config(target.model.config)
    taps = usual_taps(target.model.config.num_hidden_layers)
    return make(config, taps=taps, target_hidden=target.hidden, vocabulary=VOCABULARY, draft_ids=ids, **options)


def _layer(target: Target, **changes: object):
    return layer_config(target.model.config, **changes)


def _dflash(target: Target, **options: object) -> DFlash:
    layers = [_layer(target)] * 2
    return DFlash(layers, taps=(1, 2), vocabulary=VOCABULARY, mask=3, slots=6, **options)


MAKE: dict[str, Make] = {
    "medusa": lambda t: MedusaHeads(5, t.hidden, layers=2, vocabulary=VOCABULARY),
    "hydra": lambda t: Hydra(t.hidden, VOCABULARY, heads=5),
    "hydra-ungrounded": lambda t: Hydra(t.hidden, VOCABULARY, heads=5, grounded=False),
    "hydra++": lambda t: Hydra(t.hidden, VOCABULARY, heads=5, layers=4, prefix=_layer(t), dropout=0.2),
    "eagle": lambda t: Eagle(_layer(t)),
    "eagle-qkv-bias": lambda t: Eagle(_layer(t, attention_bias=True), bias=False),
    "coral-router": lambda t: Eagle(_layer(t), router_groups=8, active_groups=3),
    "eagle3": lambda t: _eagle3(t, ids=torch.arange(VOCABULARY)[torch.arange(VOCABULARY) % 6 != 1]),
    "eagle3-variants": lambda t: _eagle3(
        t, norm_before_residual=True, feeds_normed=True, own_embeddings=True, norms="fc"
    ),
    "eagle3-input-norm": lambda t: _eagle3(t, norms="input"),
    "eagle3-windows": lambda t: _eagle3(t, deeper=[_layer(t)], windows=(4, None), head_norms=True),
    "eagle3-last-feature": lambda t: Eagle3(
        _layer(t), taps=(), target_hidden=t.hidden, vocabulary=VOCABULARY, windows=(5,), fused=False
    ),
    "p-eagle": lambda t: _eagle3(t, make=PEagle, deeper=[_layer(t)], own_embeddings=True, mask=3, slots=5),
    "dflash": lambda t: _dflash(t),
    "dflash-variants": lambda t: _dflash(
        t,
        windows=(9, None),
        causal=(True, False),
        draft_ids=torch.arange(VOCABULARY)[torch.arange(VOCABULARY) % 6 != 1],
        own_embeddings=True,
    ),
    "dspark": lambda t: _dflash(t, from_anchor=True, markov=8, confidence=HIDDEN + 8),
    "pard": lambda t: Pard(small_target(seed=1), mask=3).requires_grad_(),
    "mtp": Mtp,
    "mtp-qwen": lambda t: Mtp(t, "qwen"),
    "mtp-several": lambda t: SeveralMtp(t, "deepseek", 4),
}


def random_drafter(name: str, target: Target, *, seed: int = 0) -> nn.Module:
    """One of `MAKE` with weights large enough that a fault shows, in the target's type."""
    torch.manual_seed(seed)
    drafter = MAKE[name](target)
    for parameter in drafter.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.25)
        else:
            nn.init.normal_(parameter, mean=1.0 if parameter.dim() == 0 else 0.5, std=0.2)
    return drafter.to(target.dtype).eval().requires_grad_(False)


@cache
def fitted_drafter(name: str, prompts: tuple[tuple[int, ...], ...]) -> tuple[Target, nn.Module]:
    """A small target and a drafter that is right rather often where the target continues `prompts` greedily."""
    target = small_target()
    torch.manual_seed(1)
    drafter = MAKE[name](target).train()
    texts = [
        torch.tensor([[*prompt, *generation.tokens]])
        for prompt, generation in zip(prompts, Decoder(target, batch=4).generate(prompts, new_tokens=40), strict=True)
    ]
    fit(drafter, target, texts, steps=60)
    return target, drafter.eval().requires_grad_(False)


def fit(drafter: nn.Module, target: Target, texts: Sequence[Tensor], *, steps: int) -> None:
    """Cross-entropy at three depths, Adam."""
    optimiser = torch.optim.Adam(drafter.parameters(), lr=1e-2)
    features = [target.features(text, drafter.taps).features for text in texts]
    for step in range(steps):
        text, seen = texts[step % len(texts)], features[step % len(texts)]
        loss = torch.zeros(())
        for k, forced in enumerate(drafter.teacher_forced(target, text, seen, 3), 1):
            scores = forced.scores[:, : -1 - k].flatten(0, 1).clamp(min=-30)
            loss = loss + nn.functional.cross_entropy(scores, text[:, 1 + k :].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


PROMPTS = tuple(map(tuple, random_prompts((9, 4, 17, 2, 6), seed=8)))


def _untrained(make: Callable[[], Drafter]) -> tuple[Target, Drafter]:
    return small_target(), make()


# A drafter of every kind with a target it is right for at times; what holds for all of them is tested with each.
DRAFTERS: dict[str, Callable[[], tuple[Target, Drafter]]] = {
    "medusa": lambda: _untrained(random_heads),
    "language-model": lambda: _untrained(lambda: LanguageModel(Target(noisy(small_model(), 0.3), name="drafter"))),
    "ngram": lambda: _untrained(lambda: NGram.count(random_prompts([300] * 4, seed=5), order=3, vocabulary=VOCABULARY)),
    "prompt-lookup": lambda: _untrained(PromptLookup),
    **{
        name: partial(fitted_drafter, name, PROMPTS)
        for name in ("hydra++", "eagle", "coral-router", "eagle3", "mtp", "dflash", "pard")
    },
}
