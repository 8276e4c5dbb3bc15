"""Counters, responses and logs of engines: texts as they print them, their chain, and a trace that replays to it."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.command_line import done
from tests.helpers.slow_params import examples
from tests.treeopt.traces.importers.readers.test_formats import bring, turned_away
from treeopt.errors import TraceError
from treeopt.replay.static_tree import replay_tree
from treeopt.traces.importers.chain_counts import Chain
from treeopt.traces.importers.readers.engine_logs import read_log
from treeopt.traces.importers.readers.engine_responses import read_responses
from treeopt.traces.importers.readers.prometheus_counters import read_counters
from treeopt.traces.trace import load_trace
from treeopt.tree import Tree


def test_info_tells_the_engine_that_a_chain_was_counted_by(tmp_path):
    (tmp_path / "m").write_text(scaled(VLLM, 40))
    trace, _ = bring(tmp_path, tmp_path / "m", "counters")
    shown = done("trace", "info", tmp_path / "out.npz").stdout
    assert "imported: counters of vllm, m; seed 0.\n" in shown
    assert "Warning: assumed: only rank 0 was counted" in shown
    assert shown.count("Warning: assumed: ") == len(trace.meta["assumed"])
    assert "?" not in shown


# --- Prometheus text

VLLM = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="model-8B"} 5.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="model-8B"} 1.78e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="model-8B"} 15.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="model-8B"} 7.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="model-8B",position="0"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="model-8B",position="1"} 2.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="model-8B",position="2"} 1.0
vllm:num_requests_running{engine="0",model_name="a{b}c"} 3.0
"""
LLAMA_CPP = """llamacpp:spec_decode_num_drafts_total 5
llamacpp:spec_decode_num_draft_tokens_total 15
llamacpp:spec_decode_num_accepted_tokens_total 7
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 4
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 2
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 1
"""
TRTLLM = """# TYPE trtllm_spec_decode_drafted_tokens counter
trtllm_spec_decode_drafted_tokens_total{token_position="0",worker="0"} 2
trtllm_spec_decode_drafted_tokens_total{token_position="0",worker="1"} 3
trtllm_spec_decode_drafted_tokens_total{token_position="1",worker="1"} 5
trtllm_spec_decode_drafted_tokens_total{token_position="2",worker="1"} 5
trtllm_spec_decode_accepted_tokens_total{token_position="0",worker="0"} 1
trtllm_spec_decode_accepted_tokens_total{token_position="0",worker="1"} 3
trtllm_spec_decode_accepted_tokens_total{token_position="1",worker="1"} 2
trtllm_spec_decode_accepted_tokens_total{token_position="2",worker="1"} 1
trtllm_spec_decode_drafted_tokens_created{token_position="0"} 999
"""
MLC = {"spec_decode": {"draft_count": [5, 5, 5, 5], "accept_count": [5, 4, 2, 1], "accept_len": {}}}
MLC_TEXT = """# NOTE: these metrics count token in the unit of serving model's tokenization

# /spec_decode/accept_prob
spec_decode_accept_prob_accept_prob{step=0}\t1.0
spec_decode_accept_prob_accept_prob{step=1}\t0.8
spec_decode_accept_prob_accept_prob{step=2}\t0.4
spec_decode_accept_prob_accept_prob{step=3}\t0.2

# /spec_decode/accept_len
spec_decode_accept_len_accept_len{step=0}\t1.0
"""
TEXTS = {
    "vllm": VLLM,
    "lmdeploy": VLLM.replace("vllm:", "lmdeploy:"),
    "llama.cpp": LLAMA_CPP,
    "tensorrt-llm": TRTLLM,
    "mlc": json.dumps({"usage": {"extra": MLC}}),
}


@pytest.mark.parametrize("engine", TEXTS)
def test_every_engines_counters_tell_the_same_chain(tmp_path, engine):
    found = read_counters(TEXTS[engine])
    assert found.engine == engine
    assert found.chain.survival == (0.8, 0.4, 0.2)
    assert found.chain.steps == 5
    (tmp_path / "metrics.txt").write_text(TEXTS[engine], "utf-8-sig")
    trace, said = bring(tmp_path, tmp_path / "metrics.txt", "counters")
    assert replay_tree(Tree.chain(3), trace).tau == pytest.approx(2.4)
    assert (trace.width, trace.depth, trace.requests) == (1, 3, 5)  # 5 steps: one a text, repeated
    assert trace.meta["imported"] | {"sha256": ""} == {
        "format": "counters",
        "file": "metrics.txt",
        "sha256": "",
        "engine": engine,
        "steps": 5,
        "survival": [0.8, 0.4, 0.2],
    }
    assert said.count("Assumed: ") == len(trace.meta["assumed"]) == 7


