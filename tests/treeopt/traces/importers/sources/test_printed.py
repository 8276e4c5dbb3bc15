"""Log lines and results of benchmarks: the counts behind rounded rates."""

import json

import pytest

from tests.helpers.source_texts import LOG, SERVE, bring, chain_of, reading
from treeopt.errors import TraceError
from treeopt.replay.static_tree import replay_tree
from treeopt.traces.importers.sources.bench_serve import Printed, printed_chain, unrounded
from treeopt.tree import Tree


def test_lines_of_vllm_and_lmdeploy_are_pooled_by_their_steps(tmp_path):
    """The first is a line of vLLM 0.9, the second of a later version; LMDeploy orders them as the first does."""
    text = """INFO 06-06 14:20:34 [metrics.py:86] SpecDecoding metrics: Draft acceptance rate: 38.8%, Mean acceptance \
length: 2.16, Accepted: 150 tokens, Drafted: 387 tokens, Per-position acceptance rate: 0.543, 0.357, 0.264
INFO 05-03 18:51:05 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 2.40, Accepted throughput: 0.7 \
tokens/s, Drafted throughput: 1.5 tokens/s, Accepted: 7 tokens, Drafted: 15 tokens, Per-position acceptance rate: \
0.800, 0.400, 0.200, Avg Draft acceptance rate: 46.7%
INFO 05-03 18:51:15 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: nan, Accepted: 0 tokens, Drafted: \
0 tokens, Per-position acceptance rate: nan, nan, nan, Avg Draft acceptance rate: nan%
"""
    chain = chain_of(text)
    assert chain.steps == 134
    assert chain.survival == pytest.approx(
        [(129 * a + 5 * b) / 134 for a, b in ((0.543, 0.8), (0.357, 0.4), (0.264, 0.2))], abs=1e-3
    )
    assert chain.windows == ((59, 24, 12, 34), (1, 2, 1, 1))
    (tmp_path / "server.log").write_text(text)
    trace, said = bring(tmp_path, tmp_path / "server.log", "log")
    assert replay_tree(Tree.chain(3), trace).tau == pytest.approx(1 + 157 / 134, abs=1e-9)
    assert "Assumed: rates have three decimals" in said
    with pytest.raises(TraceError, match=r"150 accepted tokens, but its 300 drafted tokens, 3 per step"):
        chain_of(text.replace("387", "300"))
    with pytest.raises(TraceError, match="a line has no numbers of accepted and drafted tokens"):
        chain_of(text.replace("Drafted: 387 tokens, ", ""))
    with pytest.raises(TraceError, match="it has results of 2 to 3 positions"):
        chain_of(text.replace(", 0.264", "").replace("387", "258").replace("150", "116").replace("2.16", "1.90"))
    with pytest.raises(TraceError, match=r"states a mean acceptance length of 3\.90, but its rates .* make 2\.16"):
        chain_of(text.replace("2.16", "3.90"))


LLAMA_WHOLE = (
    "0.34.089.513 I spec common_specu: statistics        draft-mtp: #calls(b,g,a) =    1    200    200, #gen drafts = "
    "   200, #acc drafts =   170, #gen tokens =    399, #acc tokens =   311, #mean acc len = 2.55, #acc rate/pos = "
    "(0.850, 0.705), dur(b,g,a) = 0.004, 1011.730, 0.465 ms\n"
)


def test_lines_of_llama_cpp():
    """Lines of a run of 200 steps, as its log has them; the last line of the whole run counts."""
    earlier = LLAMA_WHOLE.replace("200,", "100,").replace("0.850, 0.705", "0.100, 0.000")
    for text in (LLAMA_WHOLE, earlier + LLAMA_WHOLE):
        chain = chain_of(text)
        assert (chain.survival, chain.steps) == ((0.85, 0.705), 200)
    idle = (
        "statistics        ngram-mod: #calls(b,g,a) =    1      7      0, #gen drafts =      0, #acc tokens =     0\n"
    )
    assert chain_of(idle + LLAMA_WHOLE).steps == 200
    with pytest.raises(TraceError, match="it holds statistics of draft-mtp and ngram-mod"):
        chain_of(LLAMA_WHOLE + LLAMA_WHOLE.replace("draft-mtp", "ngram-mod"))
    line = "SpecDecoding metrics: Accepted: 1 tokens, Drafted: 2 tokens, Per-position acceptance rate: 0.500\n"
    with pytest.raises(TraceError, match="lines of several engines"):
        chain_of(LLAMA_WHOLE + line)


