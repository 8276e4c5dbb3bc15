"""Rules of the engines without an exporter: the static trees that each can run, with the source of every rule.

A drafter with n heads also drafts no deeper than n; the caller adds that rule.
"""

from collections.abc import Mapping

from treeopt.constraints import (
    ChainOnly,
    ChildrenAtMost,
    ContiguousRanks,
    DepthAtLeast,
    DepthAtMost,
    ExpandPrefix,
    FullTree,
    NodesAtMost,
    RanksBelow,
    RootRanksContiguous,
    UniformBranching,
)
from treeopt.engines.export import EngineRules

# A growmap has no ranks: the b children of a node are its first b samples without replacement.
_GROWMAP_RULES = (ContiguousRanks(source="`branches` of a growmap"),)

RULES_WITHOUT_EXPORTER: Mapping[str, EngineRules] = {
    "treeopt": EngineRules("treeopt's own loop", ()),
    # The children of a node are always its best candidates, and of the siblings only the first are continued, in the
    # number that the list continues (comment at hydra/model/utils.py:114). Hydra silently builds another tree from any
    # other list.
    "hydra": EngineRules(
        "Hydra 3f39fbd",
        (
            RanksBelow(10, source="hydra/model/utils.py, TOPK"),
            ContiguousRanks(source="hydra/model/mlp_head.py:180, num_children"),
            ExpandPrefix(source="hydra/model/mlp_head.py:184, children_to_expand"),
        ),
    ),
    # Candidates are numbered rank + 5 * (number of the parent), so rank 5 would silently be another parent's best
    # token. A tree of one level raises an IndexError.
    "eagle-1": EngineRules(
        "EAGLE v1",
        (
            RanksBelow(5, source="modeling_eagle.py, TOPK"),
            DepthAtLeast(2, source="generate_tree_buffers in modeling_eagle.py"),
        ),
    ),
    "sequoia": EngineRules("Sequoia 0ff3ff7", _GROWMAP_RULES),
    "umbrella": EngineRules("UMbreLLa ff1ac17", _GROWMAP_RULES),
    # flexflow-serve@9105e45. Masks are 64 bits wide, one bit for each token including the root.
    "specinfer": EngineRules(
        "SpecInfer 9105e45",
        (
            UniformBranching(source="push_spec_infer_tree_width in spec_infer.cc:328"),
            NodesAtMost(63, source="MAX_SPEC_TREE_TOKEN_NUM in batch_config.h:77"),
            ChildrenAtMost(3, source="batch_config.h:196"),
            DepthAtMost(8, source="batch_config.h:197"),
        ),
    ),
    # With other ranks at the first level it declares a number of nodes that differs from the number it builds.
    "tensorrt-llm-medusa": EngineRules(
        "TensorRT-LLM, TensorRT backend",
        (RootRanksContiguous(source="_medusa_setup in tensorrt_llm/runtime/medusa_utils.py"),),
    ),
    # `eagle_choices` were only checked to be connected, which every tree is.
    "tensorrt-llm-eagle": EngineRules("TensorRT-LLM before #18210", ()),
    "mlc": EngineRules("MLC-LLM 2026-07", (FullTree(source="spec_tree_width of EngineConfig"),)),
    "tgi": EngineRules("TGI 3.3.7", (ChainOnly(source="--speculate is a length"),)),
}