def test_rates_without_counts(tmp_path):
    (tmp_path / "metrics").write_text(MLC_TEXT)
    trace, said = bring(tmp_path, tmp_path / "metrics", "counters", "--steps", "500", "--requests", "10")
    counts = replay_tree(Tree.chain(3), trace)
    assert (counts.steps.sum() % 500, trace.requests) == (0, 10)
    assert counts.tau == pytest.approx(2.4)
    assert "the source does not record how many steps its rates cover; 500 were drawn" in said
    turned_away(tmp_path, tmp_path / "metrics", "counters", "--before", tmp_path / "metrics", words=("no difference",))
    (tmp_path / "metrics").write_text(MLC_TEXT.replace("step=0}\t1.0", "step=0}\t0.9"))
    turned_away(tmp_path, tmp_path / "metrics", "counters", words=("must have steps 0 (always 1)",))


def scaled(text, factor):
    """The counters of a text, `factor` times as high."""
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return "\n".join(f"{name} {factor * float(value)}" for name, _, value in lines)


@pytest.mark.parametrize("engine", ["vllm", "lmdeploy", "llama.cpp", "tensorrt-llm"])
def test_two_scrapes_count_what_lies_between(tmp_path, engine):
    (tmp_path / "later").write_text(scaled(TEXTS[engine], 11))
    (tmp_path / "earlier").write_text(TEXTS[engine])
    trace, _ = bring(tmp_path, tmp_path / "later", "counters", "--before", tmp_path / "earlier")
    assert replay_tree(Tree.chain(3), trace).tau == pytest.approx(2.4)
    assert trace.meta["imported"]["steps"] == 50
    assert trace.meta["imported"]["before"]["file"] == "earlier"
    words = ("later", "counters", "--before", tmp_path / "later")
    (tmp_path / "earlier").write_text(scaled(TEXTS[engine], 12))
    before = ("--before", tmp_path / "earlier")
    turned_away(tmp_path, tmp_path / "later", "counters", *before, words=("fell from", "restarted"))
    turned_away(tmp_path, tmp_path / words[0], "counters", *words[2:], words=("no step was counted",))


def test_two_dumps_of_mlc():
    later = json.dumps({"spec_decode": {"draft_count": [15, 15, 15, 15], "accept_count": [15, 10, 5, 2]}})
    found = read_counters(later, before=TEXTS["mlc"])
    assert (found.chain.survival, found.chain.steps) == ((0.6, 0.3, 0.1), 10)
    with pytest.raises(TraceError, match="counts fell"):
        read_counters(TEXTS["mlc"], before=later)


