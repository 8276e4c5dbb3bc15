"""What the decoding loop, the trainer and the recorder need of a drafter, and nothing of any one drafter.

With f_t the target's feature at position t and x_{n+1} the root, a node at depth k predicts x_{n+1+k}.
"""

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor

from executor.target import Target


class Drafter(Protocol):
    """Proposes tokens, level by level, for a batch of sequences whose state it is handed back at every call."""

    kind: str

    @property
    def max_depth(self) -> int:
        """The deepest level it can draft."""

    def begin(self, target: Target, batch: int, depth: int) -> Any:
        """A fresh state for `batch` sequences and trees of `depth` levels."""

    def reset(self, state: Any, rows: Tensor) -> None:
        """New requests begin in these rows, int64 (rows,): nothing of their past counts."""

    def extend(self, state: Any, tokens: Tensor, features: Tensor, counts: Tensor) -> None:
        """Newly committed positions: token x_{t+1} and feature f_t for t in the last `counts` positions.

        Args:
            state: what `begin` returned.
            tokens: int64 (batch, steps), padded on the right.
            features: (batch, steps, hidden), padded on the right.
            counts: int64 (batch,), 0 for a sequence that did not move.
        """

    def level(self, state: Any, tokens: Tensor) -> Tensor:
        """Scores of the children of one level's expanded nodes; called for levels 0, 1, ... in turn.

        Args:
            state: what `begin` returned.
            tokens: int64 (batch, expanded), the tokens of those nodes (level 0: the root).

        Returns:
            (batch, expanded, vocabulary), or (batch, 1, vocabulary) when they do not depend on the node.
        """

    def drop(self, state: Any) -> None:
        """Forget the levels drafted since the last `extend`."""

    def teacher_forced(self, target: Target, tokens: Tensor, features: Tensor, depth: int) -> Iterator[Tensor]:
        """Scores along the true text, one depth after the other; used to train and to record.

        Args:
            target: whose LM head and embeddings the drafter may use.
            tokens: int64 (batch, length).
            features: (batch, length, hidden), the target's features of `tokens`.
            depth: levels wanted.

        Yields:
            for depth k = 1, 2, ...: (batch, length, vocabulary); row t scores x_{t+1+k} given f_t and the
            true tokens up to x_{t+k}.
        """
