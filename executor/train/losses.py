"""The training loss of a drafter with its target, as one module, and its terms by name: rows in, a number out.

Anchor t of depth k (from 1) is supervised when x_{t+1} and x_{t+1+k} both are to be learnt. The target reads the true
text: p is the softmax of its logits at t + k, and its feature there is f_{t+k}. A recipe may train the target too
(Medusa-2): all of its weights, or LoRA adapters that are merged at the end.

A term is a mean over the supervised anchors of one depth, taken in float32. p is the target's distribution, q the
drafter's, as everywhere. If a drafter never proposes a token (it has no score, or -inf), p is restricted to the tokens
that it does propose, and an anchor at which the target's best token is not among those is left out of the terms that
need p (EAGLE-3's mask).
"""

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from executor.drafters.base.recipe import Recipe
from executor.recording.teacher_forced import rank_of
from executor.target.causal_model import Outputs, pick_rows
from executor.target.target_model import Target
from executor.train.feature_store import FeatureStore
from treeopt.errors import ExecutorError, UsageError


@dataclass(frozen=True, eq=False)
class Anchors:
    """The supervised anchors of one depth k, `rows` of them, from all texts of a batch.

    Attributes:
        scores: (rows, n), for x_{t+1+k}, over the n tokens of a vocabulary; -inf for tokens that are never proposed.
        labels: int64 (rows,), places of the tokens x_{t+1+k} among the n; -1 if they are not among them.
        teacher: (rows, n), the target's logits for x_{t+1+k}.
        features: (rows, hidden), the target's f_{t+k}.
        hidden: (rows, hidden), the drafter's prediction of f_{t+k}; None if it has none.
        earlier: (k - 1, rows, hidden), predictions of the same feature at depths 1, ..., k - 1.
        routes: (rows, groups), log-probabilities that the router gives to groups of tokens; None without a router.
        known: bool (rows,), the target's best token is among the n; None: they are the whole vocabulary.
        confidence: (rows,), the drafter's log-odds that its token is accepted; None without a confidence head.
    """

    scores: Tensor
    labels: Tensor
    teacher: Tensor
    features: Tensor
    hidden: Tensor | None = None
    earlier: Tensor | None = None
    routes: Tensor | None = None
    known: Tensor | None = None
    confidence: Tensor | None = None

    @cached_property
    def laws(self) -> tuple[Tensor, Tensor, Tensor]:
        """p (rows, n) on the proposed tokens, log q there (0 elsewhere), and bool (rows,), which rows count."""
        proposed = ~self.scores.isneginf()  # a score that is not a number shows in the loss
        if bool(proposed.all()):
            known = proposed[:, 0] if self.known is None else self.known
            return wide(self.teacher).softmax(-1), wide(self.scores).log_softmax(-1), known
        known = proposed.gather(-1, self.teacher.argmax(-1, keepdim=True))[:, 0]
        known = known if self.known is None else known & self.known
        p = wide(self.teacher).masked_fill(~proposed, -torch.inf).softmax(-1)
        return p, wide(self.scores).log_softmax(-1).masked_fill(~proposed, 0), known

    @property
    def overlap(self) -> Tensor:
        """Σ_x min(p(x), q(x)) = 1 − total variation (rows,): the odds that rejection sampling accepts a draw of q."""
        p, log_q, _ = self.laws
        return torch.minimum(p, log_q.exp()).sum(-1)


def wide(values: Tensor) -> Tensor:
    """Return the values in at least float32."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def mean_of(values: Tensor, counted: Tensor | None = None) -> Tensor:
    """Return the mean over the rows that count; 0 if there are none."""
    if counted is None:
        return values.sum() / max(1, values.numel())
    return values.where(counted, 0).sum() / counted.sum().clamp(min=1)


def hidden_of(at: Anchors, term: str) -> Tensor:
    """Return the drafter's predicted features; raise ExecutorError, naming the term, if it has none."""
    if at.hidden is None:
        raise ExecutorError(f"{term} needs the target's features, but this drafter predicts none")
    return at.hidden