def test_models_and_engines_of_one_text(tmp_path):
    other = VLLM.replace("model-8B", 'b\\"}').replace(" 4.0", " 5.0").replace(" 7.0", " 8.0")
    found = read_counters(VLLM + other, model='b"}')
    assert found.chain.survival == (1.0, 0.4, 0.2)
    with pytest.raises(TraceError, match="it has several models, "):
        read_counters(VLLM + other)
    with pytest.raises(TraceError, match="it has model model-8B, not x"):
        read_counters(VLLM, model="x")
    with pytest.raises(TraceError, match=r"found vllm and llama\.cpp"):
        read_counters(VLLM + LLAMA_CPP)
    replicas = VLLM + VLLM.replace('engine="0"', 'engine="1"')
    assert read_counters(replicas).chain == Chain((0.8, 0.4, 0.2), 10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold one engine's counters of speculative decoding, found none"),
        ("process_cpu_seconds_total 4\n", "found none"),
        (VLLM.replace(" 7.0", " 8.0"), "positions have 7 accepted tokens, .* has 8"),
        (VLLM.replace(" 15.0", " 9.0"), "9 tokens were drafted in 5 steps of up to 3: lengths differed"),
        (VLLM.replace('"0"} 4.0', '"0"} 1.0').replace('"2"} 1.0', '"2"} 4.0'), "accepted more often"),
        (VLLM.replace('position="1"', 'position="5"'), "has 3 positions, but position 1 is missing"),
        (VLLM.replace('position="1"', 'position="-1"'), "must have a position as `position`, found '-1'"),
        (VLLM.replace(" 5.0", " 5.5"), "must be a count, found 5.5"),
        (VLLM.replace(" 5.0", " NaN"), "must be a count, found nan"),
        (VLLM.replace(" 5.0", " +Inf"), "must be a count, found inf"),
        (VLLM.replace(" 5.0", " -5"), "must be a count, found -5"),
        (VLLM.replace(" 5.0", " x"), "line 3 must end with a number, found 'x'"),
        (VLLM.replace('engine="0",model_name', "engine=?,model_name"), "line 3 is not a sample of Prometheus text"),
        (VLLM.replace(" 5.0", " 0"), "no step was counted"),
        (VLLM.replace("num_drafts_total", "num_draughts_total"), "`vllm:spec_decode_num_drafts_total` is missing"),
        (
            TRTLLM.replace('_position="0",worker="1"} 3', '_position="0",worker="1"} 9', 1),
            "drafts were longer where they were better",
        ),
        (TRTLLM.replace("drafted_tokens_total", "draft_total"), "the other totals have no positions"),
        (VLLM.replace('position="1"', f'position="{"9" * 5000}"'), "must have a position"),
        ("{}", "neither `draft_count`"),
        ("{", "neither JSON nor lines of JSON"),
        ('{"draft_count": [1, 1], "accept_count": [1, -1]}', "`accept_count` must be counts"),
        ('{"draft_count": [3, 3], "accept_count": [2, 1]}', "must begin alike"),
    ],
)
def test_counters_that_are_not_so(text, message):
    with pytest.raises(TraceError, match=message):
        read_counters(text)


def test_position_0_alone_is_told_of():
    lines = [line for line in TRTLLM.splitlines() if '"0"' in line and 'position="0"' in line]
    assert "C++ runtime" in read_counters("\n".join(lines)).chain.assumed[-1]


def test_iteration_statistics_tell_of_single_drafts_only():
    row = {
        "iter": 3,
        "specDecodingStats": {"numDraftTokens": 4, "numAcceptedTokens": 3, "numRequestsWithDraftTokens": 4},
    }
    found = read_counters("\n".join(json.dumps(row) for _ in range(5)))
    assert (found.engine, found.chain) == ("tensorrt-llm", Chain((0.75,), 20))
    row["specDecodingStats"]["numDraftTokens"] = 12
    with pytest.raises(TraceError, match=r"have 12 drafted and 3 accepted tokens of 4 drafts, but no positions"):
        read_counters(json.dumps([row]))
    with pytest.raises(TraceError, match="omit --before"):
        read_counters(json.dumps([row]), before="{}")


# --- responses

SGLANG = {
    "spec_accept_rate": 0.41,
    "spec_accept_length": 2.64,
    "spec_num_correct_drafts": 207,
    "spec_num_proposed_drafts": 625,
    "spec_verify_ct": 125,
    "spec_correct_drafts_histogram": [38, 30, 21, 17, 11, 8],
}
VLLM_RESPONSE = {
    "mean_acceptance_length": 2.4,
    "draft_acceptance_rate": 0.5,
    "acceptance_histogram": [1, 2, 1, 1],
    "num_spec_steps": 5,
    "num_accepted_draft_tokens": 7,
    "num_draft_tokens": 15,
    "num_spec_tokens": 3,
    "per_step_accepted": [3, 0, 1, 2, 1],
    "per_step_drafted": [3, 3, 3, 3, 3],
}
TRTLLM_RESPONSE = {
    "acceptance_rate": 7 / 15,
    "acceptance_histogram": [1, 2, 1, 1],
    "num_spec_steps": 5,
    "total_accepted_draft_tokens": 7,
    "total_draft_tokens": 15,
    "num_spec_tokens": 3,
}


