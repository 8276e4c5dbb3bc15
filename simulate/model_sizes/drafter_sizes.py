"""The forwards that a drafter computes for each level of a tree, by its kind and sizes. No device, no time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulate.model_sizes.drafter_config import EagleConfig, check_priced, eagle_config
from simulate.model_sizes.forward_pass import Forward, Matrix
from simulate.model_sizes.hf_config import parsed, positive
from simulate.model_sizes.mixture_of_experts import Experts
from simulate.model_sizes.model_shape import Shape
from treeopt.errors import CostError, UsageError

TRUNCATED = "truncated_vocab_size"  # of vLLM's heads
_HYDRA_DEFAULTS = {"hydra_num_heads": 4, "hydra_num_layers": 1}  # fields that Hydra's configuration may omit


@dataclass(frozen=True)
class DrafterShape:
    """The forwards of a drafter at each level of a tree.

    Attributes:
        level: the forward of a level; its head is applied to all nodes that are fed.
        parallel: levels come from one pass over the last token (Medusa), not from each other.
        opening: the forward over the committed tokens, once per step (EAGLE-3's fusion, Hydra++'s layer); None without.
        deeper: the forwards of the levels after the first; the last one also serves all levels after it. (): all
            levels are like the first.

    >>> target = Shape(layers=2, hidden=8, intermediate=16, heads=4, kv_heads=2, head_dim=2, vocab=32)
    >>> DrafterShape.medusa(target).level.weights
    320
    """

    level: Forward
    parallel: bool = False
    opening: Forward | None = None
    deeper: tuple[Forward, ...] = ()

    def shared(self, devices: int) -> "DrafterShape":
        """Return the part of each of several devices; see `Forward.shared`."""
        opening = None if self.opening is None else self.opening.shared(devices)
        deeper = tuple(forward.shared(devices) for forward in self.deeper)
        return replace(self, level=self.level.shared(devices), opening=opening, deeper=deeper)

    def at(self, depth: int) -> Forward:
        """Return the forward of the level that has `depth` levels before it."""
        return (self.level, *self.deeper)[min(depth, len(self.deeper))]

    @property
    def read(self) -> tuple[Forward, ...]:
        """The forwards that read a prompt during prefill."""
        attends = () if self.parallel or not self.level.layers else (self.level,)
        return (*attends, *(() if self.opening is None else (self.opening,)))

    @classmethod
    def eagle(
        cls, layer: Shape, *, layers: int = 1, draft_vocab: int | None = None, groups: Experts | None = None
    ) -> "DrafterShape":
        """Return EAGLE, EAGLE-2, HASS or CORAL: a fusion of token and feature, one layer, the target's LM head.

        Args:
            layer: the target, or a shape whose layers and vocabulary are the drafter's.
            layers: decoder layers.
            draft_vocab: rows of the LM head; None: the target's vocabulary.
            groups: groups of the LM head's rows that CORAL's router picks from; None: all rows are multiplied.

        Raises:
            CostError: `layer` has experts; a drafter's layer has none.
        """
        _check_dense(layer)
        matrices = tuple((layers, *matrix) for matrix in layer.layer_matrices.values())
        forward = _decoder(layer, matrices, draft_vocab or layer.vocab, layers)
        fc = (1, layer.hidden, 2 * layer.hidden)
        router = () if groups is None else ((1, layer.hidden, layer.hidden), (1, groups.count, layer.hidden))
        return cls(replace(forward, whole=(fc, *router), head_groups=groups))

    @classmethod
    def eagle3(
        cls, layer: Shape, *, draft_vocab: int | None = None, layers: int = 1, features: int | None = None
    ) -> "DrafterShape":
        """Return EAGLE-3: features are fused first; the first layer reads token and feature side by side.

        Args:
            layer: the target, or a shape whose layers are the drafter's.
            draft_vocab: tokens in the vocabulary of the drafter's own LM head; None: the target's vocabulary.
            layers: decoder layers; those after the first read the output of the one before.
            features: width of the features that are fused; 0: the target's last feature is taken as it is; None: three
                features of the layer's width.

        Raises:
            CostError: `layer` has experts.
        """
        _check_dense(layer)
        plain = layer.layer_matrices
        first = plain | {"qkv": (plain["qkv"][0], 2 * layer.hidden)}
        deeper = tuple((layers - 1, *matrix) for matrix in plain.values()) if layers > 1 else ()
        matrices = (*((1, *matrix) for matrix in first.values()), *deeper)
        forward = _decoder(layer, matrices, draft_vocab or layer.vocab, layers)
        wide = 3 * layer.hidden if features is None else features
        return cls(forward, opening=Forward((), whole=((1, layer.hidden, wide),)) if wide else None)

    @classmethod
    def language_model(cls, shape: Shape) -> "DrafterShape":
        """Return a small language model as the drafter."""
        return cls(Forward.of(shape))

    @classmethod
    def medusa(cls, target: Shape, *, blocks: int = 1, draft_vocab: int | None = None) -> "DrafterShape":
        """Return Medusa heads: for each depth `blocks` residual blocks and an LM head of its own."""
        block = (blocks, target.hidden, target.hidden)
        return cls(Forward((), (draft_vocab or target.vocab, target.hidden), whole=(block,)), parallel=True)

    @classmethod
    def hydra(cls, target: Shape, *, heads: int = 4, layers: int = 1, prefix: bool = False) -> "DrafterShape":
        """Return Hydra heads (arXiv 2402.05109): each reads the last feature and the tokens up to its own side by side.

        Args:
            target: the target, which sets the sizes of the heads.
            heads: heads that differ; deeper levels count as the last one.
            layers: layers of a head, the first of which is two products.
            prefix: Hydra++: a decoder layer like the target's reads the features first.

        Raises:
            CostError: `prefix` with a target that has experts.

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
                raise CostError("hydra_head_arch: a prefix layer with experts cannot be priced")
            matrices = tuple((1, *matrix) for matrix in target.layer_matrices.values())
            opening = replace(_decoder(target, matrices, target.vocab, 1), head=None)
        return cls(levels[0], opening=opening, deeper=tuple(levels[1:]))

    @classmethod
    def lookup(cls) -> "DrafterShape":
        """Return n-grams and prompt lookup: no work for the device; the host waits once per step, as for heads.

        SpecDecode-Bench (arXiv 2601.11580) found n-grams to take about 0.6 % of verification.

        >>> DrafterShape.lookup().level.weights
        0
        """
        return cls(Forward(()), parallel=True)

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any] | Path | str, *, kind: str, target: Shape | None = None
    ) -> "DrafterShape":
        """Return the drafter that a config.json describes: an EAGLE layer, a language model, or heads.

        Args:
            config: as for `Shape.from_config`; for heads and layers made like the target's, its config also works.
            kind: eagle, eagle3, hydra, language-model or medusa.
            target: the target; heads need it, since their own configuration does not state their sizes.

        Raises:
            UsageError: another kind.
            CostError: names file and field.
        """
        makers: dict[str, Callable[[Mapping[str, Any]], DrafterShape]] = {
            "eagle": lambda content: cls._eagle_from(content, target),
            "eagle3": lambda content: cls._eagle3_from(eagle_config(content, target)),
            "hydra": lambda content: cls._hydra_from(content, target),
            "language-model": lambda content: cls.language_model(Shape.from_config(content)),
            "medusa": lambda content: cls._medusa_from(content, target),
        }
        if kind not in makers:
            raise UsageError(f"drafter must be one of {', '.join(makers)}; got {kind!r}")

        def made(content: Mapping[str, Any]) -> DrafterShape:
            check_priced(content)
            return makers[kind](content)

        return parsed(config, made)

    @classmethod
    def _eagle_from(cls, config: Mapping[str, Any], target: Shape | None) -> "DrafterShape":
        """Return the layer of an EAGLE's configuration, with CORAL's router if it states one."""
        sizes, groups = eagle_config(config, target), config.get("router_num_groups")
        experts = None
        if groups is not None:
            facts = config.get("treeopt_drafter")
            active = facts.get("active_groups", 2) if isinstance(facts, Mapping) else 2
            experts = Experts(positive("router_num_groups", groups), positive("active_groups", active))
        return _windowed(
            cls.eagle(sizes.layer, layers=sizes.layers, draft_vocab=sizes.vocabulary, groups=experts), sizes
        )

    @classmethod
    def _eagle3_from(cls, sizes: EagleConfig) -> "DrafterShape":
        """Return the layers of an EAGLE-3's configuration."""
        drafter = cls.eagle3(sizes.layer, draft_vocab=sizes.vocabulary, layers=sizes.layers, features=sizes.features)
        return _windowed(drafter, sizes)

    @classmethod
    def _medusa_from(cls, config: Mapping[str, Any], target: Shape | None) -> "DrafterShape":
        """Return the heads of a Medusa or vLLM configuration; of a target's configuration, heads of one layer."""
        layers = "num_hidden_layers" if config.get("model_type") == "medusa" else "medusa_num_layers"
        if layers not in config:
            return cls.medusa(Shape.from_config(config))
        rows = None if config.get(TRUNCATED) is None else positive(TRUNCATED, config[TRUNCATED])
        return cls.medusa(_required(target), blocks=positive(layers, config[layers]), draft_vocab=rows)

    @classmethod
    def _hydra_from(cls, config: Mapping[str, Any], target: Shape | None) -> "DrafterShape":
        """Return the heads of a Hydra configuration; of a target's, four heads of one layer without a prefix layer."""
        stated = {name: config[name] for name in _HYDRA_DEFAULTS if name in config}
        if not stated and "hydra_head_arch" not in config:
            return cls.hydra(Shape.from_config(config))
        heads, layers = (positive(name, stated.get(name, default)) for name, default in _HYDRA_DEFAULTS.items())
        arch = config.get("hydra_head_arch", "mlp")
        if arch not in ("mlp", "prefix-mlp"):
            raise CostError(f"hydra_head_arch must be mlp or prefix-mlp, got {arch!r:.40}")
        if config.get("grounded_heads") is False:  # they read no drafted token
            if arch != "mlp":
                raise CostError(
                    "grounded_heads must be true with a prefix layer: ungrounded heads cannot be priced with one"
                )
            return cls.medusa(_required(target), blocks=layers)
        return cls.hydra(_required(target), heads=heads, layers=layers, prefix=arch == "prefix-mlp")


def _required(target: Shape | None) -> Shape:
    """Return the target; raise CostError without one."""
    if target is None:
        raise CostError("heads take their sizes from their target: give the target's config too")
    return target


def _windowed(drafter: DrafterShape, sizes: EagleConfig) -> DrafterShape:
    """Return the drafter with the window that all its layers have."""
    if sizes.window is None:
        return drafter
    return replace(drafter, level=replace(drafter.level, window=sizes.window, slides=True))


def _decoder(layer: Shape, matrices: tuple[Matrix, ...], vocab: int, layers: int) -> Forward:
    """Return a forward of decoder layers with these matrices and an LM head."""
    return Forward(
        matrices,
        head=(vocab, layer.hidden),
        layers=layers,
        heads=layer.heads,
        kv_heads=layer.kv_heads,
        head_dim=layer.head_dim,
        window=layer.window,
        hidden=layer.hidden,
    )


def _check_dense(layer: Shape) -> None:
    """Raise CostError if the layer has experts."""
    if layer.experts is not None:
        raise CostError("an EAGLE drafter's layer has no experts: give the drafter's own sizes, not its target's")
