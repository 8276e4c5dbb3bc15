"""Records that a file holds twice: dumps, ranges, scrapes, chunks and log lines count once, or are refused."""

import json

import pytest

from tests.treeopt.traces.importers.readers.test_engine_outputs import METRICS, PRINTED
from tests.treeopt.traces.importers.readers.test_scraped_counters import MATRIX, VECTOR, api, scrape
from treeopt.errors import TraceError
from treeopt.traces.importers.readers.engine_outputs import read_output

ENGINE_1 = [metric | {"labels": metric["labels"] | {"engine": "1"}} for metric in METRICS]


def chain(text):
    return read_output(text, {}).chain


# --- dumps of LLM.get_metrics()


@pytest.mark.parametrize(
    "text",
    [
        PRINTED + "\n" + PRINTED.replace("2000", "3000"),
        "\n".join(json.dumps(METRICS).replace("2000", drafts) for drafts in ("2000", "3000")),
        json.dumps({"before": METRICS, "after": json.loads(json.dumps(METRICS).replace("2000", "3000"))}),
    ],
)
def test_two_dumps_of_get_metrics_are_not_added(text):
    with pytest.raises(TraceError, match="it repeats `vllm:spec_decode_num_drafts_total` with another value: keep one"):
        chain(text)


def test_the_same_dump_counts_once_and_engines_are_added():
    assert chain(f"{PRINTED}\n{PRINTED}").steps == 2000
    assert chain(json.dumps([*METRICS, *METRICS])).steps == 2000
    assert chain(json.dumps([*METRICS, *ENGINE_1])).steps == 4000


# --- answers of Prometheus' API


def moved(seconds, grown=1):
    """The range of time, later; its counters begin at 0 and grow `grown` times as much."""
    return [
        {"metric": row["metric"], "values": [[at + seconds, str(grown * (int(n) - 7))] for at, n in row["values"]]}
        for row in MATRIX
    ]


@pytest.mark.parametrize("separator", ["", "\n"])
def test_ranges_that_follow_each_other_are_joined(separator):
    """Before and after a restart of the engine, or in the other order; a range that is there twice counts once."""
    ranges = [api("matrix", MATRIX), api("matrix", moved(2)), api("matrix", moved(100, 3))]
    assert chain(separator.join(ranges)).steps == 2000 * 5
    assert chain(separator.join([*ranges[::-1], ranges[1]])).steps == 2000 * 5


@pytest.mark.parametrize(
    ("later", "message"),
    [
        (api("matrix", moved(1)), "`vllm:spec_decode_num_drafts_total` has ranges that overlap: keep one of them"),
        (api("vector", VECTOR), "it holds `vllm:spec_decode_num_drafts_total` over a range and at one moment"),
    ],
)
def test_answers_that_cannot_be_joined_are_refused(later, message):
    with pytest.raises(TraceError, match=message):
        chain(api("matrix", MATRIX) + later)


def test_answers_about_two_moments_are_refused_unless_they_agree():
    answer = api("vector", VECTOR)
    assert chain(answer + answer).steps == 2000
    with pytest.raises(TraceError, match="it repeats `vllm:spec_decode_num_drafts_total` with another value"):
        chain(answer + answer.replace("2000", "3000"))


# --- AIPerf's scrapes


def test_a_counter_that_fell_between_aiperfs_scrapes_is_named():
    """The last is above the first again: the engine was restarted, and its counters grew past them."""
    scrapes = [scrape(at, times) for at, times in ((1, 1.0), (2, 5.0), (3, 0.5), (4, 3.0))]
    with pytest.raises(TraceError, match="num_drafts` fell from 10000 to 1000: the engine was restarted"):
        chain("\n".join(scrapes))


def test_aiperfs_scrapes_are_in_the_order_of_their_times():
    assert chain("\n".join(scrape(at, times) for at, times in ((3, 2.0), (2, 1.5), (1, 1.0)))).steps == 2000
