"""The matrix products and attention of one forward of a target or a drafter. Sizes only: no device, no time."""

from dataclasses import dataclass, replace

from simulate.model_sizes.mixture_of_experts import Experts
from simulate.model_sizes.model_shape import Shape
from treeopt.errors import CostError

Matrix = tuple[int, int, int]


@dataclass(frozen=True)
class Forward:
    """Matrix products and attention of one forward.

    Attributes:
        matrices: (copies, outputs, inputs), applied to every token that is fed.
        head: (outputs, inputs) of the LM head, applied to the tokens whose logits are computed; None without.
        layers: layers with attention.
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: width of a head.
        experts: the experts of every layer; None without.
        expert_matrices: (outputs, inputs) of one expert.
        window: tokens that a layer with a sliding window sees; None without such layers.
        slides: every layer has the window, so that keys before it are never read.
        head_groups: groups of the LM head's rows, of which a router picks some for each token (CORAL); None without.
        hidden: width of the residual stream, to which a layer's attention and MLP each add.
        whole: (copies, outputs, inputs) of matrices that are not divided over devices: each device applies all of them.
        devices: devices that share the forward; the sizes are those of one device.

    >>> Forward(matrices=((2, 8, 4),), head=(16, 4)).weights
    128
    """

    matrices: tuple[Matrix, ...]
    head: tuple[int, int] | None = None
    layers: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    experts: Experts | None = None
    expert_matrices: tuple[tuple[int, int], ...] = ()
    window: int | None = None
    hidden: int = 0
    whole: tuple[Matrix, ...] = ()
    devices: int = 1
    slides: bool = False
    head_groups: Experts | None = None

    @classmethod
    def of(cls, shape: Shape) -> "Forward":
        """Return the forward of a whole model.

        >>> shape = Shape(layers=2, hidden=8, intermediate=16, heads=4, kv_heads=2, head_dim=2, vocab=32)
        >>> forward = Forward.of(shape)
        >>> forward.matrices, forward.head
        (((2, 16, 8), (2, 8, 8), (2, 32, 8), (2, 8, 16)), (32, 8))
        """
        named = shape.layer_matrices
        dense = ["qkv", "output"] if shape.experts else list(named)
        router = ((shape.layers, shape.experts.count, shape.hidden),) if shape.experts else ()
        return cls(
            matrices=tuple((shape.layers, *named[name]) for name in dense) + router,
            head=(shape.vocab, shape.hidden),
            layers=shape.layers,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            experts=shape.experts,
            expert_matrices=tuple(named[name] for name in named if name not in dense),
            window=shape.window,
            hidden=shape.hidden,
        )

    def shared(self, devices: int) -> "Forward":
        """Return the part of each of several devices that share every layer (Megatron-LM, arXiv 1909.08053, §3).

        Matrices, heads and the vocabulary are divided; keys and values are divided up to one head per device.
        Simplified, within 1.3 % of a step: activations are counted as if every matrix were divided by its outputs;
        the router and the projections of keys and values are divided whatever their number of heads; the sum over the
        embedding's parts is left out.

        Raises:
            CostError: the devices do not divide the query heads, or neither divides nor is divided by the key and
                value heads.

        >>> shape = Shape(layers=2, hidden=8, intermediate=16, heads=4, kv_heads=2, head_dim=2, vocab=32)
        >>> Forward.of(shape).shared(4).head, Forward.of(shape).shared(4).kv_heads
        ((8, 8), 1)
        """
        if devices == 1:
            return self
        if self.heads % devices or (self.kv_heads % devices and devices % self.kv_heads):
            raise CostError(
                f"{devices} devices cannot share {self.heads} query heads and {self.kv_heads} key and value heads"
            )
        return replace(
            self,
            matrices=tuple((copies, -(-outputs // devices), inputs) for copies, outputs, inputs in self.matrices),
            head=None if self.head is None else (-(-self.head[0] // devices), self.head[1]),
            heads=self.heads // devices,
            kv_heads=-(-self.kv_heads // devices),
            expert_matrices=tuple((-(-outputs // devices), inputs) for outputs, inputs in self.expert_matrices),
            devices=devices,
        )

    @property
    def weights(self) -> int:
        """Weights of the matrices that a forward of one token reads; norms and biases are not counted."""
        active = self.layers * self.experts.active if self.experts else 0
        routed = active * sum(rows * columns for rows, columns in self.expert_matrices)
        return (
            sum(copies * rows * columns for copies, rows, columns in (*self.matrices, *self.whole))
            + routed
            + self.head_weights
        )

    @property
    def head_weights(self) -> int:
        """Weights of the LM head that a forward of one token reads."""
        if self.head is None:
            return 0
        groups = self.head_groups
        rows = self.head[0] if groups is None else min(self.head[0], groups.active * -(-self.head[0] // groups.count))
        return rows * self.head[1]

    @property
    def kv_elements(self) -> int:
        """Count of numbers in one token's keys and values, over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim
