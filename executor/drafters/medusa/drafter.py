"""Medusa heads (Cai et al. 2024, arXiv 2401.10774, §2.1): K small networks on the target's last feature.

Head k (from 0) maps f_t to scores of x_{t+2+k}; z = f, then z = z + SiLU(A z + b) for each layer, then logits
U z. U is the head's own ("version 1" checkpoints) or the target's LM head ("version 2").

Files: `{k}.{l}.linear.weight|bias` are the residual layers of head k, `{k}.{L}.weight` its output layer, not in version
2; Medusa-2 puts `medusa_head.` before them. vLLM: `blocks.{k}.layers.{l}.weight[|bias]`, `lm_heads.{k}.weight`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from executor.checkpoints.tensors.detect_layout import unwrapped
from executor.checkpoints.tensors.layer_config import check_fields, note_missing
from executor.checkpoints.tensors.lazy_tensors import Stored
from executor.checkpoints.tensors.write_tensors import Written, head_of, is_head
from executor.drafters.base.drafter import Admitted, Committed, Forced
from executor.drafters.base.recipe import Frequent, Recipe
from executor.target.causal_model import keep_last, pick_rows, put_last
from executor.target.target_model import Target
from simulate.model_sizes.model_shape import Shape
from treeopt.errors import ExecutorError


@dataclass
class MedusaState:
    """The feature before each sequence's root, (batch, hidden), and the heads' logits of the current step."""

    target: Target
    feature: Tensor
    depth: int
    logits: Tensor | None = None
    level: int = 0


class MedusaHeads(nn.Module):
    """`heads` residual networks of `layers` layers each; weights are stacked, so all heads are one product."""

    kind = "medusa"
    abstains = False
    taps: tuple[int, ...] = ()
    settings: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, heads: int, hidden: int, *, layers: int = 1, vocabulary: int | None = None) -> None:
        """Make heads that start as the target's own next-token guess.

        Args:
            heads: number of heads, K.
            hidden: width of a feature.
            layers: residual layers of each head.
            vocabulary: width of the heads' own output layers; None shares the target's LM head.
        """
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(heads, layers, hidden, hidden))
        self.bias = nn.Parameter(torch.zeros(heads, layers, hidden))
        self.output = None if vocabulary is None else nn.Parameter(torch.zeros(heads, vocabulary, hidden))

    @property
    def max_depth(self) -> int:
        """The number of heads: each drafts a level."""
        return self.weight.shape[0]

    @property
    def facts(self) -> Mapping[str, Any]:
        """See `Drafter.facts`."""
        return {"heads": self.max_depth}

    def forward(self, target: Target, features: Tensor, depth: int) -> Tensor:
        """Return logits of the first `depth` heads; features (rows, hidden) -> (depth, rows, vocabulary)."""
        z = features.to(self.weight.dtype).expand(depth, *features.shape)
        for layer in range(self.weight.shape[1]):
            weight, bias = self.weight[:depth, layer], self.bias[:depth, layer, None]
            z = z + nn.functional.silu(torch.baddbmm(bias, z, weight.transpose(1, 2)))
        if self.output is None:
            return target.scored(z)
        return z @ self.output[:depth].transpose(1, 2)

    def cache_bytes(self, batch: int, capacity: int) -> int:
        """Return 0: heads read one feature; see `Drafter.cache_bytes`."""
        return 0

    def begin(self, target: Target, batch: int, depth: int, length: int, capacity: int) -> MedusaState:
        """See `Drafter.begin`."""
        feature = torch.zeros(batch, target.hidden, dtype=target.dtype, device=target.device)
        if self.output is None:
            target.scored(feature[:1])  # measures the head's scaling now, so that no step has to
        return MedusaState(target, feature, depth)

    def lasting(self, state: MedusaState) -> Sequence[Tensor]:
        """See `Drafter.lasting`."""
        return (state.feature,)

    def admit(self, state: MedusaState, admitted: Admitted) -> None:
        """Store the feature before the root, zero for a prompt of one token; see `Drafter.admit`."""
        put_last(state.feature, admitted.rows, admitted.features, admitted.lengths - 1)

    def extend(self, state: MedusaState, committed: Committed, *, view: int, all_fed: bool) -> None:
        """Store the feature of the last committed position; see `Drafter.extend`."""
        state.logits, state.level = None, 0
        keep_last(state.feature, committed.features, committed.counts)

    @torch.no_grad()
    def level(self, state: MedusaState, tokens: Tensor, parents: Tensor) -> Tensor:
        """Return one row for all nodes of a level: heads do not read drafted tokens; see `Drafter.level`."""
        if state.logits is None:
            state.logits = self(state.target, state.feature, state.depth)
        scores = state.logits[state.level, :, None]
        state.level += 1
        return scores

    def teacher_forced(
        self, target: Target, tokens: Tensor, features: Tensor, depth: int, *, rows: Tensor | None = None
    ) -> Iterator[Forced]:
        """See `Drafter.teacher_forced`."""
        anchors = pick_rows(features, rows)
        logits = self(target, anchors.flatten(0, 1), depth)
        for scores in logits:
            yield Forced(scores.unflatten(0, anchors.shape[:2]))


def untrained(recipe: Recipe, target: Target, frequent: Frequent) -> MedusaHeads:
    """Return heads that start as the target's next-token guess; see `Training.untrained`."""
    vocabulary = target.vocabulary if recipe.own_output else None
    heads = MedusaHeads(recipe.depths, target.hidden, layers=recipe.layers, vocabulary=vocabulary)
    if heads.output is not None:
        weight = target.head.weight
        assert isinstance(weight, Tensor)
        with torch.no_grad():
            heads.output.copy_(weight * target.head_scaling[0])
    return heads