REQUEST = (
    "0.06.896.015 I slot print_timing: id  1 | task 0 | draft acceptance = 0.64479 (  167 accepted /   259 generated), "
    "mean acceptance length =  2.92, acceptance rate per position = (0.805, 0.632, 0.483)\n"
)


def test_requests_of_llama_cpp_are_windows_where_it_prints_no_statistics():
    """The first line is that of llama.cpp#24536: 87 steps, two of whose 261 tokens were not drafted."""
    other = REQUEST.replace("167 accepted /   259", "150 accepted /   300").replace(
        "0.805, 0.632, 0.483", "0.7, 0.5, 0.3"
    )
    idle = REQUEST.replace("167 accepted /   259", "0 accepted /   5").replace("0.805, 0.632, 0.483", "0.0, 0.0, 0.0")
    chain = chain_of(REQUEST + other + idle)
    assert chain.steps == 87 + 100 + 2
    assert chain.survival == pytest.approx([(70 + 70) / 189, (55 + 50) / 189, (42 + 30) / 189], abs=1e-9)
    assert chain.windows == ((17, 15, 13, 42), (30, 20, 20, 30), (2, 0, 0, 0))
    assert "0.5% of the tokens that full drafts would have were not drafted" in chain.assumed[1]
    assert chain_of(REQUEST + LLAMA_WHOLE).survival == (0.85, 0.705)
    with pytest.raises(TraceError, match=r"a request has 0 accepted tokens, its rates by position add up to 1\.92"):
        chain_of(REQUEST.replace("167", "0"))


def test_runs_of_llama_cpp_that_were_started_anew_are_all_counted():
    """Counts fall where a server was restarted: the last line of each run tells of it whole."""
    few = LLAMA_WHOLE.replace("200    200", "50    50").replace("311", "50").replace("0.850, 0.705", "0.600, 0.400")
    half = LLAMA_WHOLE.replace("200    200", "100    100").replace("311", "156")
    chain = chain_of(half + LLAMA_WHOLE + few)
    assert chain.steps == 250
    assert chain.survival == pytest.approx([(200 * 0.85 + 50 * 0.6) / 250, (200 * 0.705 + 50 * 0.4) / 250])


def test_what_statistics_of_llama_cpp_leave_out_is_told():
    idle = LLAMA_WHOLE.replace("1    200    200", "4    542    200")
    assert chain_of(idle).assumed[1] == "342 of 542 steps drafted nothing and are not in the trace"
    with pytest.raises(TraceError, match="have 527 accepted tokens, their rates by position make 311: positions are"):
        chain_of(LLAMA_WHOLE.replace("#acc tokens =   311", "#acc tokens =   527"))


def test_an_interval_with_a_few_shorter_drafts_is_taken():
    """vLLM shortens a draft that would pass the longest context: 15 of 5000 tokens here."""
    line = "SpecDecoding metrics: Accepted: {} tokens, Drafted: {} tokens, Per-position acceptance rate: {}\n"
    rates = "0.800, 0.640, 0.500, 0.300, 0.200"
    chain = chain_of(line.format(2440, 4985, rates))
    assert chain.steps == 1000
    assert chain.survival == (0.8, 0.64, 0.5, 0.3, 0.2)
    assert "0.3% of the tokens that full drafts would have were not drafted" in chain.assumed[1]
    with pytest.raises(TraceError, match="the length of drafts changed"):
        chain_of(line.format(2440, 4800, rates))


EVEN = {"spec_decode_draft_tokens": 4000, "spec_decode_accepted_tokens": 2800}


