"""EAGLE-3: a decoder layer over several of the target's layers, with an LM head of its own.

* `drafter`: the network.
* `read_checkpoint`: reading the files of all trainers.
* `write_layouts`: writing them for the reference, vLLM, SpecForge and speculators.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from executor.drafters.base.recipe import Recipe
from executor.drafters.eagle import dense, eagle_config, fused_width, names_drafter
from simulate.drafter_kinds import DrafterKind, DrafterShape, Files, Sizes, Training, decoder
from simulate.model_sizes.forward_pass import Forward
from simulate.model_sizes.model_shape import Shape

_MARKS = {"d2t", "t2d", "layers.0.hidden_norm.weight"}


def eagle3_shape(
    layer: Shape, *, draft_vocab: int | None = None, layers: int = 1, features: int | None = None
) -> DrafterShape:
    """Return EAGLE-3: features are fused first; the first layer reads token and feature side by side.

    Args:
        layer: the target, or a shape whose layers are the drafter's.
        draft_vocab: tokens in the vocabulary of the drafter's own LM head; None: the target's vocabulary.
        layers: decoder layers; those after the first read the output of the one before.
        features: width of the features that are fused; 0: the target's last feature is taken as it is; None: three
            features of the layer's width.
    """
    layer = dense(layer)
    plain = layer.layer_matrices
    first = plain | {"qkv": (plain["qkv"][0], 2 * layer.hidden)}
    deeper = tuple((layers - 1, *matrix) for matrix in plain.values()) if layers > 1 else ()
    matrices = (*((1, *matrix) for matrix in first.values()), *deeper)
    forward = decoder(layer, matrices, draft_vocab or layer.vocab, layers)
    wide = 3 * layer.hidden if features is None else features
    return DrafterShape(forward, opening=Forward((), whole=((1, layer.hidden, wide),)) if wide else None)


def stated_shape(config: Mapping[str, Any], target: Shape | None) -> DrafterShape:
    """Return the layers of an EAGLE-3's configuration."""
    own = eagle_config(config)
    return eagle3_shape(**own, features=fused_width(config, own["layer"] if target is None else target))


def assumed(config: Mapping[str, Any] | None, target: Shape, drafter: DrafterShape) -> Sequence[str]:
    """See `Sizes.assumed`."""
    tokens = 0 if drafter.level.head is None else drafter.level.head[0]
    if tokens != target.vocab or (config is not None and names_drafter(config)):
        return ()
    return (
        f"eagle3: its head is priced over all {tokens} tokens; give a --drafter config with draft_vocab_size to "
        "price fewer",
    )


def recognise(names: Mapping[str, Sequence[int]]) -> bool:
    """See `Files.recognise`: by names, or by queries that read an embedding and a feature side by side."""
    query = names.get("layers.0.self_attn.q_proj.weight", ())
    output = names.get("layers.0.self_attn.o_proj.weight", ())
    pairs = len(query) == len(output) == 2 and query[1] == 2 * output[0]
    return pairs or not _MARKS.isdisjoint(names)


# Li et al. 2025 (arXiv 2503.01840): seven steps, step j (from 0) weighs 0.8^j, gradients flow between steps; figures
# of the project's training configuration.
EAGLE3 = Recipe(
    "eagle3",
    "eagle3",
    depths=7,
    soft_ce_weight=1.0,
    coefficient=1.25,
    decay=0.8,
    learning_rate=5e-5,
    beta2=0.95,
    warmup=0.015,
    schedule="linear",
    clip=0.5,
    draft_vocabulary=32000,
)

ENTRY = DrafterKind(
    "eagle3",
    "EAGLE-3",
    words=("eagle3",),
    fields=("draft_vocab_size", "truncated_vocab_size", "eagle_config"),
    priority=-1,
    sizes=Sizes(stated_shape, any_vocabulary=True, assumed=assumed),
    files=Files(
        recognise,
        read=f"{__name__}.read_checkpoint:read_eagle3",
        write=f"{__name__}.write_layouts:eagle3_content",
        needs=("fc.weight", "layers.0.hidden_norm.weight"),
        layouts=("eagle3", "eagle3-specforge", "eagle3-vllm", "speculators-eagle3"),
        known_as="the reference's, SpecForge's and SGLang's, vLLM's and AngelSlim's, NeMo Automodel's, ModelOpt's, "
        "speculators'",
    ),
    training=Training((EAGLE3,), f"{__name__}.drafter:untrained", fields=("detached", "draft_vocabulary")),
)
