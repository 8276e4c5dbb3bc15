"""The fused forward over trees: seven kernels a layer for one token, in place of some forty.

It is made of the layers of a Hugging Face model of the Llama family (Llama, Mistral, Qwen2, Qwen3, Phi-3 and others
built alike): RMS norms before attention and MLP, rotary positions over the whole head, a SiLU gate. `refusal` looks at
the names and types of a model's parts; `fused_verification` then compares each layer with the model's own.

Weights stay the model's: those with the same input are moved next to each other, and its parameters become views.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from executor.kernels.few_rows_linear import Around, Norm, Scaled, linear, linear_before, rms_norm_rows, row_linear
from executor.kernels.rotary_store import Nodes, Rotation, rotate_and_store
from executor.kernels.tree_attention import attend_to_tree

WIDEST_HEAD = 256  # tiles of wider ones may not fit
QKV, GATE_UP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
PACKED = {QKV: "qkv_proj", GATE_UP: "gate_up_proj"}  # one weight in place of several, as in Phi-3
DROPOUTS = {"resid_attn_dropout", "resid_mlp_dropout"}  # none while a model generates
DTYPES = (torch.bfloat16, torch.float32)  # a norm's weight times its unscaled input could overflow in float16


@dataclass(frozen=True)
class Places:
    """Where the nodes of a forward stand in the cache, and what they see.

    Attributes:
        nodes: where they stand.
        stores: keys and values, (layers, batch, shared heads, capacity, width).
        ancestors: bool (1 or batch, fed, count), contiguous, row is below or equal to column.
        view: columns of the cache that are read.
    """

    nodes: Nodes
    stores: tuple[Tensor, ...]
    ancestors: Tensor
    view: int

    def __post_init__(self) -> None:
        """Refuse a view that the cache does not have."""
        assert all(self.view <= store.shape[3] for store in self.stores)
        assert self.nodes.first + self.ancestors.shape[1] <= self.ancestors.shape[2] <= self.view


class FusedForward:
    """The forward of one model, up to the input of its LM head."""

    def __init__(self, decoder: Any, limit: int | None = None) -> None:
        """Move weights of one input next to each other; see `refusal` for which decoders can be taken.

        Positions from `limit` on are taken for the one before it.
        """
        self._decoder = decoder
        self._layers = [_FusedLayer(layer) for layer in decoder.layers]
        self._limit = limit

    @property
    def outdated(self) -> bool:
        """True if the model's parameters are no longer the weights that the kernels read, after a cast or a copy."""
        return any(layer.outdated for layer in self._layers)

    def __call__(self, tokens: Tensor, places: Places) -> tuple[Tensor, list[Tensor]]:
        """Return the input of the LM head, (batch, fed, hidden), the inputs of all layers, and the last one's output.

        Args:
            tokens: int64 (batch, fed), nodes of the trees.
            places: where the nodes stand.
        """
        inputs = [self._decoder.embed_tokens(tokens)]
        norm: Norm | Scaled | None = None
        for number in range(len(self._layers)):
            output, norm = self.layer(number, inputs[-1], places, norm)
            inputs.append(output)
        return self.last_norm(inputs[-1]), inputs

    def layer(
        self, number: int, hidden: Tensor, places: Places, norm: Norm | Scaled | None = None
    ) -> tuple[Tensor, Norm | Scaled | None]:
        """Return a layer's output for its input, (batch, fed, hidden), and what the next one takes as its norm.

        It writes its keys and values. `norm` is what the layer before returned, None for the layer's own.
        """
        layer, (keys, values) = self._layers[number], (store[number] for store in places.stores)
        embedding = self._decoder.rotary_emb
        rotation = Rotation(embedding.inv_freq, float(embedding.attention_scaling), self._limit)
        q, rows = layer.project(hidden, norm, rotation, places.nodes, keys, values)
        attended = attend_to_tree(q, keys, values, places.nodes.lengths, places.ancestors, places.view, layer.scale)
        following = self._layers[number + 1].norm if number + 1 < len(self._layers) else None
        output, norm = layer.finish(attended, rows, following)
        return output.view(hidden.shape), norm

    def scores(self, last: Tensor, head: Any) -> Tensor:
        """Return the LM head's output for its input, (batch, fed, hidden)."""
        one = last.shape[:2].numel() == 1 and type(head) is nn.Linear and head.bias is None
        if not one or not head.weight.is_contiguous():
            return head(last)  # type: ignore[no-any-return]
        return row_linear(last[0], head.weight)[None]

    def last_norm(self, hidden: Tensor) -> Tensor:
        """Return the input of the LM head for the last layer's output."""
        return rms_norm_rows(hidden, *_norm(self._decoder.norm))


