"""The JSON record in the `meta` array of a trace file, `treeopt.trace/1`: the header, and provenance by name."""

from typing import Annotated, Any

from msgspec import Meta

from treeopt.storage.typed_records import Record
from treeopt.traces.trace_checks import MAX_WIDTH

# Provenance is JSON of any shape: `treeopt.storage.provenance.look` reads it, and what has another shape is unknown.
Provenance = Any


class TraceMeta(Record, frozen=True, kw_only=True, tag_field="schema", tag="treeopt.trace/1"):
    """Header and provenance of a trace. Keys that are not named here are provenance, too, and are kept."""

    width: Annotated[int, Meta(ge=1, le=MAX_WIDTH, description="candidates per node that ranks number")]
    domain_names: Annotated[tuple[str, ...], Meta(description="labels that the array `domain` is an index into")] = ()
    verification: Annotated[Provenance, Meta(description="name of the acceptance rule, such as greedy")] = None
    temperature: Annotated[Provenance, Meta(description="number; 0 for greedy")] = None
    top_k: Annotated[Provenance, Meta(description="integer; missing: all tokens")] = None
    top_p: Annotated[Provenance, Meta(description="number; missing: all tokens")] = None
    new_tokens: Annotated[Provenance, Meta(description="largest number of tokens per request")] = None
    seed: Annotated[Provenance, Meta(description="integer")] = None
    device: Annotated[Provenance, Meta(description="name of the device and, for a CPU, its threads")] = None
    target: Annotated[
        Provenance, Meta(description="object: `name`, `dtype`, `quantization`, hashes of `weights` and `settings`")
    ] = None
    drafter: Annotated[Provenance, Meta(description="object: `kind`, `heads`, hashes of `weights` and `settings`")] = (
        None
    )
    prompts_sha256: Annotated[Provenance, Meta(description="hash of the prompts' tokens")] = None
    text_sha256: Annotated[Provenance, Meta(description="hash of the generated texts")] = None
    repeated_4grams: Annotated[
        Provenance, Meta(description="object: shares of repeated 4-grams in `prompts` and in what was `written`")
    ] = None
    repeated_prompts: Annotated[Provenance, Meta(description="number of requests whose prompt came before")] = None
    assumed: Annotated[
        Provenance, Meta(description="list of sentences: what the trace holds and its source does not say")
    ] = None
    tree: Annotated[
        Provenance, Meta(description="rank paths of the nodes of the array `tree_kept`, level by level; needed with it")
    ] = None
    accept: Annotated[Provenance, Meta(description="how the array `accept` was found")] = None
    kept: Annotated[Provenance, Meta(description="how the array `kept` was found")] = None
    draft_prob: Annotated[Provenance, Meta(description="warped: the array `draft_prob` is not at temperature 1")] = None
    candidates: Annotated[
        Provenance, Meta(description="object: `depth`, `beam`, `width`, `stride` of the recorded candidates")
    ] = None
    imported: Annotated[Provenance, Meta(description="object: `format`, `file`, `sha256` of the source")] = None
    merged: Annotated[Provenance, Meta(description="by part: `requests`, and what the parts differ in")] = None
    split: Annotated[
        Provenance, Meta(description="object: `share`, `seed`, `part`, `requests` of the whole, the split `before`")
    ] = None
    provenance: Annotated[
        Provenance, Meta(description="object: software, commit, processor, date and command of the recording")
    ] = None
