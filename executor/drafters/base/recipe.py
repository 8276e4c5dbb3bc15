"""Training recipes: what one states, and how it is changed by name; the recipes stand beside their drafters."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from simulate.drafter_kinds import DRAFTERS
from treeopt.errors import UsageError

Frequent = Callable[[int], Sequence[int]]  # the so many tokens that are most often learnt, in ascending order
LEAST_SHARE = 0.2  # PARD (arXiv 2504.18583), P-EAGLE (arXiv 2602.01469)
RAMPS = ("constant", "linear", "sine", "sine_r")
TERMS = ("hard_ce", "soft_ce", "kl", "l1", "smooth_l1", "top_k", "csra", "router_ce", "confidence")


@dataclass(frozen=True)
class Recipe:
    """The drafter, the loss and the optimiser of a training; `replaced` changes single fields.

    Attributes:
        name: of the recipe.
        kind: of the drafter.
        depths: levels supervised; for Medusa and Hydra also the number of heads.
        hard_ce_weight: weight of the term `hard_ce` in `losses`; the other weights correspondingly.
        top_k: tokens that the term `top_k` covers.
        csra_temperature: of the term `csra`.
        coefficient: weight of all depths; depth k (from 1) has coefficient * decay ** k.
        ramp: growth of the coefficient with the share s of steps done: constant; linear, s; sine, sin(πs/2); sine_r,
            the same, reached at s = ramp_share and constant from there.
        lm_weight: weight of the target's own loss, if the target is trained too.
        lm_kl: that loss is the divergence from the untrained target, instead of the cross-entropy of the text.
        detached: no gradient from a depth into the one above.
        noise: on the features that the drafter reads: none; uniform, ± scale / 2 · 512 / length; neftune,
            ± scale / √(length · width).
        learning_rate: peak.
        heads_factor: factor on the drafter's learning rate, if the target is trained too.
        warmup: steps; below 1 the share of all steps.
        schedule: after the warm-up: constant, linear (to 0) or cosine (to `floor` times the peak).
        clip: largest norm, or largest entry, of the gradient; 0 for no limit.
        trainable: drafter, router (the rest of the drafter is fixed) or backbone (the drafter and the target).
        layers: per Medusa or Hydra head, of DFlash and DSpark.
        own_output: Medusa heads have output layers of their own.
        prefix: Hydra++'s attention layer before the heads.
        grounded: Hydra heads see the drafted tokens.
        router_groups: groups of an EAGLE drafter's router, of which `active_groups` are scored; 0 for no router.
        draft_vocabulary: tokens that EAGLE-3 proposes, those most frequent in the supervised text; 0 for all.
        anchors: most positions of a row that a step learns from, drawn at random; 0 for all.
        markov_rank: of DSpark's head; 0 without.
        depth_share: share of a depth's anchors that a step also learns from at the next depth, at least 0.2 of all.
    """

    name: str
    kind: str
    depths: int
    hard_ce_weight: float = 0.0
    soft_ce_weight: float = 0.0
    kl_weight: float = 0.0
    l1_weight: float = 0.0
    smooth_l1_weight: float = 0.0
    top_k_weight: float = 0.0
    csra_weight: float = 0.0
    router_ce_weight: float = 0.0
    confidence_weight: float = 0.0
    top_k: int = 10
    csra_temperature: float = 0.07
    coefficient: float = 1.0
    decay: float = 1.0
    ramp: str = "constant"
    ramp_share: float = 1.0
    lm_weight: float = 0.0
    lm_kl: bool = False
    detached: bool = False
    noise: str = "none"
    noise_scale: float = 0.0
    learning_rate: float = 1e-3
    heads_factor: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    warmup: float = 0.1
    schedule: str = "cosine"
    floor: float = 0.0
    clip: float = 1.0
    clip_by: str = "norm"
    trainable: str = "drafter"
    layers: int = 1
    own_output: bool = False
    prefix: bool = False
    grounded: bool = True
    dropout: float = 0.0
    router_groups: int = 0
    active_groups: int = 2
    draft_vocabulary: int = 0
    anchors: int = 0
    markov_rank: int = 0
    depth_share: float = 1.0

    def __post_init__(self) -> None:
        """Raise UsageError, naming the field, if a value has no meaning or no effect."""
        choices = {
            "ramp": RAMPS,
            "noise": ("none", "uniform", "neftune"),
            "schedule": ("constant", "linear", "cosine"),
            "clip_by": ("norm", "value"),
            "trainable": ("drafter", "router", "backbone"),
        }
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in choices and value not in choices[field.name]:
                raise UsageError(f"{field.name} must be one of {', '.join(choices[field.name])}, got {value}")
            if isinstance(value, int | float) and not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{field.name} must be a number of at least 0, got {value}")
        for name in ("depths", "top_k", "layers", "active_groups"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("csra_temperature", "learning_rate", "ramp_share"):
            if getattr(self, name) == 0:
                raise UsageError(f"{name} must be above 0, got 0")
        for name in ("beta1", "beta2", "dropout"):
            if getattr(self, name) >= 1:
                raise UsageError(f"{name} must be below 1, got {getattr(self, name)}")
        if self.router_groups and not self.router_ce_weight:
            raise UsageError("router_groups adds a router, which only router_ce_weight above 0 trains")
        if not any(self.terms()):
            raise UsageError(f"one of {', '.join(f'{term}_weight' for term in TERMS)} must be above 0, all are 0")

    def terms(self) -> Iterator[tuple[str, float, dict[str, Any]]]:
        """Yield name, weight and options of each term of the loss whose weight is not 0."""
        options: dict[str, dict[str, Any]] = {
            "top_k": {"count": self.top_k},
            "csra": {"temperature": self.csra_temperature},
        }
        for name in TERMS:
            weight = getattr(self, f"{name}_weight")
            if weight:
                yield name, weight, options.get(name, {})

    def weight(self, depth: int) -> float:
        """Return the weight of a depth (from 1) in the loss after the ramp."""
        return self.coefficient * self.decay**depth

    def share(self, depth: int) -> float:
        """Return the share of anchors that are learnt from at a depth (from 1)."""
        return max(LEAST_SHARE, self.depth_share ** (depth - 1))

    def ramped(self, done: float) -> float:
        """Return the factor on the weights when the share `done` of all steps is done.

        >>> recipes()["medusa2"].ramped(0.25)
        1.0
        """
        if self.ramp == "linear":
            return done
        if self.ramp == "sine":
            return math.sin(math.pi / 2 * done)
        if self.ramp == "sine_r":
            return math.sin(math.pi / 2 * min(1.0, done / self.ramp_share))
        return 1.0

    def reach(self, steps: int) -> float:
        """Return about how far AdamW moves a weight at most in `steps` steps: the sum of their rates.

        A step is seldom longer than its rate (Kingma & Ba 2015, arXiv 1412.6980, §2.1).

        >>> round(recipes()["eagle"].reach(1000), 3)
        0.015
        """
        mean = {"constant": 1.0, "linear": 0.5, "cosine": (1 + self.floor) / 2}[self.schedule]
        return self.learning_rate * mean * steps


def replaced(recipe: Recipe, changes: Sequence[str]) -> Recipe:
    """Return the recipe with fields changed by words such as `depths=4`; of several for one field the last counts.

    >>> replaced(recipes()["hass"], ["depths=4", "top_k=5"]).top_k
    5

    Raises:
        UsageError: an unknown field, a value that it cannot have, or a field that this kind of drafter lacks.
    """
    known: dict[str, Any] = {field.name: field.type for field in fields(recipe)}
    del known["name"], known["kind"]
    values: dict[str, Any] = {}
    for change in changes:
        name, equals, word = change.partition("=")
        if not equals or name not in known:
            raise UsageError(f"{change!r} must be NAME=VALUE, NAME one of {', '.join(known)}")
        values[name] = _value(name, word, known[name])
    changed = replace(recipe, **values)
    check_fields(changed)
    return changed


def recipes() -> dict[str, Recipe]:
    """Return the recipes of all kinds of drafters by name."""
    trained = (kind.training for kind in DRAFTERS.values() if kind.training is not None)
    return {recipe.name: recipe for training in trained for recipe in training.recipes if isinstance(recipe, Recipe)}


def check_fields(recipe: Recipe) -> None:
    """Raise UsageError if a field is set which drafters of this kind lack; names the kinds that have it."""
    for field in fields(recipe):
        kinds = [kind.name for kind in DRAFTERS.values() if kind.training and field.name in kind.training.fields]
        if kinds and recipe.kind not in kinds and getattr(recipe, field.name) != field.default:
            raise UsageError(
                f"{field.name} applies only to {' and '.join(kinds)} drafters, recipe {recipe.name} trains "
                f"{recipe.kind}"
            )


def _value(name: str, word: str, kind: type) -> Any:
    if kind is bool:
        if word not in ("true", "false"):
            raise UsageError(f"{name} must be true or false, got {word}")
        return word == "true"
    try:
        return kind(word)
    except ValueError as error:
        expected = "an integer" if kind is int else "a number"
        raise UsageError(f"{name} must be {expected}, got {word}") from error