def test_results_of_several_runs_are_pooled_as_windows():
    other = SERVE | {
        "spec_decode_num_drafts": 1000,
        "spec_decode_draft_tokens": 3000,
        "spec_decode_accepted_tokens": 1200,
        "spec_decode_per_position_acceptance_rates": [0.5, 0.4, 0.3],
    }
    chain = reading(json.dumps(SERVE) + "\n" + json.dumps(other)).chain
    assert chain.survival == pytest.approx((2100 / 3000, 1600 / 3000, 1100 / 3000))
    assert chain.windows == ((400, 400, 400, 800), (500, 100, 100, 300))
    with pytest.raises(TraceError, match="it has results of several models, a, b: keep those of one"):
        reading(json.dumps([SERVE | {"model_id": "a"}, other | {"model_id": "b"}]))
    with pytest.raises(TraceError, match="it has results of 2 to 3 positions"):
        reading(
            json.dumps(SERVE) + json.dumps(SERVE | {"spec_decode_per_position_acceptance_rates": [0.8, 0.6], **EVEN})
        )


def test_counts_behind_rounded_rates():
    assert unrounded(Printed((0.33, 0.33), 0.005, 3, 2)).tolist() == [1 / 3, 1 / 3]
    moved = unrounded(Printed((0.8, 0.6, 0.0), 0.005, 20_000, 28_050))
    assert moved.sum() == pytest.approx(1.4025, abs=1e-12)
    assert abs(moved - [0.8, 0.6, 0.0]).max() < 0.005
    assert unrounded(Printed((0.0, 0.0), 0.005, 10, 0)).tolist() == [0, 0]
    assert unrounded(Printed((0.8, 0.6), 0.005)).tolist() == [0.8, 0.6]
    with pytest.raises(TraceError, match=r"2.000 per step, but the rates by position add up to 1.400: positions are"):
        unrounded(Printed((0.8, 0.6), 0.005, 100, 200))
    rates = printed_chain([Printed((0.8, 0.6), 0.005)])
    assert (rates.steps, rates.survival) == (None, (0.8, 0.6))
    with pytest.raises(TraceError, match="2 results without numbers of steps"):
        printed_chain([Printed((0.8,), 0.005)] * 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spec_decode_num_drafts": "5"}, "result 0: `spec_decode_num_drafts` must be a count, found '5'"),
        ({"spec_decode_num_drafts": 10**400}, "result 0: `spec_decode_num_drafts` must be a count, found 1000"),
        ({"spec_decode_draft_tokens": 4500}, "4500 tokens were drafted in 2000 steps of up to 3: lengths differed"),
        ({"spec_decode_per_position_acceptance_rates": {"0": 1}}, "must be a list of rates"),
        ({"spec_decode_accepted_tokens": 5000}, "positions are missing"),
    ],
)
def test_results_that_are_not_so(change, message):
    with pytest.raises(TraceError, match=message):
        reading(json.dumps(SERVE | change))


def without_times(text):
    return "".join(f"{line[line.index('SpecDecoding') :]}\n" for line in text.splitlines())


def json_lines(*fields):
    """A log of JSON lines, each with the same line of vLLM in several fields."""
    return "".join(json.dumps({name: cut(line) for name, cut in fields}) + "\n" for line in LOG.splitlines())


def test_a_window_that_is_logged_twice_at_the_same_time_counts_once():
    found = chain_of(LOG)
    assert (found.steps, len(found.windows)) == (2000, 5)
    first = LOG.splitlines()[0] + "\n"
    assert chain_of(first + LOG) == chain_of(LOG + LOG) == found
    assert chain_of(LOG + LOG.replace("10:00", "11:00")).steps == 4000
    assert chain_of(LOG + LOG.replace("INFO", "(EngineCore_DP1) INFO")).steps == 4000
    assert chain_of(without_times(LOG + LOG)).steps == 4000


@pytest.mark.parametrize(
    "fields",
    [
        (("msg", str), ("raw", str)),
        (("raw", str), ("level", lambda line: "INFO"), ("msg", without_times)),
        (("msg", without_times), ("raw", lambda line: f"[pod/vllm-0] {line}")),
    ],
)
def test_a_line_in_several_fields_of_a_record_counts_once(fields):
    assert chain_of(json_lines(*fields)).steps == 2000
