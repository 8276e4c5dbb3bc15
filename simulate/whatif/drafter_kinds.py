"""The kinds of drafter that step times can be predicted for, and the kind that a configuration states."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulate.model_sizes.hf_config import parsed
from simulate.model_sizes.named_shapes import shape_name

WITHOUT_SIZES = ("ngram", "prompt-lookup")  # no model: drafting costs next to nothing
KINDS = ("eagle", "eagle3", "hydra", "language-model", "medusa", *WITHOUT_SIZES)
# Fields of a configuration that only one kind of drafter has.
FIELDS = {
    "medusa_num_heads": "medusa",
    "medusa_num_layers": "medusa",
    "hydra_num_heads": "hydra",
    "hydra_head_arch": "hydra",
    "draft_vocab_size": "eagle3",
    "truncated_vocab_size": "eagle3",
    "eagle_config": "eagle3",
}
# Fields that name a class, of treeopt, transformers, vLLM, SGLang and speculators.
NAMES = ("treeopt_drafter", "speculators_model_type", "architectures", "model_type")


def kind_of_drafter(drafter: Mapping[str, Any] | Path | str) -> str | None:
    """Return the kind of drafter that a configuration states; None if it states none.

    Args:
        drafter: a config.json's content, its path, the path of its folder, a shape's name, or `prompt-lookup`.

    Raises:
        CostError: the file cannot be read; names it.

    >>> kind_of_drafter({"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1})
    'eagle3'
    >>> kind_of_drafter({"medusa_num_heads": 5}), kind_of_drafter("1b"), kind_of_drafter("prompt-lookup")
    ('medusa', 'language-model', 'prompt-lookup')
    """
    if str(drafter) in WITHOUT_SIZES:
        return str(drafter)
    return "language-model" if shape_name(drafter) is not None else parsed(drafter, _stated_kind)


def kind_by_layers(drafter: Mapping[str, Any] | Path | str) -> str | None:
    """Return the kind that a configuration without a name suggests: one layer is an EAGLE's, more are a model's.

    >>> kind_by_layers({"model_type": "llama", "num_hidden_layers": 30})
    'language-model'
    """
    layers = parsed(drafter, lambda config: config.get("num_hidden_layers"))
    return None if type(layers) is not int else "eagle" if layers == 1 else "language-model"


def _stated_kind(config: Mapping[str, Any]) -> str | None:
    """Return the kind that the names or fields of a configuration state."""
    for name in NAMES:
        value = config.get(name)
        words = value.get("kind") if isinstance(value, Mapping) else value
        found = _kind_in(" ".join(map(str, words)) if isinstance(words, list) else str(words or ""))
        if found is not None:
            return found
    return next((kind for field, kind in FIELDS.items() if config.get(field) is not None), None)


def _kind_in(words: str) -> str | None:
    """Return the kind that a class name holds; the longer name of two counts."""
    lower = words.lower().replace("-", "").replace("_", "")
    return next((kind for kind in ("eagle3", "eagle", "medusa", "hydra", "ngram") if kind in lower), None)
