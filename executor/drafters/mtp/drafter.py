"""MTP, multi-token prediction (DeepSeek-V3, arXiv 2412.19437, §2.2): a layer of the target's kind over pairs.

z = W [norm(E(x_{t+1})); norm(f_t)], then the layer, then a norm, then the target's LM head; families differ in names,
in the order of the two, and in their norms (`Family`). The next pair reads the output after the last norm, as in
SGLang and in vLLM's DeepSeek; vLLM's GLM-4 MoE reads it before. One module drafts all levels; several: `several`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from executor.drafters.base.decoder_layer import Attend
from executor.drafters.base.feature_recurrence import Recurrent
from executor.drafters.base.hosted_layer import HostedLayer
from executor.drafters.base.recipe import Frequent, Recipe
from executor.target.target_model import Target


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