def hard_ce(at: Anchors) -> Tensor:
    """Return −log q(x) of the true token x; anchors whose token is never proposed are left out."""
    log_q = wide(at.scores).log_softmax(-1).gather(-1, at.labels[:, None].clamp(min=0))[:, 0]
    return mean_of(-log_q, ~log_q.isneginf() & (at.labels >= 0))


def soft_ce(at: Anchors) -> Tensor:
    """Return −Σ_x p(x) log q(x)."""
    p, log_q, known = at.laws
    return mean_of(-(p * log_q).sum(-1), known)


def kl(at: Anchors) -> Tensor:
    """Return Σ_x p(x) (log p(x) − log q(x)): `soft_ce` less the target's own entropy."""
    p, log_q, known = at.laws
    return mean_of((torch.special.xlogy(p, p) - p * log_q).sum(-1), known)


def l1(at: Anchors) -> Tensor:
    """Return Σ_x |p(x) − q(x)|, twice the total variation. DSpark, arXiv 2607.05147."""
    return mean_of(2 * (1 - at.overlap), at.laws[2])


def top_k(at: Anchors, *, count: int = 10) -> Tensor:
    """Return −Σ p(x) log q(x) over the target's best `count` tokens, p not renormalised. HASS, arXiv 2408.15766."""
    p, log_q, known = at.laws
    best, index = p.topk(min(count, p.shape[-1]))
    return mean_of(-(best * log_q.gather(-1, index)).sum(-1), known)


def smooth_l1(at: Anchors) -> Tensor:
    """Return the mean over a feature's entries of x²/2 if |x| < 1, else |x| − 1/2, where x = hidden − f.

    Source: EAGLE, arXiv 2401.15077.
    """
    hidden = hidden_of(at, "smooth_l1")
    loss = nn.functional.smooth_l1_loss(wide(hidden), wide(at.features), reduction="none")
    return mean_of(loss.mean(-1))


CHUNK = 2**25  # similarities in memory at once