class _FusedLayer:
    """The kernels of one decoder layer."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._qkv = [getattr(attention, name) for name in _names(attention, QKV)]
        self._gate_up = [getattr(mlp, name) for name in _names(mlp, GATE_UP)]
        self._joined_qkv, self._joined_gate_up = _joined(self._qkv), _joined(self._gate_up)
        self._bias = _joined_bias(self._qkv)
        self._out, self._down = attention.o_proj, mlp.down_proj
        self._before_attention, self._before_mlp = layer.input_layernorm, layer.post_attention_layernorm
        self._head_norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
        self.scale = float(attention.scaling)

    @property
    def outdated(self) -> bool:
        return any(
            _addresses(parts) != _addresses_in(whole, parts)
            for parts, whole in ((self._qkv, self._joined_qkv), (self._gate_up, self._joined_gate_up))
        )

    @property
    def norm(self) -> Norm:
        """The norm of the layer's input."""
        return _norm(self._before_attention)

    def project(
        self,
        hidden: Tensor,
        norm: Norm | Scaled | None,
        rotation: Rotation,
        nodes: Nodes,
        keys: Tensor,
        values: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the queries, (batch, fed, heads, width), and the layer's input as rows; write keys and values."""
        batch, fed, width = hidden.shape
        rows = hidden.reshape(batch * fed, width)
        projected = linear(rows, self._joined_qkv, Around(norm=norm or self.norm, bias=self._bias))
        norms = None
        if self._head_norms[0] is not None:
            (q_weight, eps), (k_weight, _) = map(_norm, self._head_norms)
            norms = q_weight, k_weight, eps
        return rotate_and_store(projected.view(batch, fed, -1), rotation, nodes, keys, values, norms), rows

    def finish(self, attended: Tensor, rows: Tensor, following: Norm | None) -> tuple[Tensor, Norm | Scaled | None]:
        """Return the layer's output, (rows, hidden), for its attention's and its input, and the norm that follows."""
        before_mlp = _norm(self._before_mlp)
        rows, norm = linear_before(attended.view(len(rows), -1), self._out.weight, Around(residual=rows), before_mlp)
        gated = linear(rows, self._joined_gate_up, Around(norm=norm or before_mlp, gated=True))
        return linear_before(gated, self._down.weight, Around(residual=rows), following)


def refusal(decoder: Any) -> str | None:
    """Return why a decoder has no fused forward; None if it has one, as far as names and types tell."""
    weights = list(decoder.parameters())
    if any(type(weight) is not nn.Parameter for weight in weights):
        return "its weights are quantised or sharded"
    if len({(weight.device, weight.dtype) for weight in weights}) != 1 or weights[0].dtype not in DTYPES:
        return "its weights are not all bfloat16 or all float32, on one device"
    if not all(weight.is_contiguous() for weight in weights):
        return "its weights are not contiguous"
    parts = ("embed_tokens", "layers", "norm", "rotary_emb")
    if not all(hasattr(decoder, name) for name in parts) or not isinstance(decoder.layers, nn.ModuleList):
        return "it is not built as Llama is"
    rotated = 2 * len(getattr(decoder.rotary_emb, "inv_freq", ()))
    reasons = [_layer_refusal(layer) or _head_refusal(layer.self_attn, rotated) for layer in decoder.layers]
    return next((reason for reason in reasons if reason is not None), None)


def _layer_refusal(layer: Any) -> str | None:
    if {name for name, _ in layer.named_children()} - DROPOUTS != {
        "self_attn",
        "mlp",
        "input_layernorm",
        "post_attention_layernorm",
    }:
        return "its layers are not built as Llama's are"
    qkv, gate_up = _names(layer.self_attn, QKV), _names(layer.mlp, GATE_UP)
    linears = {"self_attn": (*qkv, "o_proj"), "mlp": (*gate_up, "down_proj")}
    for part, names in linears.items():
        module = getattr(layer, part)
        others = {name for name, _ in module.named_children()} - {*names, "q_norm", "k_norm", "act_fn", "activation_fn"}
        if others or not all(type(getattr(module, name, None)) is nn.Linear for name in names):
            return "its layers are not built as Llama's are"
        if any(getattr(module, name).bias is not None for name in names if name not in qkv):
            return "its layers have biases where Llama's have none"
    gate = getattr(layer.mlp, "act_fn", getattr(layer.mlp, "activation_fn", None))
    if type(gate).__name__ not in ("SiLU", "SiLUActivation"):
        return "its gate is not SiLU"
    attention = layer.self_attn
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    norms += [getattr(attention, name) for name in ("q_norm", "k_norm") if hasattr(attention, name)]
    if not all(hasattr(norm, "variance_epsilon") for norm in norms):
        return "its norms are not RMS norms"
    if not isinstance(getattr(attention, "head_dim", None), int) or not hasattr(attention, "scaling"):
        return "its layers are not built as Llama's are"
    if "position_ids" in inspect.signature(attention.forward).parameters:
        return "its attention reads positions, as Ministral 3's does to scale queries of long texts"
    return None


def _head_refusal(attention: Any, rotated: int) -> str | None:
    if attention.head_dim != rotated:
        return "its positions do not rotate whole heads"
    if attention.head_dim > WIDEST_HEAD:
        return f"its heads are wider than {WIDEST_HEAD}"
    return None


def _names(part: Any, apart: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a part's projections of one input."""
    return (PACKED[apart],) if hasattr(part, PACKED[apart]) else apart


def _joined(layers: Sequence[nn.Linear]) -> Tensor:
    """Move the weights next to each other, make the parameters views of the whole, and return it."""
    whole = torch.cat([layer.weight.data for layer in layers])
    for layer, part in zip(layers, whole.split([layer.out_features for layer in layers]), strict=True):
        layer.weight.data = part
    return whole


def _joined_bias(layers: Sequence[nn.Linear]) -> Tensor | None:
    biases = [layer.bias for layer in layers]
    if all(bias is None for bias in biases):
        return None
    whole = torch.cat(
        [
            layer.weight.new_zeros(layer.out_features) if bias is None else bias
            for layer, bias in zip(layers, biases, strict=True)
        ]
    )
    for layer, part in zip(layers, whole.split([layer.out_features for layer in layers]), strict=True):
        if layer.bias is not None:
            layer.bias.data = part
    return whole


def _addresses(layers: Sequence[nn.Linear]) -> list[int]:
    return [layer.weight.data_ptr() for layer in layers]


def _addresses_in(whole: Tensor, layers: Sequence[nn.Linear]) -> list[int]:
    return [part.data_ptr() for part in whole.split([layer.out_features for layer in layers])]


def _norm(module: Any) -> Norm:
    return module.weight, module.variance_epsilon
