"""The sizes of a decoder-only transformer, and what follows from them: parameters, K/V bytes, FLOP. No time.

Covers the models of `hf_config`, and others by the sizes that their user states.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from simulate.model_sizes.hf_config import FIELDS, parsed, positive, text_part
from simulate.model_sizes.hf_config_parameters import sizes_of
from simulate.model_sizes.layer_weights_and_kv import Experts, LayerAttention, LayerGroup, LayerMatrix
from simulate.model_sizes.stored_bytes import StoredBytes, read_stored_bytes
from treeopt.errors import CostError

UNSURE = 0.02  # share by which the counted weights of a GGUF file may differ from those in it


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder-only transformer from which its cost follows.

    Without `groups` all layers are alike, as the other sizes say, and have no biases. With them those sizes are what a
    drafter of the target takes over: `intermediate` is the width of one expert where `experts` are given.

    Attributes:
        layers: decoder layers.
        hidden: width of the residual stream.
        intermediate: width inside the MLP, or inside each expert.
        heads: query heads.
        kv_heads: key and value heads; divides `heads`.
        head_dim: width of a head.
        vocab: rows of the embedding and of the LM head.
        tied: the LM head is the embedding matrix.
        gated: the MLP has a gate beside its up projection.
        window: positions that every layer sees; None for all.
        experts: the experts that take the MLP's place; None without.
        groups: the layers by kind; (): all are alike.
        head_bytes: bytes of a stored weight of the LM head; None: as those of the model.
        embedding_bytes: bytes of a stored weight of the embedding; None: as those of the model.
        notes: sentences on what was assumed.

    Raises:
        CostError: names the first field that is wrong.

    >>> shape = Shape(layers=2, hidden=8, intermediate=16, heads=4, kv_heads=2, head_dim=2, vocab=32)
    >>> shape.parameters, shape.step_parameters, shape.kv_bytes
    (1704, 1448, 32)
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool = False
    gated: bool = True
    window: int | None = None
    experts: Experts | None = None
    groups: tuple[LayerGroup, ...] = ()
    head_bytes: float | None = None
    embedding_bytes: float | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check every size."""
        for field in fields(self):
            if field.type is int:
                positive(field.name, getattr(self, field.name))
        if self.heads % self.kv_heads:
            raise CostError(f"kv_heads must divide heads, got {self.kv_heads} and {self.heads}")

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | Path | str, *, as_stored: bool = False) -> "Shape":
        """Return the shape that a config.json describes: the parsed file, its path, or the path of its folder.

        With `as_stored` weights have the bytes that its quantisation states, see `stored_bytes`.

        Raises:
            CostError: a field is wrong, missing or not covered; names file and field.

        >>> sizes = {"num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16, "vocab_size": 32}
        >>> Shape.from_config({"model_type": "llama", "num_attention_heads": 4, **sizes}).head_dim
        2
        """

        def read(content: Mapping[str, Any]) -> "Shape":
            try:
                stored = read_stored_bytes(content) if as_stored else StoredBytes()
                sizes = sizes_of(content, stored)
            except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
                raise CostError(f"a field that describes layers holds a value of another kind: {error}") from error
            shape = cls(**sizes)
            if stored.weights and abs(shape.parameters / stored.weights - 1) > UNSURE:
                counted, held = (f"{number / 1e9:.4g} billion" for number in (shape.parameters, stored.weights))
                raise CostError(f"{content.get('model_type')}: {counted} weights by its fields, {held} in its tensors")
            return shape

        return parsed(config, read)

    @property
    def layer_matrices(self) -> dict[str, tuple[int, int]]:
        """(outputs, inputs) of a layer's matrices; q-k-v and gate-up are one each, as engines fuse them.

        With experts, gate-up and down are those of one expert.
        """
        attention, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "qkv": (attention + 2 * keys, self.hidden),
            "output": (self.hidden, attention),
            "gate_up": ((1 + self.gated) * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }

    @property
    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """The layers by kind; one group where all are alike."""
        if self.groups:
            return self.groups
        matrices = {name: LayerMatrix(*size) for name, size in self.layer_matrices.items()}
        widths = (self.head_dim, self.head_dim, 2 * self.head_dim)
        attention = LayerAttention(self.heads, self.kv_heads, *widths, self.window)
        plain = LayerGroup(self.layers, tuple(matrices.values()), 2 * self.hidden, attention)
        if self.experts is None:
            return (plain,)
        qkv, output, *mlp = plain.matrices
        dense = (qkv, output, LayerMatrix(self.experts.count, self.hidden))
        return (replace(plain, matrices=dense, experts=self.experts, expert_matrices=tuple(mlp)),)

    @property
    def step_parameters(self) -> int:
        """Weights that a decoding step reads: the LM head, tied or not, but no embedding (CORAL, Table 1).

        Counts only the experts that one token picks.
        """
        layers = sum(group.count * group.weights(active=True) for group in self.layer_groups)
        return layers + self.hidden + self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """Weights of the model, including all experts; those of a tied LM head count once."""
        layers = sum(group.count * group.weights() for group in self.layer_groups)
        return layers + self.hidden + (2 - self.tied) * self.vocab * self.hidden

    @property
    def kv_bytes(self) -> int:
        """Bytes of one token's keys and values in all layers, in bf16."""
        attention = ((group.count, group.attention) for group in self.layer_groups if group.attention is not None)
        return sum(count * each.kv_width for count, each in attention) * 2

    def weight_bytes(self, default: float, *, experts: int | None = None) -> float:
        """Return the bytes of all layers' weights as stored, those of no stated size having `default` bytes.

        Of a layer's experts so many count; None: all.
        """
        total = default * self.hidden
        for group in self.layer_groups:
            copies = 0 if group.experts is None else group.experts.count if experts is None else experts
            matrices = [(1, each) for each in group.matrices] + [(copies, each) for each in group.expert_matrices]
            sizes = (n * m.outputs * m.inputs * (default if m.stored is None else m.stored) for n, m in matrices)
            total += group.count * (sum(sizes) + default * (group.other + copies * group.expert_other))
        return total

    @property
    def state_bytes(self) -> int:
        """Bytes of the states that recurrent layers keep for a sequence."""
        return sum(group.count * group.state_bytes for group in self.layer_groups)


