"""The names of an engine's counters of speculative decoding, which stand in the engine's entry (`Engine.metrics`)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CounterNames:
    """The names of an engine's counters.

    Attributes:
        prefix: how all names begin.
        accepted: accepted tokens by position.
        position: the label of the position.
        drafted: drafted tokens: all of them, or by position if `steps` is None.
        steps: drafts, one for each step.
        accepted_total: all accepted tokens.
        cuts: what to say of drafts that were cut, which the engine does as a rule; "": they are an error.
    """

    prefix: str
    accepted: str = "num_accepted_tokens_per_pos_total"
    position: str = "position"
    drafted: str = "num_draft_tokens_total"
    steps: str | None = "num_drafts_total"
    accepted_total: str = "num_accepted_tokens_total"
    cuts: str = ""
