"""Read and write n-gram counts: `counts.k` and `grams.k` in ngram.safetensors, treeopt's own layout."""

from executor.checkpoints.tensors.lazy_tensors import Stored
from executor.checkpoints.tensors.write_tensors import Written
from executor.drafters.ngram.drafter import NGram
from executor.target.target_model import Target
from treeopt.errors import ExecutorError

NGRAM_FILE = "ngram.safetensors"


def read_ngram(stored: Stored, target: Target) -> NGram:
    """Read the counts and check them.

    Raises:
        ExecutorError: names the table that does not fit.
    """
    try:
        drafter = NGram({name: entry.read() for name, entry in stored.entries.items()})
    except ExecutorError as error:
        raise error if str(stored.path) in str(error) else ExecutorError(f"{stored.path}: {error}") from error
    if drafter.vocabulary != target.vocabulary:
        raise ExecutorError(f"{stored.path}: counts.1 must be ({target.vocabulary},), found ({drafter.vocabulary},)")
    return drafter


def ngram_content(drafter: NGram, layout: str | None, target: Target | None, name: str) -> Written:
    """Return the file contents for counts."""
    facts = {"kind": drafter.kind, "order": drafter.order, "vocabulary": drafter.vocabulary}
    return Written(NGRAM_FILE, drafter.tables(), {}, facts)
