"""MTP, multi-token prediction (DeepSeek-V3, arXiv 2412.19437, §2.2): a layer of the target's kind over pairs.

z = W [norm(E(x_{t+1})); norm(f_t)], then the layer, then a norm, then the target's LM head; families differ in names,
in the order of the two, and in their norms (`Family`). The next pair reads the output after the last norm, as in
SGLang and in vLLM's DeepSeek; vLLM's GLM-4 MoE reads it before. One module drafts all levels; several: `several`.

The layer is of the target's own class, with any attention and any experts: transformers' layer makes queries, keys and
values, after its norms and rotary positions, and hands them to the attention that the drafter passes (`Attend`), which
caches them: the layer gets neither a mask nor a cache of its own.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel

from executor.drafters.base.decoder_layer import Attend
from executor.drafters.base.feature_recurrence import Recurrent
from executor.drafters.base.recipe import Frequent, Recipe
from executor.target.kv_cache import Layout
from executor.target.target_model import Target
from treeopt.errors import ExecutorError

GIVEN = "treeopt-given"
# Lists of a configuration with an entry for each layer -> the entry of a drafter's layer; None: the model's last.
PER_LAYER = {"layer_types": "full_attention", "mlp_layer_types": None}


def given_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    attend: Attend | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Call the attention that the drafter passed as `attend`, as transformers calls its own.

    Raises:
        ExecutorError: the layer passes an option that the attention of drafters does not support.
    """
    wanted = next((name for name in ("softcap", "s_aux", "position_bias") if others.get(name) is not None), None)
    if attend is None or wanted is not None:
        raise ExecutorError(f"{type(module).__name__} cannot draft: {wanted or 'it drops the attention'}")
    factor = 1.0 if scaling is None else scaling * query.shape[-1] ** 0.5  # attention divides by the root of the width
    return attend(query if abs(factor - 1) < 1e-9 else query * factor, key, value).contiguous(), None


AttentionInterface.register(GIVEN, given_attention)


class HostedLayer(nn.Module):
    """One layer like the target's last, with full attention, untrained.

    Attributes:
        config: of the layer, the target's with one layer.
        block: transformers' layer.
        window: None: a query sees all positions.
    """

    is_causal = True
    window: int | None = None

    def __init__(self, model: PreTrainedModel) -> None:
        """Make the layer; raise ExecutorError if the model's layers do not attend through transformers' interface."""
        super().__init__()
        decoder: Any = model.get_decoder()
        self.config = one_layer(model.config.get_text_config())
        self.block: Any = type(decoder.layers[-1])(self.config, 0)
        rotary = type(decoder.rotary_emb)(self.config)
        self._rotary = [rotary]  # in a list: a cast of the drafter does not change its frequencies
        self._shapes: tuple[int, int, int, int] | None = None

    def forward(self, x: Tensor, positions: Tensor, attention: Attend) -> Tensor:
        """Run the layer over x (b, tokens, hidden) at positions int64 (b or 1, tokens)."""
        rotary = self._rotary[0]
        if next(rotary.buffers()).device != x.device:
            rotary.to(x.device)
        kinds = self.config.layer_types if "layer_type" in signature(rotary.forward).parameters else ()  # Gemma 3
        out = self.block(
            x,
            position_embeddings=rotary(x, positions, *kinds),
            position_ids=positions,
            attention_mask=None,
            past_key_values=None,
            attend=attention,
        )
        hidden: Tensor = out[0] if isinstance(out, tuple) else out
        return hidden

    @property
    def num_key_value_groups(self) -> int:
        """Query heads that share a key head."""
        heads, shared, *_ = self._measured
        return heads // shared

    def layout(self, dtype: torch.dtype, *, layers: int = 1) -> Layout:
        """Return the cache entries of one token in `layers` layers like this one."""
        _, shared, key_width, value_width = self._measured
        return Layout(layers, shared, key_width, value_width, dtype)

    @property
    def _measured(self) -> tuple[int, int, int, int]:
        """Query heads, key heads, and the widths of a key and a value; measured once, on one token."""
        if self._shapes is None:
            shapes: list[tuple[int, int, int, int]] = []

            def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                shapes.append((query.shape[1], key.shape[1], key.shape[3], value.shape[3]))
                shared = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
                return shared.transpose(1, 2)

            weight = next(self.parameters())
            with torch.no_grad():
                self(weight.new_zeros(1, 1, self.config.hidden_size), weight.new_zeros(1, 1, dtype=torch.long), attend)
            if not shapes:
                raise ExecutorError(f"{type(self.block).__name__} cannot draft: it has no attention")
            self._shapes = shapes[0]
        return self._shapes


