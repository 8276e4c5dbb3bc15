"""MTP, multi-token prediction: a layer of the target's own kind, in the target's checkpoint or beside it.

* `drafter`: the network, for the families DeepSeek and GLM, Qwen3-Next and Qwen3.5, MiMo.
* `several`: one module for each depth.
* `checkpoint`: a target's own checkpoint, speculators' folders, and MiMo's for vLLM.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from executor.drafters.base.recipe import Recipe
from simulate.drafter_kinds import DrafterKind, DrafterShape, Files, Sizes, Training
from simulate.model_sizes.forward_pass import Forward
from simulate.model_sizes.hf_config import positive, text_part
from simulate.model_sizes.model_shape import Shape

# Family -> a tensor that each of its modules has; group 1 stands before the names of the module's tensors.
MARKS = {
    "deepseek": re.compile(r"(.*?layers\.\d+\.)eh_proj\.weight"),
    "qwen": re.compile(r"(.*?)pre_fc_norm_hidden\.weight"),
    "mimo": re.compile(r"(.*?mtp_layers\.\d+\.)input_proj\.weight"),
}
DENSE = ("mimo_v2", "ernie4_5", "exaone_moe")  # modules are dense, with the target's window, as in vLLM 0.32
_LAYER = re.compile(r".*\blayers\.\d+\.")


def recognise(names: Mapping[str, Sequence[int]]) -> bool:
    """See `Files.recognise`; a whole model that has a module beside its own layers is none."""
    starts = tuple({match[1] for name in names for mark in MARKS.values() if (match := mark.match(name))})
    return bool(starts) and not any(_LAYER.match(name) and not name.startswith(starts) for name in names)


def stated_shape(config: Mapping[str, Any], target: Shape | None) -> DrafterShape:
    """Return the projection of a pair and one layer like the target's last that attends, with its experts."""
    shape = Shape.from_config(config) if target is None else target
    groups, stated = shape.layer_groups, text_part(config)
    own = [each for each in groups if each.attention is not None][-1:]
    if str(stated.get("model_type")).startswith(DENSE):
        like = next((each for each in groups if each.attention and each.attention.window), own[0])
        mlp = next(each for each in groups if each.experts is None).matrices[2:]
        own = [replace(like, matrices=(*like.matrices[:2], *mlp), experts=None, expert_matrices=())]
    elif stated.get("model_type") == "nemotron_h":  # layers attend or have experts; the module is one of each
        own += [each for each in groups if each.experts is not None][-1:]
    layer = Forward.of(replace(shape, layers=1, groups=tuple(replace(each, count=1) for each in own)))
    modules = stated.get("num_nextn_predict_layers")
    rows = positive("draft_vocab_size", stated.get("draft_vocab_size") or shape.vocab)
    level = replace(layer, head=(rows, shape.hidden), whole=((1, shape.hidden, 2 * shape.hidden),))
    return DrafterShape(level, longest=modules if type(modules) is int and modules > 1 else None)


# Cai et al. 2025 (FastMTP, arXiv 2509.18362), §3: one module, three steps, teacher forced, step k weighs
# 0.6^(k-1) / (1 + 0.6 + 0.36); coefficient * decay^k is that. The optimiser's settings are EAGLE-3's.
FASTMTP = Recipe(
    "fastmtp",
    "mtp",
    depths=3,
    hard_ce_weight=1.0,
    coefficient=1 / (0.6 * (1 + 0.6 + 0.36)),
    decay=0.6,
    learning_rate=5e-5,
    beta2=0.95,
)

ENTRY = DrafterKind(
    "mtp",
    "MTP",
    words=("mtp", "nextn"),
    priority=1,
    sizes=Sizes(stated_shape, any_vocabulary=True),
    named=f"{__name__}.checkpoint:own_module",
    files=Files(
        recognise,
        read=f"{__name__}.checkpoint:read_mtp",
        write=f"{__name__}.checkpoint:mtp_content",
        layouts=("vllm-mimo",),
        needs=("eh_proj.weight, pre_fc_norm_hidden.weight or mtp_layers.0.input_proj.weight",),
        known_as="DeepSeek's and GLM's, Qwen3-Next's and Qwen3.5's, MiMo's and speculators', in their own folders or, "
        "by the name `mtp`, in the target's",
    ),
    training=Training((FASTMTP,), f"{__name__}.drafter:untrained", fields=("detached",)),
)
