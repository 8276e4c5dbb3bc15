"""What drafters compute for each level of a tree, by their kind and sizes. No device, no time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulate.model_sizes.forward_pass import Forward, Matrix
from simulate.model_sizes.hf_config import Shape, parsed, positive
from treeopt.errors import CostError, UsageError

_HYDRA = {"hydra_num_heads": 4, "hydra_num_layers": 1}  # what its configuration may leave out


@dataclass(frozen=True)
class DrafterShape:
    """What a drafter does for each level of a tree.

    Attributes:
        level: the forward of a level; its head is applied to all nodes that are fed.
        parallel: levels come from one pass over the last token (Medusa), not from each other.
        opening: what is made once a step of the tokens that were committed (EAGLE-3's fusion, Hydra++'s layer).
        deeper: the forwards of the levels after the first, the last one's of all that follow; (): as the first.

    >>> target = Shape(layers=2, hidden=8, intermediate=16, heads=4, kv_heads=2, head_dim=2, vocab=32)
    >>> DrafterShape.medusa(target).level.weights
    320
    """

    level: Forward
    parallel: bool = False
    opening: Forward | None = None
    deeper: tuple[Forward, ...] = ()

    def shared(self, devices: int) -> "DrafterShape":
        """What each of several devices computes of it; see `Forward.shared`."""
        opening = None if self.opening is None else self.opening.shared(devices)
        deeper = tuple(forward.shared(devices) for forward in self.deeper)
        return replace(self, level=self.level.shared(devices), opening=opening, deeper=deeper)

    def at(self, depth: int) -> Forward:
        """The forward of a level, so many levels before it."""
        return (self.level, *self.deeper)[min(depth, len(self.deeper))]

    @property
    def read(self) -> tuple[Forward, ...]:
        """What goes over the tokens of a prompt."""
        attends = () if self.parallel or not self.level.layers else (self.level,)
        return (*attends, *(() if self.opening is None else (self.opening,)))

    @classmethod
    def eagle(cls, layer: Shape) -> "DrafterShape":
        """EAGLE, EAGLE-2, HASS or CORAL: a fusion of token and feature, one layer, the target's LM head.

        Args:
            layer: the target, or a shape whose layers and vocabulary are the drafter's.

        Raises:
            CostError: it has experts, which the drafter's layer has not.
        """
        _dense(layer)
        forward = _one_layer(layer, tuple((1, *matrix) for matrix in layer.layer_matrices.values()), layer.vocab)
        return cls(replace(forward, whole=((1, layer.hidden, 2 * layer.hidden),)))

    @classmethod
    def eagle3(cls, layer: Shape, *, draft_vocab: int | None = None) -> "DrafterShape":
        """EAGLE-3: three features are fused first; the layer reads token and feature side by side.

        Args:
            layer: the target, or a shape whose layers are the drafter's.
            draft_vocab: tokens that the drafter's own LM head knows; None: all.

        Raises:
            CostError: it has experts.
        """
        _dense(layer)
        named = layer.layer_matrices | {"qkv": (layer.layer_matrices["qkv"][0], 2 * layer.hidden)}
        forward = _one_layer(layer, tuple((1, *matrix) for matrix in named.values()), draft_vocab or layer.vocab)
        return cls(forward, opening=Forward((), whole=((1, layer.hidden, 3 * layer.hidden),)))

    @classmethod
    def language_model(cls, shape: Shape) -> "DrafterShape":
        """A small language model."""
        return cls(Forward.of(shape))

    @classmethod
    def medusa(cls, target: Shape, *, blocks: int = 1) -> "DrafterShape":
        """Medusa heads: for each depth residual blocks and an LM head of its own."""
        block = (blocks, target.hidden, target.hidden)
        return cls(Forward((), (target.vocab, target.hidden), whole=(block,)), parallel=True)

    @classmethod
    def hydra(cls, target: Shape, *, heads: int = 4, layers: int = 1, prefix: bool = False) -> "DrafterShape":
        """Hydra heads (arXiv 2402.05109): each reads the last feature and the tokens up to its own, side by side.

        Args:
            target: whose sizes they have.
            heads: that differ; deeper levels are taken to be as the last.
            layers: of a head, the first of which is two products.
            prefix: Hydra++: a decoder layer like the target's reads the features first.

        Raises:
            CostError: a prefix layer like one of experts.

        >>> target = Shape(layers=2, hidden=8, intermediate=16, heads=4, kv_heads=2, head_dim=2, vocab=32)
        >>> [DrafterShape.hydra(target).at(depth).weights for depth in (0, 1, 9)]
        [512, 640, 896]
        """
        width, opening = target.hidden, None
        levels = [
            Forward((), (target.vocab, width), whole=((2, width, (2 + i) * width), (layers - 1, width, width)))
            for i in range(heads)
        ]
        if prefix:
            if target.experts is not None:
                raise CostError("hydra_head_arch: a prefix layer like one of experts has no price")
            matrices = tuple((1, *matrix) for matrix in target.layer_matrices.values())
            opening = replace(_one_layer(target, matrices, target.vocab), head=None)
        return cls(levels[0], opening=opening, deeper=tuple(levels[1:]))

    @classmethod
    def lookup(cls) -> "DrafterShape":
        """N-grams and prompt lookup: nothing for the device to do, the host waits once a step as for heads.

        SpecDecode-Bench (arXiv 2601.11580) found n-grams to take about 0.6 % of verification.

        >>> DrafterShape.lookup().level.weights
        0
        """
        return cls(Forward(()), parallel=True)

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any] | Path | str, *, kind: str, target: Shape | None = None
    ) -> "DrafterShape":
        """The drafter that a config.json describes: of an EAGLE layer, a language model, or heads.

        Args:
            config: as for `Shape.from_config`; the target's will do for heads and layers made like it.
            kind: eagle, eagle3, hydra, language-model or medusa.
            target: needed by heads, whose own configuration does not tell their sizes.

        Raises:
            UsageError: another kind.
            CostError: names file and field.
        """
        makers: dict[str, Callable[[Mapping[str, Any]], DrafterShape]] = {
            "eagle": lambda found: cls.eagle(Shape.from_config(found)),
            "eagle3": lambda found: cls.eagle3(Shape.from_config(found), draft_vocab=_draft_vocab(found)),
            "hydra": lambda found: cls._hydra(found, target),
            "language-model": lambda found: cls.language_model(Shape.from_config(found)),
            "medusa": lambda found: cls._heads(found, target),
        }
        if kind not in makers:
            raise UsageError(f"drafter must be one of {', '.join(makers)}; got {kind!r}")
        return parsed(config, makers[kind])

    @classmethod
    def _heads(cls, config: Mapping[str, Any], target: Shape | None) -> "DrafterShape":
        """Medusa's heads by their own configuration, Medusa's or vLLM's, or one layer each by their target's."""
        layers = "num_hidden_layers" if config.get("model_type") == "medusa" else "medusa_num_layers"
        if layers not in config:
            return cls.medusa(Shape.from_config(config))
        return cls.medusa(_sizes(target), blocks=positive(layers, config[layers]))

    @classmethod
    def _hydra(cls, config: Mapping[str, Any], target: Shape | None) -> "DrafterShape":
        """Hydra's heads by their own configuration, or four of one layer, without a prefix layer, by their target's."""
        told = {name: config[name] for name in ("hydra_num_heads", "hydra_num_layers") if name in config}
        if not told and "hydra_head_arch" not in config:
            return cls.hydra(Shape.from_config(config))
        heads, layers = (positive(name, told.get(name, usual)) for name, usual in _HYDRA.items())
        kind = config.get("hydra_head_arch", "mlp")
        if kind not in ("mlp", "prefix-mlp"):
            raise CostError(f"hydra_head_arch must be mlp or prefix-mlp, got {kind!r:.40}")
        if config.get("grounded_heads") is False:  # they read no drafted token
            if kind != "mlp":
                raise CostError("grounded_heads must be true with a prefix layer: others have no price")
            return cls.medusa(_sizes(target), blocks=layers)
        return cls.hydra(_sizes(target), heads=heads, layers=layers, prefix=kind == "prefix-mlp")


def _sizes(target: Shape | None) -> Shape:
    if target is None:
        raise CostError("is of heads, which have their target's sizes: give that too")
    return target


def _draft_vocab(config: Mapping[str, Any]) -> int | None:
    """Tokens that EAGLE-3's own LM head knows, where its configuration says so."""
    name = "draft_vocab_size"
    return None if config.get(name) is None else positive(name, config[name])


def _one_layer(layer: Shape, matrices: tuple[Matrix, ...], vocab: int) -> Forward:
    return Forward(
        matrices,
        head=(vocab, layer.hidden),
        layers=1,
        heads=layer.heads,
        kv_heads=layer.kv_heads,
        head_dim=layer.head_dim,
        window=layer.window,
        hidden=layer.hidden,
    )


def _dense(layer: Shape) -> None:
    if layer.experts is not None:
        raise CostError("an EAGLE drafter's layer has no experts: give the drafter's own sizes, not its target's")
