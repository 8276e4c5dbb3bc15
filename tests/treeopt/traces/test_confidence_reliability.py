"""Confidences of drafted chains, and their reliability, against a count token by token."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from tests.helpers.strategies import trace_of, traces
from treeopt.errors import TraceError
from treeopt.results.trace import ENTRY, describe
from treeopt.traces.confidence_reliability import ALONG_TEXT, confidences, reliability
from treeopt.traces.trace_files import load_trace, save_trace


@given(traces(parts=True))
def test_reliability_counts_the_tokens_whose_ancestors_are_right(trace):
    given_, curve = confidences(trace), reliability(trace)
    if given_ is None:
        assert curve is None
        return
    bins: dict[int, list[tuple[float, bool]]] = {}
    for anchor in range(trace.anchors):
        for depth in range(trace.depth if trace.drafted is None else trace.drafted[anchor]):
            if trace.rank[anchor, depth] == -2:
                break
            promised, right = float(given_[0][anchor, depth]), bool(trace.rank[anchor, depth] == 0)
            bins.setdefault(min(int(10 * promised), 9), []).append((promised, right))
            if not right:
                break
    expected = [np.mean(bins[place], axis=0).tolist() for place in sorted(bins)]
    assert [[b.confidence, b.right] for b in curve.bins] == [pytest.approx(pair) for pair in expected]
    assert [b.tokens for b in curve.bins] == [len(bins[place]) for place in sorted(bins)]


def test_confidences_are_of_two_words_and_probabilities_along_the_text_stand_in(tmp_path):
    trace = trace_of([[[0, 1], [-1, -2]]], width=2)
    for word in ("probability", "head", "logit"):
        save_trace(replace(trace, meta={**trace.meta, "confidence": word}), tmp_path / f"{word}.npz")
    assert [load_trace(tmp_path / f"{word}.npz").meta["confidence"] for word in ("probability", "head")]
    with pytest.raises(TraceError, match="confidence: Invalid enum value 'logit'"):
        load_trace(tmp_path / "logit.npz")
    assert confidences(trace) is None
    probability = np.float16([[[0.5, 0.25], [0.75, 0.0]], [[1, 0], [0, 0]]])
    values, assumed = confidences(replace(trace, draft_prob=probability))
    assert values.tolist() == [[0.5, 0.75], [1, 0]]
    assert assumed == ALONG_TEXT


def test_the_summary_of_a_trace_has_its_calibration():
    trace = replace(trace_of([[[0, 1], [1, -2]]], width=2), confidence=np.float16([[0.5, 0.5], [0.5, 0]]))
    assert describe(trace)["calibration"] == {
        "error": 0.1667,
        "bins": [{"tokens": 3, "confidence": 0.5, "right": 0.3333}],
    }
    assert any("calibration of confidences: off by 16.7%" in str(block) for block in ENTRY.blocks(trace))