def random_heads(target: Target, count: int, packed: bool) -> MedusaHeads:
    """Return heads of random weights; see `RandomWeights.make`."""
    heads = MedusaHeads(count, target.hidden)
    nn.init.normal_(heads.weight, std=0.02)
    return heads


def weights_read(heads: MedusaHeads, target: Shape) -> int:
    """Return the weights of one head, which a level reads; see `DrafterKind.reads`."""
    return (heads.weight.numel() + heads.bias.numel()) // heads.max_depth + target.vocab * target.hidden


MEDUSA_FILE = "medusa_lm_head.safetensors"
WITHIN = "medusa_head."


@dataclass(frozen=True)
class Spelling:
    """A layout's names of layer n of head k (`part`: weight or bias) and of the output layer of head k."""

    layer: str
    output: str

    def heads(self, names: Iterable[str]) -> tuple[int, int]:
        """Return the numbers of heads and layers by the names; (0, 0) for none."""
        pattern = re.escape(self.layer).replace(r"\{k\}", r"(\d+)").replace(r"\{n\}", r"(\d+)")
        matches = [m for name in names if (m := re.fullmatch(pattern.replace(r"\{part\}", "(?:weight|bias)"), name))]
        return max((int(m[1]) + 1 for m in matches), default=0), max((int(m[2]) + 1 for m in matches), default=0)


REFERENCE = Spelling("{k}.{n}.linear.{part}", "{k}.{layers}.weight")
VLLM = Spelling("blocks.{k}.layers.{n}.{part}", "lm_heads.{k}.weight")


def read_medusa(stored: Stored, target: Target) -> MedusaHeads:
    """Read Medusa heads in any of the layouts; the tensors decide their number and whether they have output layers.

    Raises:
        ExecutorError: names the tensors that do not fit.
    """
    stored = stored.renamed(unwrapped)
    within = [name for name in stored.entries if name.startswith(WITHIN)]
    if within:  # the other tensors are the target's
        stored = stored.renamed(lambda name: name.removeprefix(WITHIN) if name.startswith(WITHIN) else None)
    spelling = VLLM if any(name.startswith("blocks.") for name in stored.entries) else REFERENCE
    heads, layers = spelling.heads(stored.entries)
    if not heads:
        unknown = sorted(stored.entries)[:4]
        raise ExecutorError(f"{stored.path}: not Medusa heads: unknown keys {unknown or 'only, no 0.0.linear.weight'}")
    if heads * layers > len(stored.entries):
        raise ExecutorError(
            f"{stored.path}: {heads} heads of {layers} layers are named, but only {len(stored.entries)} tensors exist"
        )
    outputs = _outputs(stored, target, spelling, heads, layers)
    biased = spelling is REFERENCE or any(name.endswith(".bias") for name in stored.entries)
    parts = {"weight": (target.hidden,) * 2} | ({"bias": (target.hidden,)} if biased else {})
    shapes = {
        spelling.layer.format(k=k, n=n, part=part): shape
        for k in range(heads)
        for n in range(layers)
        for part, shape in parts.items()
    }
    shapes |= dict.fromkeys(outputs, (target.vocabulary, target.hidden))
    stored.fit(shapes, ignored=["token_map"])
    shared = len(set(outputs)) == 1 < heads and is_head(stored.read(outputs[0]), target)
    own_outputs = [] if shared else outputs
    drafter = MedusaHeads(heads, target.hidden, layers=layers, vocabulary=target.vocabulary if own_outputs else None)
    with torch.no_grad():
        for k in range(heads):
            for n in range(layers):
                drafter.weight[k, n] = stored.read(spelling.layer.format(k=k, n=n, part="weight"))
                if biased:
                    drafter.bias[k, n] = stored.read(spelling.layer.format(k=k, n=n, part="bias"))
            if own_outputs and drafter.output is not None:
                drafter.output[k] = stored.read(own_outputs[k])
    if not within:  # a whole model's fields are the model's
        note_missing(stored, {"medusa_fc_bias": biased})
        check_fields(stored, stored.config)
    return drafter


