"""The forwards that a drafter computes for each level of a tree, and the parts that kinds share. No device, no time.

Each kind's own sizes stand in its folder of `executor.drafters`.
"""

from dataclasses import dataclass, replace

from simulate.model_sizes.forward_pass import Forward, Matrix
from simulate.model_sizes.model_shape import Shape
from treeopt.errors import CostError


@dataclass(frozen=True)
class DrafterShape:
    """The forwards of a drafter at each level of a tree.

    Attributes:
        level: the forward of a level; its head is applied to all nodes that are fed.
        parallel: levels come from one pass over the last token (Medusa), not from each other.
        opening: the forward over the committed tokens, once per step (EAGLE-3's fusion, Hydra++'s layer); None without.
        deeper: the forwards of the levels after the first; the last one also serves all levels after it. (): all
            levels are like the first.
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


def no_work() -> DrafterShape:
    """Return a drafter without a model: no work for the device; the host waits once per step, as for heads.

    SpecDecode-Bench (arXiv 2601.11580) found n-grams to take about 0.6 % of verification.

    >>> no_work().level.weights
    0
    """
    return DrafterShape(Forward(()), parallel=True)


def heads_of(target: Shape | None) -> Shape:
    """Return the target that heads take their sizes from.

    Raises:
        CostError: it is not known.
    """
    if target is None:
        raise CostError("heads take their sizes from their target: give the target's config too")
    return target


def decoder(layer: Shape, matrices: tuple[Matrix, ...], vocab: int, layers: int) -> Forward:
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


def eagle_parameters(target: Shape, *, fc_bias: bool = False) -> int:
    """Return the weights that one forward of an EAGLE, EAGLE-2, HASS or CORAL drafter for `target` reads.

    `fc` (2 x hidden to hidden; some checkpoints have a bias), one decoder layer of the target's shape without
    its first norm, the target's LM head. Source: CORAL (Weng et al. 2025), Table 1, W_d.

    Raises:
        CostError: the target has experts.

    >>> shape = Shape(layers=2, hidden=8, intermediate=16, heads=4, kv_heads=2, head_dim=2, vocab=32)
    >>> eagle_parameters(shape)
    968
    """
    if target.experts is not None:
        raise CostError("an EAGLE drafter of a target with experts has a layer of its own shape")
    fc = 2 * target.hidden**2 + fc_bias * target.hidden
    return fc + target.layer_parameters - target.hidden + target.vocab * target.hidden
