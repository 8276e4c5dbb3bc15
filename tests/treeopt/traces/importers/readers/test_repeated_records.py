"""Records that a file holds twice: dumps, ranges, scrapes, chunks and log lines count once, or are refused."""

import json

import pytest

from tests.treeopt.traces.importers.readers.test_engine_outputs import METRICS, PRINTED
from tests.treeopt.traces.importers.readers.test_scraped_counters import LOG, MATRIX, VECTOR, api, scrape
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


# --- responses of the same id

EARLY, LATE, OTHER = [2, 1], [10, 5, 3, 2], [0, 0, 1, 19]  # 3 steps, 20 and 20


def sglang(histogram):
    return json.dumps({"text": "x", "meta_info": {"id": "a", "spec_accept_histogram": histogram}})


def vllm_chunk(histogram):
    statistics = {"acceptance_histogram": histogram, "num_spec_tokens": 3}
    return "data: " + json.dumps({"id": "a", "choices": [], "metrics": {"speculative_decoding": statistics}}) + "\n"


def sglext_chunk(histogram):
    statistics = {"spec_tokens_details": {"spec_correct_drafts_histogram": histogram}}
    return "data: " + json.dumps({"id": "a", "choices": [{"index": 0}], "sglext": statistics}) + "\n"


def printed(histogram):
    return repr({"id": "a", "finish_reason": {"type": "stop"}, "spec_accept_histogram": histogram})


def printed_id_last(histogram):
    return repr({"text": "x", "meta_info": {"spec_accept_histogram": histogram, "finish": {"n": {}}, "id": "a"}})


def logged(histogram):
    return f"[10:00:00] Finish: obj=Req(rid='a'), out={{'meta_info': {printed(histogram)}}}"


FORMS = [sglang, vllm_chunk, sglext_chunk, printed, printed_id_last, logged]


@pytest.mark.parametrize("form", FORMS)
def test_the_last_chunk_of_a_stream_counts(form):
    found = chain("\n".join(map(form, (EARLY, LATE, LATE))))
    assert (found.steps, len(found.requests)) == (20, 1)


@pytest.mark.parametrize("form", FORMS)
def test_a_response_whose_name_comes_again_in_another_run_is_counted(form):
    for histograms in ((LATE, OTHER), (OTHER, LATE), (OTHER, EARLY, LATE)):
        found = chain("\n".join(map(form, histograms)))
        assert (found.steps, len(found.requests)) == (40, 2)


def test_choices_of_one_response_are_not_chunks_of_each_other():
    def choices(*numbered):
        inner = [
            {"index": index, "sglext": {"spec_correct_drafts_histogram": histogram}} for index, histogram in numbered
        ]
        return json.dumps({"id": "a", "choices": inner})

    assert chain(choices((0, EARLY), (1, LATE))).steps == 23
    chunks = [choices((1, EARLY)), choices((0, EARLY)), choices((0, LATE)), choices((1, LATE))]
    assert len(chain("\n".join(chunks)).requests) == 2


def test_responses_printed_on_one_line_have_their_own_names():
    line = "out=" + repr([{"spec_accept_histogram": EARLY, "id": "a"}, {"spec_accept_histogram": LATE, "id": "b"}])
    assert len(chain(line).requests) == 2
    assert len(chain(f"{line}\n{line}").requests) == 2


# --- windows of a log


def without_times(text):
    return "".join(f"{line[line.index('SpecDecoding') :]}\n" for line in text.splitlines())


def json_lines(*fields):
    """A log of JSON lines, each with the same line of vLLM in several fields."""
    return "".join(json.dumps({name: cut(line) for name, cut in fields}) + "\n" for line in LOG.splitlines())


def test_a_window_that_is_logged_twice_at_the_same_time_counts_once():
    found = chain(LOG)
    assert (found.steps, len(found.windows)) == (2000, 5)
    first = LOG.splitlines()[0] + "\n"
    assert chain(first + LOG) == chain(LOG + LOG) == found
    assert chain(LOG + LOG.replace("10:00", "11:00")).steps == 4000
    assert chain(LOG + LOG.replace("INFO", "(EngineCore_DP1) INFO")).steps == 4000
    assert chain(without_times(LOG + LOG)).steps == 4000


@pytest.mark.parametrize(
    "fields",
    [
        (("msg", str), ("raw", str)),
        (("raw", str), ("level", lambda line: "INFO"), ("msg", without_times)),
        (("msg", without_times), ("raw", lambda line: f"[pod/vllm-0] {line}")),
    ],
)
def test_a_line_in_several_fields_of_a_record_counts_once(fields):
    assert chain(json_lines(*fields)).steps == 2000