@pytest.mark.parametrize("response", [VLLM_RESPONSE, TRTLLM_RESPONSE])
@pytest.mark.parametrize("lines", [True, False])
def test_responses_become_requests(tmp_path, response, lines):
    bodies = [{"id": name, "choices": [{"metrics": {"speculative_decoding": response}}]} for name in "abc"]
    bodies.append({"choices": []})
    text = "\n".join(map(json.dumps, bodies)) if lines else json.dumps(bodies)
    (tmp_path / "answers.jsonl").write_text(text)
    trace, said = bring(tmp_path, tmp_path / "answers.jsonl", "responses")
    counts = replay_tree(Tree.chain(3), trace)
    assert counts.steps.tolist() == [5, 5, 5]
    assert counts.tau == pytest.approx(2.4)
    assert counts.accepted_counts.tolist() == [3, 6, 3, 3]
    assert "Assumed: only rank 0 was counted" in said
    if "per_step_accepted" in response:
        assert [(row == 0).sum() for row in trace.rank[[0, 4, 5, 7, 10]]] == [3, 0, 1, 2, 1]


def test_sglangs_responses(tmp_path):
    bodies = [{"meta_info": {"id": name, **SGLANG}} for name in "ab"]
    chunk = {"meta_info": {"id": "a", **SGLANG, "spec_verify_ct": 1, "spec_correct_drafts_histogram": [0, 1]}}
    chunk["meta_info"]["spec_num_correct_drafts"] = 1
    chain = read_responses("\n".join(map(json.dumps, [chunk, *bodies])))
    assert chain.survival == tuple(count / 250 for count in (174, 114, 72, 38, 16))
    assert (chain.steps, len(chain.requests)) == (250, 2)
    assert "ends with the most drafts that a step accepted" in chain.assumed[-1]
    deeper = read_responses(json.dumps(bodies), depth=7)
    assert deeper.survival[5:] == (0.0, 0.0)
    assert chain.assumed[-1] not in deeper.assumed
    old = {key: value for key, value in SGLANG.items() if "histogram" not in key}
    old["spec_accept_histogram"] = SGLANG["spec_correct_drafts_histogram"]
    assert read_responses(json.dumps(old)).survival == chain.survival
    (tmp_path / "r.json").write_text(json.dumps(bodies))
    trace, _ = bring(tmp_path, tmp_path / "r.json", "responses")
    assert replay_tree(Tree.chain(5), trace).tau == pytest.approx(1 + 414 / 250)


def test_uneven_drafts_of_responses():
    uneven = VLLM_RESPONSE | {"per_step_drafted": [3, 3, 1, 2, 1], "num_draft_tokens": 10}
    chain = read_responses(json.dumps(uneven))
    assert chain.survival == (0.8, 2 / 3, 1 / 2)
    assert chain.requests == ()
    kept_as_rejected = read_responses(json.dumps(uneven), uneven=True)
    assert kept_as_rejected.survival == (0.8, 0.4, 0.2)
    assert kept_as_rejected.requests == ((3, 0, 1, 2, 1),)
    summary = {key: value for key, value in uneven.items() if not key.startswith("per_step")}
    with pytest.raises(TraceError, match="10 tokens were drafted in 5 steps of up to 3"):
        read_responses(json.dumps(summary))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"acceptance_histogram": [1, 2, 1, -1]}, "`acceptance_histogram` must be a list of counts"),
        ({"acceptance_histogram": None}, "no response has spec_correct_drafts_histogram"),
        ({"acceptance_histogram": [0, 0]}, "no response has"),
        ({"num_spec_steps": 6}, "response 0: num_spec_steps is 6, the histogram has 5"),
        ({"num_accepted_draft_tokens": 8}, "response 0: num_accepted_draft_tokens is 8, the histogram has 7"),
        ({"num_draft_tokens": "15"}, "`num_draft_tokens` must be a count, found '15'"),
        ({"num_spec_tokens": 2}, r"`num_spec_tokens` must be in 3\.\.64, found 2"),
        ({"num_spec_tokens": 10**12}, r"`num_spec_tokens` must be in 3\.\.64"),
        ({"acceptance_histogram": [10**15]}, "at most 65 entries and 1000000 steps"),
        ({"num_draft_tokens": 10**15}, "are more than 64 per step"),
        ({"per_step_accepted": [3, 0, 1, 2, 2]}, "do not fit the histogram"),
        ({"per_step_drafted": [3]}, "do not fit the histogram"),
        ({"per_step_drafted": None}, "`per_step_drafted` must be a list of counts"),
        ({"per_step_drafted": [2, 3, 3, 3, 3]}, "a step accepted more than it drafted"),
    ],
)
def test_responses_that_are_not_so(change, message):
    with pytest.raises(TraceError, match=message):
        read_responses(json.dumps(VLLM_RESPONSE | change))