KEYS = {"params": "", "active": "", "kv_bytes": "", "layers": FIELDS[2], "hidden": FIELDS[0], "vocab": FIELDS[5]}
SPREAD = "spread"  # stated with them: lambda of `Experts.touched`
PICKED = 8  # experts that a token is assumed to pick


def llama_of(shape: Shape) -> Mapping[str, Any]:
    """Return the config.json of a Llama as wide as a model, for drafters that take their sizes from their target."""
    sizes = (shape.hidden, 4 * shape.hidden, shape.layers, shape.heads, shape.kv_heads, shape.vocab)
    return {"model_type": "llama", "head_dim": shape.head_dim, **dict(zip(FIELDS, sizes, strict=True))}


def shape_by_hand(config: Mapping[str, Any] | Path | str, sizes: Mapping[str, float]) -> Shape:
    """Return a model of so many weights, those that a token needs, and K/V bytes of a token in bf16.

    Layers, hidden size and vocabulary are the config.json's where they are not stated. Where a token needs fewer
    weights than there are, all but the LM head and the embedding count as experts.

    Args:
        config: the parsed file, its path, or the path of its folder.
        sizes: by the names of `KEYS`.

    Raises:
        CostError: names the size that is wrong or missing.

    >>> sizes = {"params": 9e9, "active": 2e9, "kv_bytes": 65536, "layers": 32, "hidden": 4096, "vocab": 32000}
    >>> round(shape_by_hand({}, sizes).parameters / 1e9, 1), shape_by_hand({}, sizes).kv_bytes
    (8.9, 65536)
    """
    text = parsed(config, lambda content: dict(text_part(content)))
    values: dict[str, Any] = {key: sizes.get(key, text.get(field)) for key, field in KEYS.items()}
    values["active"] = values["active"] or values["params"]
    if missing := [key for key, value in values.items() if not value]:
        raise CostError(f"--sizes needs {missing[0]}, such as --sizes params=117e9,active=5.1e9,kv_bytes=73728")
    whole = {key: int(size) for key, size in values.items() if isinstance(size, float) and size.is_integer()}
    layers, hidden, vocab = (positive(key, (values | whole)[key]) for key in ("layers", "hidden", "vocab"))
    active = (values["active"] - vocab * hidden) / layers
    total = (values["params"] - 2 * vocab * hidden) / layers
    if not 0 < active <= total + vocab * hidden / layers:  # the LM head may be the embedding
        raise CostError("--sizes: active must be at most params, and more than the LM head's vocab x hidden")
    heads = max(1, hidden // 128)
    attention = LayerAttention(heads, 1, 128, 128, max(1, round(values["kv_bytes"] / 2 / layers)))
    if total <= active:
        group = LayerGroup(layers, (LayerMatrix(max(1, round(active / hidden)), hidden),), attention=attention)
        return Shape(layers, hidden, 4 * hidden, heads, heads, 128, vocab, groups=(group,))
    experts = Experts(max(PICKED, round(PICKED * total / active)), PICKED)
    expert = LayerMatrix(max(1, round(active / PICKED / hidden)), hidden)
    group = LayerGroup(layers, (), attention=attention, experts=experts, expert_matrices=(expert,))
    note = f"sizes by hand: a token picks {PICKED} of {experts.count} experts, which hold all weights of a layer"
    shape = (layers, hidden, max(1, expert.outputs // 3), heads, heads, 128, vocab)
    return Shape(*shape, experts=experts, groups=(group,), notes=(note,))
