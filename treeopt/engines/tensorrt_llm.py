"""TensorRT-LLM, static trees as they were: Medusa on its first backend, `eagle_choices` until TensorRT-LLM#18210.

For Medusa the first level must have the ranks 0 .. k - 1: else it declares another number of nodes than it builds.
`eagle_choices` were only checked to be connected, which every tree is. There is no exporter yet.
"""

from treeopt.constraints import Constraint, RootRanksContiguous

MEDUSA = "TensorRT-LLM, TensorRT backend"
EAGLE = "TensorRT-LLM before #18210"
MEDUSA_CONSTRAINTS: tuple[Constraint, ...] = (
    RootRanksContiguous(source="_medusa_setup in tensorrt_llm/runtime/medusa_utils.py"),
)
EAGLE_CONSTRAINTS: tuple[Constraint, ...] = ()
