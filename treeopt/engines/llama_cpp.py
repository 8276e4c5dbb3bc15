"""llama.cpp as vendored in llama-cpp-python 0.3.36: `llama-server` drafts a chain of `--spec-draft-n-max`.

Branches exist in the demonstration `examples/speculative` alone. There is no exporter yet.
"""

from treeopt.constraints import ChainOnly, Constraint

ENGINE = "llama.cpp (llama-cpp-python 0.3.36)"
CONSTRAINTS: tuple[Constraint, ...] = (ChainOnly(source="--spec-draft-n-max is all that llama-server takes"),)
