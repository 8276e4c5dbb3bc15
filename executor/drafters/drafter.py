"""What the decoding loop, the trainer and the recorder need of a drafter, and nothing of any one drafter.

With f_t the target's feature at position t and x_{n+1} the root, a node at depth k predicts x_{n+1+k}.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from executor.target.features import Taps
from executor.target.target_model import Target

USUAL_DEPTH = 8  # a language model could go on and on


@dataclass(frozen=True, eq=False)
class Committed:
    """What the last step added to each sequence; right of `counts` nothing has a meaning.

    Attributes:
        tokens: int64 (batch, steps), the new tokens, the new root last.
        features: (batch, steps, hidden), the target's features of the positions before them; here and elsewhere
            `hidden` is that of the drafter's taps side by side where it has some, 0 where it reads no features.
        fed: int64 (batch, steps), place in the order of feeding of the node at each of those positions, the old root
            (0) first; -1 where a node was never fed.
        counts: int64 (batch,), 0 for a sequence that did not move or has just joined.
        in_place: `fed` is 0, 1, 2, ... as far as nodes were fed: they lie in a drafter's cache where they belong.
    """

    tokens: Tensor
    features: Tensor
    fed: Tensor
    counts: Tensor
    in_place: bool

    def first(self, steps: int) -> "Committed":
        """The same for sequences that moved by `steps` at most; copies nothing."""
        tokens, features, fed = (part[:, :steps] for part in (self.tokens, self.features, self.fed))
        return Committed(tokens, features, fed, self.counts, self.in_place)


@dataclass(frozen=True, eq=False)
class Forced:
    """One depth k of a teacher-forced pass.

    Attributes:
        own: (batch, length or rows, n); row t scores x_{t+1+k}, -inf for tokens that are never proposed.
        hidden: (batch, length, hidden), what took the place of the target's feature f_{t+k}; None if nothing did.
        ids: int64 (n,), the tokens that are scored, increasing; None for all.
        vocabulary: of the target; it matters only where there are `ids`.
    """

    own: Tensor
    hidden: Tensor | None = None
    ids: Tensor | None = None
    vocabulary: int = 0

    @property
    def scores(self) -> Tensor:
        """(batch, length, vocabulary): `own`, and -inf for all other tokens."""
        if self.ids is None:
            return self.own
        whole = self.own.new_full((*self.own.shape[:-1], self.vocabulary), -torch.inf)
        return whole.index_copy_(-1, self.ids, self.own)


class Drafter(Protocol):
    """Proposes tokens, level by level, for a batch of sequences whose state it is handed back at every call.

    Attributes:
        kind: its name.
    """

    kind: str

    @property
    def taps(self) -> Taps:
        """Target layers whose inputs it reads, side by side, in place of the target's last features; () for those,
        None if it reads no features: it is then given some of width 0.
        """

    @property
    def max_depth(self) -> int:
        """The deepest level it can draft."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """What changes its output beside its weights: models' configurations, and values that JSON knows."""

    def cache_bytes(self, batch: int, capacity: int) -> int:
        """Memory of its own cache for `batch` sequences of `capacity` tokens; 0 for a drafter that keeps none."""

    def begin(self, target: Target, batch: int, depth: int, length: int, capacity: int) -> Any:
        """A fresh state for `batch` sequences and `depth` levels.

        Args:
            target: the model that verifies.
            batch: sequences.
            depth: levels of the trees.
            length: positions that a sequence may reach.
            capacity: entries that its cache needs, fed nodes included.
        """

    def lasting(self, state: Any) -> Sequence[Tensor]:
        """The tensors that one step leaves to the next, its cache apart; they are only ever changed in place."""

    def admit(self, state: Any, rows: Tensor, prompts: Tensor, features: Tensor, lengths: Tensor) -> None:
        """New requests begin: nothing of these rows' past counts.

        Args:
            state: what `begin` returned.
            rows: int64 (r,), where they go.
            prompts: int64 (r, longest), x_0 ... x_n, the root last, padded on the right.
            features: (r, longest - 1, hidden), f_0 ... f_{n-1}, padded on the right.
            lengths: int64 (r,), tokens of each prompt.
        """

    def extend(self, state: Any, committed: Committed, *, view: int, all_fed: bool) -> None:
        """A step begins: take in what the last one committed, and forget the levels drafted in it.

        Args:
            state: what `begin` returned.
            committed: the last step's outcome.
            view: no sequence, fed nodes of this step included, is longer.
            all_fed: the host knows that every node that was kept had been fed.
        """

    def level(self, state: Any, tokens: Tensor, parents: Tensor) -> Tensor:
        """Scores of the children of one level's expanded nodes; called for levels 0, 1, ... in turn.

        Args:
            state: what `begin` returned.
            tokens: int64 (batch, expanded), the tokens of those nodes (level 0: the root).
            parents: int64 (b, expanded), place of each node's parent among the nodes of the call before.

        Returns:
            (batch, expanded, vocabulary), or (batch, 1, vocabulary) when they do not depend on the node.
        """

    def teacher_forced(
        self, target: Target, tokens: Tensor, features: Tensor, depth: int, *, rows: Tensor | None = None
    ) -> Iterator[Forced]:
        """Scores along the true text, one depth after the other; used to train and to record.

        Args:
            target: whose LM head and embeddings the drafter may use.
            tokens: int64 (batch, length).
            features: (batch, length, hidden), the target's features of `tokens`.
            depth: levels wanted.
            rows: int64 (batch, n), the t that are wanted of each sequence; None: all of them.

        Yields:
            for depth k = 1, 2, ...: the scores of x_{t+1+k} given f_t and the true tokens up to x_{t+k}, of those t.
        """


def usual_depth(drafter: Drafter) -> int:
    """The levels that are looked at unless told otherwise: all of the drafter's, at most 8."""
    return min(drafter.max_depth, USUAL_DEPTH)
