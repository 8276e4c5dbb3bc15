"""The n-gram drafter: counts of short token sequences.

* `drafter`: the distribution, the sorted counts of token sequences, and their files.
"""

import re
from collections.abc import Mapping, Sequence

from simulate.drafter_kinds import DrafterKind, Files

_NAMES = re.compile(r"(counts|grams)\.\d+")


def recognise(names: Mapping[str, Sequence[int]]) -> bool:
    """See `Files.recognise`."""
    return any(map(_NAMES.fullmatch, names))


ENTRY = DrafterKind(
    "ngram",
    "n-gram counts",
    words=("ngram",),
    priority=1,
    files=Files(
        recognise,
        read=f"{__name__}.drafter:read_ngram",
        write=f"{__name__}.drafter:ngram_content",
        names=("ngram.safetensors",),
        known_as="[treeopt's own](file_formats.md#n-gram-drafters)",
    ),
)
