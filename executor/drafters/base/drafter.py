"""The interface of a drafter, as the decoding loop, the trainer and the recorder use it.

With f_t the target's feature at position t and x_{n+1} the root, a node at depth k predicts x_{n+1+k}.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from executor.device import to_device
from executor.target.causal_model import Taps
from executor.target.target_model import Target
from treeopt.errors import UsageError

USUAL_DEPTH = 8  # a language model has no limit of its own


@dataclass(frozen=True, eq=False)
class Committed:
    """The outcome of the last step for each sequence; entries beyond `counts` have no meaning.

    Attributes:
        tokens: int64 (batch, steps), the new tokens, the new root last.
        features: (batch, steps, hidden), the target's features of the positions before them; here and elsewhere
            `hidden` is the width of the drafter's taps side by side if it has taps, 0 if it reads no features.
        fed: int64 (batch, steps), place of the node at each of those positions in the order of feeding, the old root
            (0) first; -1 if the node was not fed.
        counts: int64 (batch,), 0 for a sequence that did not move or has just joined.
        in_place: True if `fed` is 0, 1, 2, ... for all fed nodes: their cache entries already lie where they belong.
    """

    tokens: Tensor
    features: Tensor
    fed: Tensor
    counts: Tensor
    in_place: bool

    def first(self, steps: int) -> "Committed":
        """Return the same for sequences that moved by at most `steps`; copies nothing."""
        tokens, features, fed = (part[:, :steps] for part in (self.tokens, self.features, self.fed))
        return Committed(tokens, features, fed, self.counts, self.in_place)


@dataclass(frozen=True, eq=False)
class Admitted:
    """Requests that start: the host's own lists, and the same on the device, from which no drafter has to read.

    Attributes:
        numbers: the rows.
        texts: token ids of each prompt x_0 ... x_n, the root last; at least one each.
        rows: int64 (r,), the rows.
        prompts: int64 (r, longest), the prompts, padded on the right with 0.
        lengths: int64 (r,), tokens of each prompt.
        features: (r, longest - 1, hidden), f_0 ... f_{n-1}, padded on the right.
    """

    numbers: Sequence[int]
    texts: Sequence[Sequence[int]]
    rows: Tensor
    prompts: Tensor
    lengths: Tensor
    features: Tensor

    @classmethod
    def of(cls, numbers: Sequence[int], texts: Sequence[Sequence[int]], features: Tensor) -> "Admitted":
        """Upload the host's lists to the features' device.

        >>> Admitted.of([2, 0], [[7], [4, 5]], torch.zeros(2, 1, 3)).prompts
        tensor([[7, 0],
                [4, 5]])
        """
        lengths, device = [len(text) for text in texts], features.device
        padded = [[*text, *[0] * (max(lengths) - len(text))] for text in texts]
        return cls(
            numbers,
            texts,
            rows=to_device(list(numbers), device),
            prompts=to_device(padded, device),
            lengths=to_device(lengths, device),
            features=features,
        )


@dataclass(frozen=True, eq=False)
class Forced:
    """Scores of a depth k in a teacher-forced pass.

    Attributes:
        own: (batch, length or rows, n); row t scores x_{t+1+k}, -inf for tokens that are never proposed.
        hidden: (batch, length, hidden), the drafter's prediction of the target's feature f_{t+k}; None without one.
        ids: int64 (n,), the tokens that are scored, increasing; None for all.
        vocabulary: of the target; used only with `ids`.
        confidence: (batch, length or rows), log-odds that the token is accepted; None without a confidence head.
    """

    own: Tensor
    hidden: Tensor | None = None
    ids: Tensor | None = None
    vocabulary: int = 0
    confidence: Tensor | None = None

    @property
    def scores(self) -> Tensor:
        """Scores of the whole vocabulary, (batch, length, vocabulary): `own`, and -inf for all other tokens."""
        if self.ids is None:
            return self.own
        whole = self.own.new_full((*self.own.shape[:-1], self.vocabulary), -torch.inf)
        return whole.index_copy_(-1, self.ids, self.own)


class Drafter(Protocol):
    """Proposes tokens, level by level, for a batch of sequences; every call receives the state from `begin`.

    Attributes:
        kind: the drafter's name.
    """

    kind: str

    @property
    def taps(self) -> Taps:
        """Target layers whose inputs it reads, side by side; () for the target's last features.

        None if it reads no features; it then receives features of width 0.
        """

    @property
    def max_depth(self) -> int:
        """The deepest level that it can draft."""

    @property
    def abstains(self) -> bool:
        """True if it may propose fewer tokens than a tree has places: those that it does not propose score -inf."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Everything beside the weights that changes its output: models' configurations, and JSON values."""

    def cache_bytes(self, batch: int, capacity: int) -> int:
        """Return the bytes of its own cache for `batch` sequences of `capacity` tokens; 0 for a drafter without one."""

    def begin(self, target: Target, batch: int, depth: int, length: int, capacity: int) -> Any:
        """Return a new state for `batch` sequences and `depth` levels.

        Args:
            target: the model that verifies.
            batch: number of sequences.
            depth: levels of the trees.
            length: largest length of a sequence.
            capacity: entries that its cache needs per sequence, fed nodes included.
        """

    def lasting(self, state: Any) -> Sequence[Tensor]:
        """Return the tensors that one step leaves to the next, without its cache; they are only changed in place."""

    def admit(self, state: Any, admitted: Admitted) -> None:
        """Start new requests in their rows, forget the rows' past, and read nothing from the device.

        Args:
            state: returned by `begin`.
            admitted: the requests.
        """

    def extend(self, state: Any, committed: Committed, *, view: int, all_fed: bool) -> None:
        """Start a step: read what the last one committed, and forget the levels drafted in it.

        Args:
            state: returned by `begin`.
            committed: the last step's outcome.
            view: upper bound of the sequences' lengths, fed nodes of this step included.
            all_fed: the host knows that every accepted node had been fed.
        """

    def level(self, state: Any, tokens: Tensor, parents: Tensor) -> Tensor:
        """Return the scores of the children of one level's expanded nodes; called for levels 0, 1, ... in turn.

        Args:
            state: returned by `begin`.
            tokens: int64 (batch, expanded), the tokens of those nodes (level 0: the root).
            parents: int64 (b, expanded), place of each node's parent among the nodes of the previous call.

        Returns:
            (batch, expanded, vocabulary), or (batch, 1, vocabulary) when they do not depend on the node.
        """

    def teacher_forced(
        self, target: Target, tokens: Tensor, features: Tensor, depth: int, *, rows: Tensor | None = None
    ) -> Iterator[Forced]:
        """Yield scores along the true text, one depth after the other; used to train and to record.

        Args:
            target: the model whose LM head and embeddings the drafter may use.
            tokens: int64 (batch, length).
            features: (batch, length, hidden), the target's features of `tokens`.
            depth: number of levels.
            rows: int64 (batch, n), the positions t of each sequence that are scored; None: all.

        Yields:
            for depth k = 1, 2, ...: the scores of x_{t+1+k} given f_t and the true tokens up to x_{t+k}, for those t.
        """


def mask_token(target: Target) -> int:
    """Return the token whose embedding stands for tokens to come where none is stated: the padding, else the end."""
    config = target.model.config.get_text_config()
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    known = range(target.vocabulary)
    return int(next(token for token in (config.pad_token_id or None, *ends, 0) if token in known))


def history_of(drafter: Drafter | None, batch: int = 1) -> Any:
    """Return the drafter's `history`, the outputs of requests before; None if it reads none.

    Raises:
        UsageError: a batch of several requests.
    """
    history = getattr(drafter, "history", None)
    if history is not None and batch > 1:
        raise UsageError(
            f"{drafter.kind if drafter else ''} reads the outputs of earlier requests, and which are earlier depends "
            "on the batch: take one request at a time, batch 1"
        )
    return history


def usual_depth(drafter: Drafter) -> int:
    """Return the default number of levels: all levels of the drafter, at most 8."""
    return min(drafter.max_depth, USUAL_DEPTH)
