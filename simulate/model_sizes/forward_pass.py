"""The matrix products and attention of one forward of a target or a drafter. Sizes only: no device, no time."""

from dataclasses import dataclass, replace

from simulate.model_sizes.layer_weights_and_kv import Experts, LayerAttention, LayerGroup
from simulate.model_sizes.model_shape import Shape
from treeopt.errors import CostError

Matrix = tuple[int, int, int] | tuple[int, int, int, float | None]


@dataclass(frozen=True)
class Forward:
    """Matrix products and attention of one forward.

    Attributes:
        matrices: (copies, outputs, inputs), applied to every token that is fed; a fourth number is the bytes of a
            stored weight.
        head: (outputs, inputs) of the LM head, applied to the tokens whose logits are computed; None without.
        layers: layers.
        attention: (layers, their attention).
        routed: layers of experts, of which only the experts count here.
        state_bytes: bytes of a sequence's recurrent states.
        head_groups: groups of the LM head's rows, of which a router picks some for each token (CORAL); None without.
        head_bytes: bytes of a stored weight of the LM head; None: as those of the model, at least 2.
        hidden: width of the residual stream, to which a layer's attention and MLP each add.
        whole: (copies, outputs, inputs) of matrices that are not divided over devices: each device applies all of them.
        devices: devices that share the forward; the sizes are those of one device.
        tensor: devices that share each matrix, if experts stay whole and stand on one of the devices each (expert
            parallelism); 0: all devices share every matrix.

    >>> Forward(matrices=((2, 8, 4),), head=(16, 4)).weights
    128
    """

    matrices: tuple[Matrix, ...]
    head: tuple[int, int] | None = None
    layers: int = 0
    attention: tuple[tuple[int, LayerAttention], ...] = ()
    routed: tuple[LayerGroup, ...] = ()
    state_bytes: float = 0.0
    hidden: int = 0
    whole: tuple[Matrix, ...] = ()
    devices: int = 1
    tensor: int = 0
    head_groups: Experts | None = None
    head_bytes: float | None = None

    @classmethod
    def of(cls, shape: Shape) -> "Forward":
        """Return the forward of a whole model.

        >>> shape = Shape(layers=2, hidden=8, intermediate=16, heads=4, kv_heads=2, head_dim=2, vocab=32)
        >>> forward = Forward.of(shape)
        >>> [matrix[:3] for matrix in forward.matrices], forward.head
        ([(2, 16, 8), (2, 8, 8), (2, 32, 8), (2, 8, 16)], (32, 8))
        """
        groups = shape.layer_groups
        return cls(
            matrices=tuple(
                (group.count, each.outputs, each.inputs, each.stored) for group in groups for each in group.matrices
            ),
            head=(shape.vocab, shape.hidden),
            layers=shape.layers,
            attention=tuple((group.count, group.attention) for group in groups if group.attention is not None),
            routed=tuple(replace(group, matrices=()) for group in groups if group.experts is not None),
            state_bytes=shape.state_bytes,
            hidden=shape.hidden,
            head_bytes=shape.head_bytes,
        )

    @property
    def groups(self) -> int:
        """Groups of devices with sequences of their own: 1 if all share every matrix."""
        return self.devices // (self.tensor or self.devices)

    def shared(self, devices: int, tensor: int = 0) -> "Forward":
        """Return the part of each of several devices that share every layer (Megatron-LM, arXiv 1909.08053, §3).

        With `tensor` groups of so many devices share the layers, and all devices the experts.
        Matrices, heads and the vocabulary are divided; keys and values are divided up to one head per device, latent
        ones not at all.
        Simplified, within 1.3 % of a step: activations are counted as if every matrix were divided by its outputs;
        the router and the projections of keys and values are divided whatever their number of heads; the sum over the
        embedding's parts is left out.

        Raises:
            CostError: the devices do not divide the query heads, or neither divides nor is divided by the key and
                value heads.

        >>> shape = Shape(layers=2, hidden=8, intermediate=16, heads=4, kv_heads=2, head_dim=2, vocab=32)
        >>> Forward.of(shape).shared(4).head, Forward.of(shape).shared(4).attention[0][1].kv_heads
        ((8, 8), 1)
        """
        if devices == 1:
            return self
        attention, split = [], tensor or devices
        for count, each in self.attention:
            if each.heads % split or (each.kv_heads % split and split % each.kv_heads):
                raise CostError(
                    f"{split} devices cannot share {each.heads} query heads and {each.kv_heads} key and value heads"
                )
            heads, kv_heads = each.heads // split, -(-each.kv_heads // split)
            attention.append((count, replace(each, heads=heads, kv_heads=kv_heads)))
        return replace(
            self,
            matrices=tuple((n, -(-outputs // split), *rest) for n, outputs, *rest in self.matrices),
            head=None if self.head is None else (-(-self.head[0] // split), self.head[1]),
            attention=tuple(attention),
            routed=self.routed if tensor else tuple(group.divided(devices) for group in self.routed),
            state_bytes=self.state_bytes / split,
            devices=devices,
            tensor=tensor,
        )

    @property
    def weights(self) -> int:
        """Weights of the matrices that a forward of one token reads; norms and biases are not counted."""
        routed = sum(group.count * group.products(active=True) for group in self.routed)
        dense = sum(copies * rows * columns for copies, rows, columns, *_ in (*self.matrices, *self.whole))
        return dense + routed + self.head_weights

    @property
    def head_weights(self) -> int:
        """Weights of the LM head that a forward of one token reads."""
        if self.head is None:
            return 0
        groups = self.head_groups
        rows = self.head[0] if groups is None else min(self.head[0], groups.active * -(-self.head[0] // groups.count))
        return rows * self.head[1]

    def stored_bytes(self, size: float) -> float:
        """Return the bytes of all matrices on a device but the LM head, whose weights take `size` where none is known.

        All experts count, of which a token picks a few.
        """
        matrices = (*self.matrices, *self.whole)
        dense = sum(n * rows * columns * ((rest and rest[0]) or size) for n, rows, columns, *rest in matrices)
        experts = sum(
            group.count * group.experts.count * each.outputs * each.inputs * (each.stored or size)
            for group in self.routed
            for each in group.expert_matrices
            if group.experts is not None
        )
        return dense + experts / (self.devices if self.tensor else 1)

    def kept_elements(self, tokens: float) -> float:
        """Return the count of numbers that a sequence of so many tokens keeps in the cache."""
        return sum(count * each.kv_width * float(each.kept(tokens)) for count, each in self.attention)