def test_depths_and_texts_of_responses_that_are_refused():
    with pytest.raises(TraceError, match="a step accepted 3 drafts, more than the depth of 2"):
        read_responses(json.dumps(VLLM_RESPONSE), depth=2)
    with pytest.raises(TraceError, match="neither JSON nor lines of JSON"):
        read_responses("SpecDecoding metrics: ...")


# --- log lines


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
    chain = read_log(text)
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
        read_log(text.replace("387", "300"))
    with pytest.raises(TraceError, match="a line has no numbers of accepted and drafted tokens"):
        read_log(text.replace("Drafted: 387 tokens, ", ""))
    with pytest.raises(TraceError, match="it has results of 2 to 3 positions"):
        read_log(text.replace(", 0.264", "").replace("387", "258").replace("150", "116"))


LLAMA_REQUEST = """slot print_timing: id  3 | task 0 | draft acceptance = 0.77945 (  311 accepted /   399 generated), \
mean len =  2.55
slot print_timing: id  3 | task 0 |      acc per pos = (0.850, 0.705)
"""
LLAMA_WHOLE = (
    "0.34.089.513 I spec common_specu: statistics        draft-mtp: #calls(b,g,a) =    1    200    200, #gen drafts = "
    "   200, #acc drafts =   170, #gen tokens =    399, #acc tokens =   311, #mean acc len = 2.55, #acc rate/pos = "
    "(0.850, 0.705), dur(b,g,a) = 0.004, 1011.730, 0.465 ms\n"
)


def test_lines_of_llama_cpp():
    """Lines of a run of 200 steps, as its log has them; the last line of the whole run counts."""
    earlier = LLAMA_WHOLE.replace("200,", "100,").replace("0.850, 0.705", "0.100, 0.000")
    for text in (LLAMA_REQUEST, LLAMA_WHOLE, earlier + LLAMA_REQUEST + LLAMA_WHOLE):
        chain = read_log(text)
        assert (chain.survival, chain.steps) == ((0.85, 0.705), 200)
    old = "draft acceptance = 0.90000 (   90 accepted /   100 generated), mean acceptance length =  4.50, acceptance "
    assert read_log(old + "rate per position = (1.000, 0.800)").survival == (1.0, 0.8)
    idle = (
        "statistics        ngram-mod: #calls(b,g,a) =    1      7      0, #gen drafts =      0, #acc tokens =     0\n"
    )
    assert read_log(idle + LLAMA_WHOLE).steps == 200
    with pytest.raises(TraceError, match="it holds statistics of draft-mtp and ngram-mod"):
        read_log(LLAMA_WHOLE + LLAMA_WHOLE.replace("draft-mtp", "ngram-mod"))
    with pytest.raises(TraceError, match="no line prints acceptance by position"):
        read_log(LLAMA_REQUEST.splitlines()[0])
    line = "SpecDecoding metrics: Accepted: 1 tokens, Drafted: 2 tokens, Per-position acceptance rate: 0.500\n"
    with pytest.raises(TraceError, match="lines of several engines"):
        read_log(LLAMA_WHOLE + line)


def test_runs_of_llama_cpp_that_were_started_anew_are_all_counted():
    """Counts fall where a server was restarted: the last line of each run tells of it whole."""
    few = LLAMA_WHOLE.replace("200    200", "50    50").replace("311", "50").replace("0.850, 0.705", "0.600, 0.400")
    half = LLAMA_WHOLE.replace("200    200", "100    100").replace("311", "156")
    chain = read_log(half + LLAMA_WHOLE + few)
    assert chain.steps == 250
    assert chain.survival == pytest.approx([(200 * 0.85 + 50 * 0.6) / 250, (200 * 0.705 + 50 * 0.4) / 250])


