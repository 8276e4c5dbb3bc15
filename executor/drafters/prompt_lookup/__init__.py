"""Drafters that copy from the text itself: prompt lookup as treeopt has it, and as engines have it.

* `drafter`: the committed texts, and treeopt's own rule, a distribution over the vocabulary.
* `engine_rules`: the rules of vLLM, llama.cpp and transformers, which propose one piece or nothing; names such as
  `prompt-lookup:5` and `prompt-lookup:vllm:2-4`.
"""

from simulate.drafter_kinds import DrafterKind

ENTRY = DrafterKind("prompt-lookup", "prompt lookup", named=f"{__name__}.engine_rules:lookup_drafter")