def one_layer(text: PretrainedConfig) -> PretrainedConfig:
    """Return a copy of a configuration for one layer, which has experts wherever the model has any."""
    config = copy.deepcopy(text)
    config.num_hidden_layers = 1
    for name, kind in PER_LAYER.items():
        if getattr(config, name, None):
            setattr(config, name, [kind or getattr(config, name)[-1]])
    if hasattr(config, "first_k_dense_replace"):
        config.first_k_dense_replace = 0
    config._attn_implementation = GIVEN
    return config


@dataclass(frozen=True)
class Family:
    """The spelling of a family's modules.

    Attributes:
        embedding_norm: the module's name in files; the others correspondingly.
        block: what stands before the names of the layer.
        hidden_first: W reads the feature before the embedding.
        blanks_first: the embedding at position 0 is taken as 0 (vLLM and SGLang, for these families).
        before_norm: f is the output of the target's last layer, before the final norm (vLLM 0.32's mimo.py).
    """

    embedding_norm: str
    hidden_norm: str
    projection: str
    last_norm: str
    block: str = ""
    hidden_first: bool = False
    blanks_first: bool = True
    before_norm: bool = False


FAMILIES: Mapping[str, Family] = {
    "deepseek": Family("enorm", "hnorm", "eh_proj", "shared_head.norm"),
    "qwen": Family("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm", block="layers.0.", blanks_first=False),
    "mimo": Family(
        "token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm", hidden_first=True, before_norm=True
    ),
    "speculators": Family(  # models/mtp/model_definitions.py of speculators 0.9.0: MiMo's names, the embedding first
        "token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm", blanks_first=False, before_norm=True
    ),
}


class Mtp(Recurrent):
    """One module of a family, for a target whose last layer has the class of the module's.

    Attributes:
        family: a name of `FAMILIES`.
        taps: the last layer's output, or () for the input of the target's LM head.
    """

    kind = "mtp"
    abstains = False

    def __init__(self, target: Target, family: str = "mimo", *, first: bool = True) -> None:
        """Make an untrained module for a target; not the first of several never reads position 0."""
        super().__init__()
        self.family, self._spelling = family, FAMILIES[family]
        if not first:
            self._spelling = replace(self._spelling, blanks_first=False, before_norm=False)
        layers = int(target.model.config.get_text_config().num_hidden_layers)
        self.taps = (layers,) if self._spelling.before_norm else ()
        self.layer = HostedLayer(target.model)
        hidden, norm = (
            target.hidden,
            type(getattr(self.layer.block, "input_layernorm", None) or target.model.get_decoder().norm),
        )
        eps = float(getattr(self.layer.config, "rms_norm_eps", 1e-6))
        self.embedding_norm, self.hidden_norm, self.last_norm = (norm(hidden, eps=eps) for _ in range(3))
        self.projection = nn.Linear(2 * hidden, hidden, bias=False)

    @property
    def config(self) -> Any:
        """The configuration of the layer."""
        return self.layer.config

    @property
    def settings(self) -> Mapping[str, Any]:
        """See `Drafter.settings`."""
        return {"config": self.config, "family": self.family}

    @property
    def attentions(self) -> Sequence[Any]:
        """See `Recurrent.attentions`."""
        return [self.layer]

    @property
    def _weight(self) -> Tensor:
        return self.projection.weight

    def given(self, features: Tensor) -> Tensor:
        """Return the target's features unchanged, in the drafter's type."""
        return features.to(self._weight.dtype)

    def guess(self, embeddings: Tensor, hidden: Tensor, positions: Tensor, attention: Sequence[Attend]) -> Tensor:
        """See `Recurrent.guess`."""
        if self._spelling.blanks_first:
            embeddings = torch.where(positions[..., None] == 0, 0, embeddings)
        pair = [self.embedding_norm(embeddings), self.hidden_norm(hidden)]
        out: Tensor = self.layer(
            self.projection(torch.cat(pair[::-1] if self._spelling.hidden_first else pair, -1)),
            positions,
            attention[0],
        )
        return out

    def scores(self, target: Target, guess: Tensor) -> Tensor:
        """See `Recurrent.scores`."""
        return target.scored(self.last_norm(guess))

    def carried(self, guess: Tensor) -> Tensor:
        """See `Recurrent.carried`."""
        carried: Tensor = self.last_norm(guess)
        return carried


def untrained(recipe: Recipe, target: Target, frequent: Frequent) -> Mtp:
    """Return an untrained module, its layer as transformers begins one; see `Training.untrained`."""
    drafter = Mtp(target)
    drafter.layer.block.apply(target.model._init_weights)
    return drafter