def csra(at: Anchors, *, temperature: float = 0.07) -> Tensor:
    """Return the cross-step representation alignment, a contrastive loss between depths. CORAL, eq. 2.

    Positives of an anchor's hidden state are the predictions of the same feature at earlier depths, and the feature
    itself; all others at this depth, at earlier ones and of the target are negatives. With several positives the mean
    of their losses is taken (Khosla et al. 2020, L_out). Only this depth gets a gradient.
    """
    hidden = nn.functional.normalize(wide(hidden_of(at, "csra")), dim=-1)
    same = wide(at.features)[None].detach()
    if at.earlier is not None:
        same = torch.cat([wide(at.earlier).detach(), same])
    same = nn.functional.normalize(same, dim=-1)
    others = same.flatten(0, 1)
    step = max(1, CHUNK // max(1, len(hidden) + len(others)))
    starts = range(0, len(hidden), step)
    pieces = [(hidden[start : start + step] / temperature, hidden, others, start) for start in starts]
    if len(pieces) > 1:  # similarities are then computed again rather than stored
        total = [checkpoint(_log_sum_of_others, *piece, use_reentrant=False) for piece in pieces]
    else:
        total = [_log_sum_of_others(*piece) for piece in pieces]
    positive = (hidden * same).sum(-1).mean(0) / temperature
    return mean_of(torch.cat(total) - positive) if total else positive.sum()


def _log_sum_of_others(rows: Tensor, hidden: Tensor, others: Tensor, start: int) -> Tensor:
    """Return log Σ exp(similarity) over `others` and all of `hidden` but the row itself, `hidden[start + row]`."""
    similar = rows @ hidden.T
    similar.diagonal(start).fill_(-torch.inf)
    return torch.cat([similar, rows @ others.T], 1).logsumexp(-1)


def router_ce(at: Anchors) -> Tensor:
    """Return −Σ_n p_n log r(n): r is the router's law over contiguous groups of tokens, p_n the target's mass in n.

    The last group may be shorter than the others.
    """
    if at.routes is None:
        raise ExecutorError("router_ce trains a router, and this drafter has none: set router_groups")
    groups = at.routes.shape[-1]
    width = -(-at.teacher.shape[-1] // groups)
    p = wide(at.teacher).softmax(-1)
    mass = nn.functional.pad(p, (0, width * groups - p.shape[-1])).unflatten(-1, (groups, width)).sum(-1)
    return mean_of(-(mass * wide(at.routes)).sum(-1))


def confidence(at: Anchors) -> Tensor:
    """Return the cross-entropy of the predicted acceptance against Σ_x min(p(x), q(x)), which gets no gradient.

    Source: DSpark, arXiv 2607.05147.
    """
    if at.confidence is None:
        raise ExecutorError("confidence trains a confidence head, and this drafter has none: recipe dspark makes one")
    due = at.overlap.detach().clamp(max=1)
    loss = nn.functional.binary_cross_entropy_with_logits(wide(at.confidence), due, reduction="none")
    return mean_of(loss, at.laws[2])


TERMS: dict[str, Callable[..., Tensor]] = {
    term.__name__: term for term in (hard_ce, soft_ce, kl, l1, smooth_l1, top_k, csra, router_ce, confidence)
}


@dataclass(frozen=True)
class Lora:
    """LoRA adapters on every linear layer, the LM head included unless it is tied. Defaults: Medusa's own script."""

    rank: int = 32
    alpha: int = 16
    dropout: float = 0.05


def check_whole(target: Target) -> None:
    """Raise UsageError for weights in float16, which cannot be trained: their gradients cannot be scaled."""
    if target.dtype == torch.float16:
        raise UsageError("weights in float16 cannot learn: give --dtype float32 or bfloat16, or --lora")


class Backbone:
    """A target that learns: all of its weights, or adapters beside them, which then stay fixed.

    Attributes:
        adapted: the model with its adapters; None without.
    """

    def __init__(self, target: Target, lora: Lora | None = None) -> None:
        """Make the weights trainable, or put adapters into the target's model.

        Raises:
            UsageError: see `check_whole`, or a model without linear layers for adapters.
        """
        self.target, self.adapted = target, cast(Any, None)
        if lora is None:
            check_whole(target)
            target.model.requires_grad_(True)
            return
        from peft import LoraConfig, get_peft_model

        model: Any = target.model
        tied = bool(getattr(model.config.get_text_config(), "tie_word_embeddings", False))
        names = [
            name
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and not (tied and module is model.get_output_embeddings())
        ]
        if not names:
            raise UsageError(f"{target.name}: has no linear layers that adapters could be put on")
        settings = LoraConfig(
            r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=names, task_type="CAUSAL_LM"
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft 0.21 asks transformers in an old way
            self.adapted = get_peft_model(model, settings)

    @torch.no_grad()
    def finish(self) -> None:
        """End the training: merge the adapters into the weights, and remove them from the target's model."""
        if self.adapted is not None:
            self.adapted.merge_and_unload()
        self.target.model.eval().requires_grad_(False)


TOPS = (1, 2, 4, 8)


@dataclass(frozen=True)
class DepthScore:
    """The measurement of one depth on held-out rows.

    Attributes:
        anchors: number of supervised anchors.
        loss: weighted sum of the recipe's terms, per anchor; without the weight of the depth.
        hits: anchors whose true token is among the best 1, 2, 4, 8 candidates.
    """

    anchors: int
    loss: float
    hits: tuple[int, ...]

    @property
    def accuracy(self) -> tuple[float, ...]:
        """Hits as shares of `anchors`; 0 without anchors."""
        return tuple(hits / max(1, self.anchors) for hits in self.hits)


class Lesson(nn.Module):
    """A drafter with its target and recipe; the module's trainable parameters are those that learn."""

    def __init__(
        self,
        drafter: nn.Module,
        target: Target,
        recipe: Recipe,
        backbone: Backbone | None = None,
        store: FeatureStore | None = None,
    ) -> None:
        """Choose the parameters that learn; a target that learns has a backbone, another may have a store.

        Raises:
            ExecutorError: the drafter cannot be trained by this recipe.
        """
        super().__init__()
        self._keys_to_ignore_on_save = None  # the Trainer looks here when it loads
        self.drafter: Any = drafter
        self.target, self.recipe, self.backbone, self.store = target, recipe, backbone, store
        self.done = 0.0  # share of all steps
        if backbone is not None:
            self.learning_target = target.model
        drafter.requires_grad_(recipe.trainable != "router")
        if recipe.trainable == "router":
            router = getattr(drafter, "router", None)
            if router is None:
                raise ExecutorError(f"recipe {recipe.name} trains a router, and the drafter has none")
            router.requires_grad_(True)
        if recipe.router_ce_weight and getattr(drafter, "router", None) is None:
            raise ExecutorError("router_ce_weight trains a router, and the drafter has none: set router_groups")
        if getattr(drafter, "taps", ()) and (recipe.smooth_l1_weight or recipe.csra_weight):
            raise ExecutorError("a drafter that reads several layers is not compared with the target's last features")

    @property
    def depths(self) -> int:
        """Levels supervised."""
        return self.recipe.depths

    def learnt(self) -> dict[str, nn.Parameter]:
        """Return the parameters that learn, by name; each once."""
        return {name: value for name, value in self.named_parameters() if value.requires_grad}

    def forward(self, input_ids: Tensor, loss_mask: Tensor) -> dict[str, Tensor]:
        """Return the loss of a batch; tokens int64, mask bool, both (batch, length)."""
        outputs = self._outputs(input_ids)
        ramp = self.recipe.ramped(self.done)
        loss = outputs.logits.new_zeros((), dtype=torch.float32)
        for k, at in enumerate(self._anchors(input_ids, loss_mask, outputs), 1):
            loss = loss + ramp * self.recipe.weight(k) * self._reduced(at)
        if self.recipe.lm_weight and self.backbone is not None:
            loss = loss + self.recipe.lm_weight * self._language(input_ids, loss_mask, outputs)
        return {"loss": loss}

    @torch.no_grad()
    def measure(self, input_ids: Tensor, loss_mask: Tensor) -> Tensor:
        """Return sums over a batch, float64 (depths, 2 + TOPS): anchors, loss, and hits among the best 1, 2, 4, 8."""
        sums = torch.zeros(self.depths, 2 + len(TOPS), dtype=torch.float64, device=input_ids.device)
        outputs = self._outputs(input_ids)
        for row, at in zip(sums, self._anchors(input_ids, loss_mask, outputs), strict=False):
            label = at.labels.clamp(min=0)
            proposed = (at.labels >= 0) & (at.scores.gather(-1, label[:, None])[:, 0] > -torch.inf)
            rank = rank_of(at.scores, label).where(proposed, at.scores.shape[-1])
            row[0], row[1] = len(rank), len(rank) * self._reduced(at)
            row[2:] = torch.stack([(rank < top).sum() for top in TOPS])
        return sums

    def _outputs(self, tokens: Tensor) -> Outputs:
        if self.store is not None:
            return self.store.outputs(tokens, self.drafter.taps)
        return self.target.features(tokens, self.drafter.taps, learning=self.backbone is not None)

    def _reduced(self, at: Anchors) -> Tensor:
        """Return the weighted sum of the terms at one depth."""
        with torch.autocast(at.scores.device.type, enabled=False):
            terms = [weight * TERMS[name](at, **options) for name, weight, options in self.recipe.terms()]
            return torch.stack(terms).sum()

    def _anchors(self, tokens: Tensor, mask: Tensor, outputs: Outputs) -> Iterator[Anchors]:
        """Yield the supervised anchors of depth 1, 2, ..., as far as the rows are long enough."""
        logits, features = outputs.logits.detach(), outputs.features
        read = self._noisy(features) if self.training else features
        options: dict[str, Any] = {"detached": True} if self.recipe.detached else {}
        rows, kept = self._drawn(tokens), list[int]()
        if rows is not None:
            kept = [math.ceil(self.recipe.share(k) * rows.shape[1]) for k in range(1, self.depths + 1)]
            options |= {"rows": rows} | ({"kept": kept} if self.recipe.depth_share < 1 else {})
        if getattr(self.drafter, "router", None) is not None:  # in training, scores cover the whole vocabulary
            self.drafter.routed = not self.training
        depths = min(self.depths, tokens.shape[1] - 2)
        forced = self.drafter.teacher_forced(self.target, tokens, read, depths, **options)
        earlier: list[Tensor] = []
        known: Tensor | None = None
        for k, level in enumerate(forced, 1):
            if k == 1 and level.ids is not None:
                place = torch.full_like(logits[0, 0], -1, dtype=torch.long)
                place[level.ids] = torch.arange(len(level.ids), device=place.device)
                tokens, known = place[tokens], place[logits.argmax(-1)] >= 0
                logits = logits.index_select(-1, level.ids)
            anchors = tokens.shape[1] - 1 - k
            learnt, some = mask[:, 1 : 1 + anchors] & mask[:, 1 + k :], None if rows is None else rows[:, : kept[k - 1]]
            supervised = _Supervised(pick_rows(learnt, some), some)
            same = [hidden[:, k - j : k - j + anchors] for j, hidden in enumerate(earlier, 1)]
            routed = self.recipe.router_ce_weight and level.hidden is not None
            yield Anchors(
                scores=supervised(level.own[:, :anchors], picked=rows is not None),
                labels=supervised(tokens[:, 1 + k :]),
                teacher=supervised(logits[:, k:-1]),
                features=supervised(features[:, k:-1]).detach(),
                hidden=None if level.hidden is None else supervised(level.hidden[:, :anchors], picked=rows is not None),
                earlier=torch.stack([supervised(hidden) for hidden in same]) if same else None,
                routes=self.drafter.route(supervised(level.hidden[:, :anchors])) if routed else None,
                known=None if known is None else supervised(known[:, k:-1]),
                confidence=None
                if level.confidence is None
                else supervised(level.confidence[:, :anchors], picked=rows is not None),
            )
            if level.hidden is not None and self.recipe.csra_weight:
                earlier.append(level.hidden.detach())

    def _drawn(self, tokens: Tensor) -> Tensor | None:
        """Return the anchors that a step of training learns from, int64 (batch, n), in random order; None for all."""
        batch, last = tokens.shape[0], tokens.shape[1] - 1 - min(self.depths, tokens.shape[1] - 2)
        if not self.training or (not 0 < self.recipe.anchors < last and self.recipe.depth_share == 1):
            return None
        return torch.rand(batch, last, device=tokens.device).argsort(-1)[:, : self.recipe.anchors or last]

    def _noisy(self, features: Tensor) -> Tensor:
        """Return the features with the recipe's noise. Sources: EAGLE's and NEFTune's (arXiv 2310.05914) code."""
        length, width = features.shape[-2:]
        scale = self.recipe.noise_scale
        if self.recipe.noise == "none" or scale == 0:
            return features
        reach = scale / 2 * 512 / length if self.recipe.noise == "uniform" else scale / (length * width) ** 0.5
        return features + reach * (2 * torch.rand_like(features) - 1)

    def _language(self, tokens: Tensor, mask: Tensor, outputs: Outputs) -> Tensor:
        """Return the target's own loss: cross-entropy of the text, or divergence from the untrained target."""
        assert self.backbone is not None
        supervised, logits = _Supervised(mask[:, 1:]), outputs.logits
        teacher = logits.detach()
        if self.recipe.lm_kl:
            with torch.no_grad(), self.backbone.adapted.disable_adapter():
                teacher = self.target.features(tokens).logits
        at = Anchors(
            scores=supervised(logits[:, :-1]),
            labels=supervised(tokens[:, 1:]),
            teacher=supervised(teacher[:, :-1]),
            features=supervised(outputs.features[:, :-1]),
        )
        with torch.autocast(logits.device.type, enabled=False):
            return kl(at) if self.recipe.lm_kl else hard_ce(at)


class _Supervised:
    """Picks the supervised anchors out of (batch, length, ...); nothing is copied if all are supervised."""

    def __init__(self, mask: Tensor, anchors: Tensor | None = None) -> None:
        """Take the mask, bool (batch, length), or with anchors, int64 (batch, n), that of the anchors."""
        self.rows = None if bool(mask.all()) else mask.flatten().nonzero()[:, 0]
        self.anchors = anchors

    def __call__(self, values: Tensor, *, picked: bool = False) -> Tensor:
        """Return the picked values, (rows, ...); `picked`: there is one for each anchor already."""
        values = (values if picked else pick_rows(values, self.anchors)).flatten(0, 1)
        return values if self.rows is None else values.index_select(0, self.rows)