@pytest.mark.parametrize("counts", ["120    50", "120    210"])
def test_a_run_that_drafts_less_or_keeps_less_is_another(counts):
    """Any count that falls shows that a server was started anew: of steps that drafted, or of tokens kept."""
    half = LLAMA_WHOLE.replace("200    200", "100    100").replace("311", "156")
    steps = int(counts.split()[1])
    kept = 50 if steps == 50 else 150
    rates = f"{0.75 * kept / steps:.3f}, {0.25 * kept / steps:.3f}"
    other = LLAMA_WHOLE.replace("200    200", counts).replace("311", str(kept)).replace("0.850, 0.705", rates)
    assert read_log(half + other).steps == 100 + steps


def test_what_statistics_of_llama_cpp_leave_out_is_told():
    idle = LLAMA_WHOLE.replace("1    200    200", "4    542    200")
    assert read_log(idle).assumed[1] == "342 of 542 steps drafted nothing and are not in the trace"
    with pytest.raises(TraceError, match="have 527 accepted tokens, their rates by position make 311: positions are"):
        read_log(LLAMA_WHOLE.replace("#acc tokens =   311", "#acc tokens =   527"))


def test_an_interval_with_a_few_shorter_drafts_is_taken():
    """vLLM shortens a draft that would pass the longest context: 15 of 5000 tokens here."""
    line = "SpecDecoding metrics: Accepted: {} tokens, Drafted: {} tokens, Per-position acceptance rate: {}\n"
    rates = "0.800, 0.640, 0.500, 0.300, 0.200"
    chain = read_log(line.format(2440, 4985, rates))
    assert chain.steps == 1000
    assert chain.survival == (0.8, 0.64, 0.5, 0.3, 0.2)
    assert "0.3% of the tokens that full drafts would have were not drafted" in chain.assumed[1]
    with pytest.raises(TraceError, match="the length of drafts changed"):
        read_log(line.format(2440, 4800, rates))


def test_counters_to_begin_with_must_be_counters():
    later = json.dumps({"draft_count": [5, 4], "accept_count": [5, 3]})
    with pytest.raises(TraceError, match="--before must also hold `draft_count`"):
        read_counters(later, before='{"x": 1}')
    with pytest.raises(TraceError, match="must begin alike"):
        read_counters(json.dumps({"draft_count": [5, 4], "accept_count": []}))


@pytest.mark.parametrize("drafted", ["x", [-1], None])
def test_steps_that_do_not_fit_a_response_are_refused(drafted):
    held = {"acceptance_histogram": [1, 1, 1], "num_draft_tokens": 1, "per_step_drafted": drafted}
    held |= {"per_step_accepted": [0, 1, 2]} if drafted is None else {}
    with pytest.raises(TraceError, match=r"response 0: `per_step_\w+` must be a list of counts"):
        read_responses(json.dumps(held))


def test_a_stream_of_events_is_read_as_its_chunks():
    chunk = json.dumps(VLLM_RESPONSE)
    lines = [chunk, f"event: message\ndata: {chunk}\n\n: ping\n\ndata: [DONE]\n"]
    plain, stream = (read_responses(text) for text in lines)
    assert stream == plain


def test_a_counted_trace_can_be_searched(tmp_path):
    """Nothing of the format keeps an imported chain from the main job: it has requests to hold out."""
    (tmp_path / "m").write_text(scaled(VLLM, 400))
    bring(tmp_path, tmp_path / "m", "counters", "--seed", "3")
    first, rest = load_trace(tmp_path / "out.npz").split(share=0.5, rng=np.random.default_rng(0))
    assert (first.requests, rest.requests) == (40, 40)
    assert replay_tree(Tree.chain(2), rest).tau == pytest.approx(2.2, abs=0.15)  # 1000 steps: six standard deviations


# --- what no one foresaw


@settings(max_examples=examples(300))
@given(st.sampled_from([*TEXTS.values(), MLC_TEXT, json.dumps(VLLM_RESPONSE), LLAMA_WHOLE]), st.data())
def test_damaged_texts_are_read_or_refused(text, data):
    """A stretch is cut out, doubled or replaced: whatever is left, no other error than ours."""
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    middle = data.draw(
        st.sampled_from(["", text[start:end] * 2, "-1", "1e999", "NaN", "[", "}", "null", "9" * 5000, "\0"])
    )
    damaged = text[:start] + middle + text[end:]
    for read in (read_counters, read_responses, read_log):
        try:
            found = read(damaged)
        except TraceError:
            continue
        chain = found if isinstance(found, Chain) else found.chain
        assert 1 <= chain.tau <= 65
