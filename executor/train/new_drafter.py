"""The drafter that training begins with: a new one, untrained and of the target's shape, or an existing one."""

import copy
from typing import Any

import torch
from torch import nn
from transformers import set_seed

from executor.drafters.base.drafter import Drafter
from executor.drafters.base.recipe import Frequent, Recipe, check_fields
from executor.target.target_model import Target
from executor.train.text_files import Rows
from executor.train.token_rows import frequent_tokens
from simulate.model_sizes.drafter_kinds import DRAFTERS, Training
from treeopt.errors import ExecutorError, UsageError
from treeopt.registry import load


def fresh_drafter(recipe: Recipe, target: Target, *, frequent: Frequent | None = None) -> Any:
    """Return an untrained drafter, in float32 (float64 for a float64 target) on the target's device.

    Args:
        recipe: its kind and parts.
        target: what it drafts for.
        frequent: see `Training.untrained`; None: the first tokens.
    """
    return _ready(load(_training(recipe).untrained)(recipe, target, frequent or range), target)


def begun(recipe: Recipe, target: Target, start: Drafter | None, *, rows: Rows, seed: int) -> Any:
    """Return the drafter that training begins with: `start` if given, else an untrained one, drawn with `seed`.

    An EAGLE-3 drafter proposes the recipe's number of tokens, those most often learnt in `rows`.

    Raises:
        UsageError: a router with more groups than tokens; see also `continued`.
        ExecutorError: see `continued`.
    """
    if recipe.router_groups > target.vocabulary:
        raise UsageError(f"router_groups must be at most {target.vocabulary} (the vocabulary): {recipe.router_groups}")
    set_seed(seed)
    if start is not None:
        return continued(recipe, start, target)
    return fresh_drafter(recipe, target, frequent=lambda count: frequent_tokens(rows, count, target.vocabulary))


def continued(recipe: Recipe, drafter: Drafter, target: Target) -> Any:
    """Return a copy of an existing drafter, ready for the recipe; its shape stays. See `Training.resumed`.

    Raises:
        ExecutorError: the drafter is of another kind, or less deep than the recipe.
        UsageError: the recipe contradicts its parts.
    """
    if drafter.kind != recipe.kind:
        raise ExecutorError(f"recipe {recipe.name} trains {recipe.kind}, this drafter is {drafter.kind}")
    if drafter.max_depth < recipe.depths:
        raise ExecutorError(f"recipe {recipe.name} has {recipe.depths} depths, the drafter drafts {drafter.max_depth}")
    resumed, ready = _training(recipe).resumed, copy.deepcopy(drafter)
    ready = load(resumed)(recipe, ready) if resumed else ready
    assert isinstance(ready, nn.Module)
    return _ready(ready, target)


def _training(recipe: Recipe) -> Training:
    check_fields(recipe)
    training = DRAFTERS[recipe.kind].training
    if training is None:
        raise UsageError(f"recipe {recipe.name}: {recipe.kind} drafters are not trained")
    return training


def _ready(drafter: nn.Module, target: Target) -> nn.Module:
    """Return the drafter in the type that weights are trained in: at least float32."""
    return drafter.to(target.device, torch.promote_types(target.dtype, torch.float32))
