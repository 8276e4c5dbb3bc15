"""Spec-Bench's answers with the tokens that each step committed, and so the anchors that the run visited.

Source: evaluation/eval.py of Spec-Bench.
"""

from treeopt.traces.importers.chain_counts import LONGEST, Chain, chain_from_steps
from treeopt.traces.importers.source_file import drafts_of_steps
from treeopt.traces.importers.trace_source import Content, Output, TraceSource

LENGTHS = "accept_lengths"
TREES = "Spec-Bench's drafters may draft trees: accepted lengths are depths within them"


def read_answers(content: Content, *, depth: int | None = None) -> Chain:
    """Return the chain of the answers: `accept_lengths`, bonus counted; each turn is a request.

    Raises:
        TraceError: names the answer and the entry that is no number of tokens.
    """
    requests: list[list[int]] = []
    for number, record in enumerate(record for record in content.records if record.get(LENGTHS) is not None):
        steps = drafts_of_steps(record[LENGTHS], f"answer {number}", LENGTHS)
        turns = record.get("decoding_steps")
        parts = turns if isinstance(turns, list) and all(type(n) is int and n > 0 for n in turns) else [len(steps)]
        for size in parts if sum(parts) == len(steps) else [len(steps)]:
            requests.append(steps[:size])
            steps = steps[size:]
    return chain_from_steps(requests, depth=depth, assumed=(TREES, *(() if depth else (LONGEST,))))


ENTRY = TraceSource(
    name="spec-bench",
    title="Spec-Bench's accept_lengths",
    settings={"depth": "length of the chain; default the longest draft that was accepted"},
    holds=lambda content: bool(content.with_key(LENGTHS)),
    chain=read_answers,
    outputs=(Output("Spec-Bench", "every step", "the answers of its `evaluation/eval.py` (`accept_lengths`)"),),
)
