"""SpecInfer, flexflow-serve@9105e45: a number of children for each level, given as a list of widths.

Masks are 64 bits wide, one for each token, the root among them. There is no exporter yet.
"""

from treeopt.constraints import ChildrenAtMost, Constraint, DepthAtMost, NodesAtMost, UniformBranching

ENGINE = "SpecInfer 9105e45"
CONSTRAINTS: tuple[Constraint, ...] = (
    UniformBranching(source="push_spec_infer_tree_width in spec_infer.cc:328"),
    NodesAtMost(63, source="MAX_SPEC_TREE_TOKEN_NUM in batch_config.h:77"),
    ChildrenAtMost(3, source="batch_config.h:196"),
    DepthAtMost(8, source="batch_config.h:197"),
)
