"""The JSON record in the `meta` array of a trace file, `treeopt.trace/1`: the header, and provenance by name."""

from typing import Annotated, Any

from msgspec import Meta

from treeopt.storage.typed_records import Count, Index, NotNegative, Positive, Record
from treeopt.traces.trace_checks import MAX_WIDTH

Provenance = Any  # read with `treeopt.storage.provenance.look`, which takes JSON of any shape


class TraceMeta(Record, frozen=True, kw_only=True, tag_field="schema", tag="treeopt.trace/1"):
    """Header and provenance of a trace. Keys that are not named here are provenance, too, and are kept."""

    width: Annotated[int, Meta(ge=1, le=MAX_WIDTH, description="candidates per node that ranks tell apart")]
    domain_names: Annotated[tuple[str, ...], Meta(description="labels that `domain` is an index into")] = ()
    verification: Annotated[str | None, Meta(description="acceptance rule, such as greedy")] = None
    temperature: NotNegative | None = None
    top_k: Count | None = None
    top_p: Positive | None = None
    seed: int | None = None
    new_tokens: Annotated[Count | None, Meta(description="limit per request")] = None
    device: str | None = None
    prompts_sha256: str | None = None
    text_sha256: str | None = None
    repeated_prompts: Annotated[Index | None, Meta(description="requests whose prompt came before")] = None
    assumed: Annotated[
        tuple[str, ...] | None,
        Meta(description="sentences: what the trace holds and its source does not say"),
    ] = None
    target: Annotated[
        Provenance, Meta(description="`name`, `dtype`, `quantization`, hashes of `weights`, `settings`")
    ] = None
    drafter: Annotated[Provenance, Meta(description="`kind`, `heads`, hashes of `weights` and `settings`")] = None
    tree: Annotated[Provenance, Meta(description="with `tree_kept`: rank paths of its nodes, level by level")] = None
    accept: Annotated[Provenance, Meta(description="how the array `accept` was found")] = None
    kept: Annotated[Provenance, Meta(description="how the array `kept` was found")] = None
    draft_prob: Annotated[Provenance, Meta(description="warped: not at temperature 1")] = None
    repeated_4grams: Annotated[Provenance, Meta(description="shares in `prompts` and in what was `written`")] = None
    candidates: Annotated[Provenance, Meta(description="`depth`, `beam`, `width`, `stride` of the candidates")] = None
    imported: Annotated[Provenance, Meta(description="`format`, `file`, `sha256` of the source")] = None
    merged: Annotated[Provenance, Meta(description="by part: `requests`, and what the parts differ in")] = None
    split: Annotated[Provenance, Meta(description="`share`, `seed`, `part`, `requests` of the whole, `before`")] = None
    provenance: Annotated[Provenance, Meta(description="software, commit, processor, date, command")] = None
