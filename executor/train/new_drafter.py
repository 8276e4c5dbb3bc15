"""The drafter that training begins with: a new one, untrained and of the target's shape, or an existing one."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import set_seed

from executor.drafters.base.decoder_layer import layer_config
from executor.drafters.base.drafter import Drafter
from executor.drafters.eagle.drafter import Eagle
from executor.drafters.eagle3.drafter import Eagle3, usual_taps
from executor.drafters.hydra.drafter import Hydra
from executor.drafters.medusa.drafter import MedusaHeads
from executor.target.target_model import Target
from executor.train.recipes import Recipe
from executor.train.text_files import Rows
from executor.train.token_rows import frequent_tokens
from treeopt.errors import ExecutorError, UsageError


def fresh_drafter(recipe: Recipe, target: Target, *, draft_ids: Tensor | None = None) -> Any:
    """Return an untrained drafter, in float32 (float64 for a float64 target) on the target's device.

    Args:
        recipe: its kind and parts.
        target: what it drafts for.
        draft_ids: int64, ascending, the tokens that EAGLE-3 proposes; None for all.
    """
    drafter: nn.Module
    layer = layer_config(target.model.config)
    if recipe.kind == "medusa":
        vocabulary = target.vocabulary if recipe.own_output else None
        heads = drafter = MedusaHeads(recipe.depths, target.hidden, layers=recipe.layers, vocabulary=vocabulary)
        if heads.output is not None:
            weight = target.head.weight
            assert isinstance(weight, Tensor)
            with torch.no_grad():
                heads.output.copy_(weight * target.head_scaling[0])
    elif recipe.kind == "hydra":
        drafter = Hydra(
            target.hidden,
            target.vocabulary,
            heads=recipe.depths,
            layers=recipe.layers,
            prefix=layer if recipe.prefix else None,
            grounded=recipe.grounded,
            dropout=recipe.dropout,
        )
        drafter.start_from(target)
    elif recipe.kind == "eagle":
        drafter = Eagle(layer, router_groups=recipe.router_groups, active_groups=recipe.active_groups)
    else:
        drafter = Eagle3(
            layer,
            taps=usual_taps(target.model.config.get_text_config().num_hidden_layers),
            target_hidden=target.hidden,
            vocabulary=target.vocabulary,
            draft_ids=draft_ids,
        )
    return _ready(drafter, target)


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
    ids = None
    if recipe.kind == "eagle3" and 0 < recipe.draft_vocabulary < target.vocabulary:
        ids = torch.tensor(frequent_tokens(rows, recipe.draft_vocabulary, target.vocabulary))
    return fresh_drafter(recipe, target, draft_ids=ids)


def continued(recipe: Recipe, drafter: Drafter, target: Target) -> Any:
    """Return a copy of an existing drafter, ready for the recipe; a router is added if the recipe has one.

    Dropout and the groups that a router picks become the recipe's; the shape stays.

    Raises:
        ExecutorError: the drafter is of another kind, or less deep than the recipe.
    """
    if drafter.kind != recipe.kind:
        raise ExecutorError(f"recipe {recipe.name} trains {recipe.kind}, this drafter is {drafter.kind}")
    if drafter.max_depth < recipe.depths:
        raise ExecutorError(f"recipe {recipe.name} has {recipe.depths} depths, the drafter drafts {drafter.max_depth}")
    if isinstance(drafter, Eagle) and recipe.router_groups and drafter.groups != recipe.router_groups:
        if drafter.groups:
            raise UsageError(
                f"the drafter's router has {drafter.groups} groups, router_groups is {recipe.router_groups}"
            )
        weights = drafter.state_dict()
        drafter = Eagle(
            drafter.config,
            bias=drafter.fc.bias is not None,
            router_groups=recipe.router_groups,
            active_groups=recipe.active_groups,
        )
        drafter.load_state_dict(weights, strict=False)
    assert isinstance(drafter, nn.Module)
    ready = _ready(copy.deepcopy(drafter), target)
    if isinstance(ready, Hydra):  # files do not record it
        ready.set_dropout(recipe.dropout)
    if isinstance(ready, Eagle) and recipe.router_groups:
        ready.active = min(recipe.active_groups, ready.groups)
    return ready


def _ready(drafter: nn.Module, target: Target) -> nn.Module:
    """Return the drafter in the type that weights are trained in: at least float32."""
    return drafter.to(target.device, torch.promote_types(target.dtype, torch.float32))