def _outputs(stored: Stored, target: Target, spelling: Spelling, heads: int, layers: int) -> list[str]:
    """Return the names of the heads' output layers, one per head; [] if they share the target's."""
    if spelling is REFERENCE:
        present = any(re.fullmatch(r"\d+\.\d+\.weight", name) for name in stored.entries)
        return [spelling.output.format(k=k, layers=layers) for k in range(heads) if present]
    if "token_map" in stored.entries:
        count = stored.entries["token_map"].shape[:1]
        chosen = stored.integers("token_map", count)
        if not torch.equal(chosen, torch.arange(target.vocabulary)):
            share = f"{len(chosen)} of {target.vocabulary}"
            raise ExecutorError(f"{stored.path}: token_map: heads that score only {share} tokens are not supported")
    named = [name for name in stored.entries if name.startswith("lm_head")]
    if len(named) == 1 and named[0] in ("lm_head.weight", "lm_heads.0.weight"):
        return named * heads
    return [spelling.output.format(k=k) for k in range(heads) if named]


def medusa_content(drafter: MedusaHeads, layout: str | None, target: Target | None, name: str) -> Written:
    """Return the file contents for Medusa heads; the default layout is version 1 for heads with output layers, else 2.

    Raises:
        ExecutorError: version 2 for heads with output layers, or a layout with copies of the target's and no target.
    """
    layout = layout or ("medusa-v2" if drafter.output is None else "medusa-v1")
    if layout == "medusa-v2" and drafter.output is not None:
        raise ExecutorError("medusa-v2 has no output layers, these heads have their own: write medusa-v1")
    heads, layers, hidden = drafter.weight.shape[:3]
    spelling = VLLM if layout == "vllm-medusa" else REFERENCE
    tensors: dict[str, Tensor] = {}
    outputs: Tensor | list[Tensor] = [] if drafter.output is None else drafter.output
    if drafter.output is None and layout != "medusa-v2":
        outputs = [head_of(target, layout)] * (1 if spelling is VLLM else heads)
    for k in range(heads):
        for n in range(layers):
            tensors[spelling.layer.format(k=k, n=n, part="weight")] = drafter.weight[k, n]
            tensors[spelling.layer.format(k=k, n=n, part="bias")] = drafter.bias[k, n]
        if k < len(outputs):
            tensors[spelling.output.format(k=k, layers=layers)] = outputs[k]
    facts = {"kind": drafter.kind, "heads": heads, "layers": layers}
    if spelling is REFERENCE:
        config = {
            "medusa_num_heads": heads,
            "medusa_num_layers": layers,
            "version": layout[-1],
            "base_model_name_or_path": name,
        }
        return Written(MEDUSA_FILE, tensors, config, facts)
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": hidden,
        "vocab_size": len(outputs[0]),
        "truncated_vocab_size": len(outputs[0]),
        "num_heads": heads,
        "num_hidden_layers": layers,
        "medusa_fc_bias": True,
        "original_lm_head": drafter.output is None,
        "torch_dtype": "",
    }
    return Written("model.safetensors", tensors, config, facts)
