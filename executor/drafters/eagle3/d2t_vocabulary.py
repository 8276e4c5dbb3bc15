"""EAGLE-3's d2t vocabulary mapping: the tokens that a drafter with a reduced vocabulary can draft.

`d2t`, int64 (drafted,): row i of the LM head scores token i + d2t[i]. `t2d`, bool (vocabulary,): the tokens drafted.
"""

import torch
from torch import Tensor

from executor.checkpoints.tensors.lazy_tensors import Stored
from executor.target.target_model import Target
from treeopt.errors import ExecutorError


def drafted_ids(stored: Stored, rows: int, target: Target) -> Tensor | None:
    """Return the token of each of `rows` rows of the LM head, int64 (rows,); None for all tokens in order.

    Trainers write the rows in any order: of token ids, or of how often the tokens occur.

    Raises:
        ExecutorError: d2t or t2d have wrong shapes, contradict each other, or do not name tokens of the target.
    """
    known = target.vocabulary
    chosen = stored.integers("t2d", (known,)).bool() if "t2d" in stored.entries else None
    if chosen is not None and int(chosen.sum()) != rows:
        raise ExecutorError(
            f"{stored.path}: t2d must name {rows} tokens as lm_head has rows, found {int(chosen.sum())}"
        )
    if "d2t" in stored.entries:
        ids = _ids(stored, rows, known)
        if chosen is not None and not bool(chosen[ids].all()):
            first = int((~chosen[ids]).nonzero()[0])
            raise ExecutorError(f"{stored.path}: row {first} of lm_head is token {int(ids[first])}, which t2d lacks")
    elif chosen is not None:
        ids = chosen.nonzero()[:, 0]
    elif rows == known:
        return None
    else:
        raise ExecutorError(f"{stored.path}: lm_head has {rows} rows for {known} tokens, and d2t is missing")
    return None if rows == known and torch.equal(ids, torch.arange(known)) else ids


def _ids(stored: Stored, rows: int, known: int) -> Tensor:
    key = stored.entries["d2t"].key
    offsets = stored.integers("d2t", (rows,))
    if bool(((offsets < -known) | (offsets > known)).any()):  # or their sums could wrap around
        raise ExecutorError(f"{stored.path}: {key} must lead to tokens 0 to {known - 1}")
    ids = torch.arange(rows) + offsets
    wrong = (ids < 0) | (ids >= known)
    if bool(wrong.any()):
        first = int(wrong.nonzero()[0])
        raise ExecutorError(
            f"{stored.path}: {key} must lead to tokens 0 to {known - 1}, entry {first} leads to {int(ids[first])}"
        )
    order = ids.argsort(stable=True)
    twice = (ids[order][1:] == ids[order][:-1]).nonzero()[:, 0]
    if len(twice):
        pair = sorted(int(entry) for entry in order[int(twice[0]) : int(twice[0]) + 2])
        raise ExecutorError(
            f"{stored.path}: {key} must lead to each token once, entries {pair[0]} and {pair[1]} lead to "
            f"{int(ids[pair[0]])}"
        )
    return ids


def vocabulary_tensors(ids: Tensor | None, known: int) -> dict[str, Tensor]:
    """Return `d2t` and `t2d` for the drafted tokens; {} if all tokens are drafted.

    >>> vocabulary_tensors(torch.tensor([1, 3]), 4)["d2t"]
    tensor([1, 2])
    """
    if ids is None:
        return {}
    ids = ids.cpu()
    chosen = torch.zeros(known, dtype=torch.bool)
    chosen[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": chosen}
