"""Suffix decoding: continue as the text did after its longest repeated endings, as far as that is likely.

* `drafter`: Arctic's rule over the text's own suffixes; names such as `suffix` and `suffix:8`.
"""

from simulate.drafter_kinds import DrafterKind

ENTRY = DrafterKind("suffix", "suffix decoding", named=f"{__name__}.drafter:suffix_drafter")
