"""Outputs of engines and benchmarks, recognised by their content; those with means alone are refused.

vLLM's forms follow vllm/benchmarks/serve.py, vllm/v1/metrics/reader.py and the example spec_decode_offline.py of vLLM
0.32.0; AIPerf's its documentation (spec-decode-metrics, July 2026); SGLang's its threads #18332 and #33518 and
scripts/playground/bench_speculative.py.
"""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.slow_params import examples
from tests.treeopt.traces.importers.readers.test_formats import bring, turned_away
from treeopt.errors import TraceError
from treeopt.replay.static_tree import replay_tree
from treeopt.traces.importers.readers.engine_logs import read_log
from treeopt.traces.importers.readers.engine_outputs import KINDS, kind_of, read_output
from treeopt.traces.importers.readers.printed_rates import Printed, printed_chain, unrounded
from treeopt.traces.importers.readers.prometheus_counters import read_counters
from treeopt.tree import Tree

SERVE = {
    "endpoint_type": "openai-chat",
    "max_concurrency": 4,
    "spec_decode_acceptance_rate": 60.0,
    "spec_decode_acceptance_length": 2.8,
    "spec_decode_num_drafts": 2000,
    "spec_decode_draft_tokens": 6000,
    "spec_decode_accepted_tokens": 3600,
    "spec_decode_per_position_acceptance_rates": [0.8, 0.6, 0.4],
}
TABLE = """============ Serving Benchmark Result ============
---------------Speculative Decoding---------------
Acceptance rate (%):                     60.00
Acceptance length:                       2.80
Drafts:                                  2000
Draft tokens:                            6000
Accepted tokens:                         3600
Per-position acceptance (%):
  Position 0:                            80.00
  Position 1:                            60.00
  Position 2:                            40.00
==================================================
"""
PRINTS = """--------------------------------------------------
total_num_output_tokens: 5600
num_drafts: 2000
num_draft_tokens: 6000
num_accepted_tokens: 3600
mean acceptance length: 2.80
--------------------------------------------------
acceptance at token 0: 0.80
acceptance at token 1: 0.60
acceptance at token 2: 0.40
"""
LABELS = {"engine": "0", "model_name": "m"}
METRICS = [
    {"name": "vllm:num_requests_running", "labels": LABELS, "value": 0.0},
    {"name": "vllm:spec_decode_num_drafts", "labels": LABELS, "value": 2000},
    {"name": "vllm:spec_decode_num_draft_tokens", "labels": LABELS, "value": 6000},
    {"name": "vllm:spec_decode_num_accepted_tokens", "labels": LABELS, "value": 3600},
    {"name": "vllm:spec_decode_num_accepted_tokens_per_pos", "labels": LABELS, "values": [1600, 1200, 800]},
]
PRINTED = "\n".join(
    f"{'Vector' if 'values' in metric else 'Counter'}(name={metric['name']!r}, labels={metric['labels']!r}, "
    + (f"values={metric['values']!r})" if "values" in metric else f"value={metric['value']!r})")
    for metric in METRICS[1:]
)
HISTOGRAM = {"0": 400, "1": 400, "2": 400, "3": 800}
AIPERF = {
    "engine": "vllm",
    "acceptance_histogram": HISTOGRAM,
    "num_accepted_draft_tokens": 3600,
    "num_draft_tokens": 6000,
    "num_spec_steps": 2000,
    "num_spec_tokens": 3,
}
RESPONSE = json.dumps(
    {"choices": [], "metrics": {"speculative_decoding": AIPERF | {"acceptance_histogram": [400, 400, 400, 800]}}}
)
SGLANG_LINE = (
    "[2026-02-06 23:42:16] Finish: obj=GenerateReqInput(rid='a', stream=True), out={'meta_info': {'id': 'a', "
    "'spec_accept_rate': 0.6, 'spec_accept_length': 2.8, 'spec_accept_histogram': [400, 400, 400, 800], "
    "'spec_verify_ct': 2000}}\n"
)
BOTH_NAMES = SGLANG_LINE.replace(
    "'spec_accept_histogram'", "'spec_correct_drafts_histogram': [400, 400, 400, 800], 'spec_accept_histogram'"
)
META = json.dumps({"id": "a", "spec_verify_ct": 2000, "spec_correct_drafts_histogram": [400, 400, 400, 800]})
OLD_PRINTS = PRINTS[: PRINTS.index("acceptance at token 0")] + "".join(
    f"acceptance at token {number}:{rate:.2f}\n" for number, rate in enumerate((1, 0.8, 0.6, 0.4))
)


def half(result):
    """The result of a run that is half as long."""
    return {key: value // 2 if isinstance(value, int) else value for key, value in result.items()}


OUTPUTS = {
    "serve": (json.dumps(SERVE), "bench-serve"),
    "serve, appended": (json.dumps(SERVE) + "\n", "bench-serve"),
    "table": (TABLE, "printed"),
    "prints": (PRINTS, "printed"),
    "prints of a log": ("INFO 11-25 " + PRINTS.replace("\n", "\nINFO 11-25 "), "printed"),
    "get_metrics": (json.dumps(METRICS, indent=1), "counters"),
    "get_metrics, printed": (f"[{PRINTED}]", "counters"),
    "aiperf records": (json.dumps({"metadata": {}, "metrics": {}, "spec_decode_acceptance": AIPERF}), "responses"),
    "aiperf summary": (json.dumps({"pooled_spec_decode_acceptance_histogram": HISTOGRAM}), "responses"),
    "aiperf raw": (json.dumps({"responses": [{"text": f"data: {RESPONSE}"}, "histogram"]}), "responses"),
    "sglang log": ("[2026-02-06 23:42:16] INFO\n" + SGLANG_LINE, "responses"),
    "sglang log, both names": ("[2026-02-06 23:42:16] INFO\n" + BOTH_NAMES, "responses"),
    "sglang log of JSON and lines": (f"{META}\n[2026-02-06] Decode batch, accept len: 2.80\n", "responses"),
    "sglang response, printed by Python": (repr({"text": "a", "meta_info": json.loads(META)}), "responses"),
    "serve, files joined": (json.dumps(half(SERVE)) + json.dumps(half(SERVE), indent=1), "bench-serve"),
    "prints of 2025, the bonus as token 0": (OLD_PRINTS, "printed"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_every_container_of_the_same_counts_is_the_same_chain(name):
    text, kind = OUTPUTS[name]
    output = read_output(text, {})
    assert output.kind == kind
    assert output.chain.survival == pytest.approx((0.8, 0.6, 0.4), abs=1e-12)
    assert output.chain.steps == 2000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            SGLANG_LINE.replace("400, 400", "400 400"),
            r"`spec_accept_histogram` must be a list of counts, found \['400 400",
        ),
        (SGLANG_LINE.replace("[400", f"[{10**400}"), "`spec_accept_histogram` must be a list of counts, found"),
        (PRINTED.replace("1600, 1200", "1600 1200"), "accepted_tokens_per_pos` must be a count, found '1600 1200'"),
        (PRINTED.replace("2000", f"{10**400}"), "`vllm:spec_decode_num_drafts` must be a count, found"),
        (json.dumps([METRICS[1] | {"value": 10**400}]), "`vllm:spec_decode_num_drafts` must be a count, found 1000"),
        (f"{META}\n{META[:-9]}\nINFO", r"line 2: neither JSON nor lines of JSON"),
        (PRINTS.replace("2.80", "3.10"), "rates by token add up to 1.80, which a mean length of 3.1 does not fit"),
    ],
)
def test_what_is_no_count_is_named(text, message):
    with pytest.raises(TraceError, match=message):
        read_output(text, {})


@pytest.mark.parametrize("kind", ["engine", "counters", "responses", "log"])
def test_a_file_is_recognised_by_its_content(tmp_path, kind):
    (tmp_path / "bench.png").write_text(TABLE)
    trace, said = bring(tmp_path, tmp_path / "bench.png", kind)
    assert replay_tree(Tree.chain(3), trace).tau == pytest.approx(2.8, abs=1e-12)
    assert trace.meta["imported"]["format"] == "printed"
    assert "Assumed: rates have 4 decimals" in said


def test_results_of_several_runs_are_pooled_as_windows():
    other = SERVE | {
        "spec_decode_num_drafts": 1000,
        "spec_decode_draft_tokens": 3000,
        "spec_decode_accepted_tokens": 1200,
        "spec_decode_per_position_acceptance_rates": [0.5, 0.4, 0.3],
    }
    chain = read_output(json.dumps(SERVE) + "\n" + json.dumps(other), {}).chain
    assert chain.survival == pytest.approx((2100 / 3000, 1600 / 3000, 1100 / 3000))
    assert chain.windows == ((400, 400, 400, 800), (500, 100, 100, 300))
    assert read_output(TABLE + TABLE, {}).chain.steps == 4000
    with pytest.raises(TraceError, match="it has results of 2 to 3 positions"):
        read_output(
            TABLE + TABLE.replace("  Position 2:                            40.00\n", "").replace("6000", "4000"), {}
        )


def test_engines_of_one_scrape_are_summed():
    page = "".join(
        f'vllm:spec_decode_num_{name}_total{{engine="{engine}",instance="{host}",model_name="m"{more}}} {value}\n'
        for engine in "01"
        for host in ("a:8000", "b:8000")
        for name, more, value in (
            ("drafts", "", 5),
            ("draft_tokens", "", 10),
            ("accepted_tokens", "", 5),
            ("accepted_tokens_per_pos", ',position="0"', 4),
            ("accepted_tokens_per_pos", ',position="1"', 1),
        )
    )
    idle = 'llamacpp:spec_decode_num_drafts_total 0\nlmdeploy:spec_decode_num_drafts_total{engine="0"} 0.0\n'
    found = read_counters(page + idle)
    assert (found.engine, found.chain.steps, found.chain.survival) == ("vllm", 20, (0.8, 0.2))
    with pytest.raises(TraceError, match=r"line 6 repeats `vllm:spec_decode_num_drafts_total` with another value"):
        read_counters("\n".join(page.splitlines()[:5]) + "\n" + page.replace("} 5\n", "} 6\n"))


def test_counters_of_llama_cpp_whose_drafts_were_cut_are_read(tmp_path):
    """90 drafts of 5, each text's last one cut at max_tokens: 12 % of the tokens were never drafted."""
    page = """llamacpp:spec_decode_num_drafts_total 90
llamacpp:spec_decode_num_draft_tokens_total 396
llamacpp:spec_decode_num_accepted_tokens_total 167
"""
    for position, count in enumerate((70, 50, 30, 12, 5)):
        page += f'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="{position}"}} {count}\n'
    (tmp_path / "m").write_text(page)
    trace, said = bring(tmp_path, tmp_path / "m", "engine")
    assert replay_tree(Tree.chain(5), trace).tau == pytest.approx(1 + 167 / 90)
    assert "12.0% of the tokens that steps of 5 would have were not drafted: they count as rejected" in said
    assert "llama.cpp cuts drafts at max_tokens" in said
    with pytest.raises(TraceError, match="396 tokens were drafted in 90 steps of up to 5"):
        read_counters(page.replace("llamacpp", "vllm"))


def test_lines_of_llama_cpps_requests_are_its_requests():
    """Rates of three decimals and exact totals determine the counts; the statistics of the run say the share cut."""
    line = (
        "slot print_timing: id  1 | task {} | draft acceptance = 0.64479 (  167 accepted /   259 generated), mean len "
        "=  2.92\nslot print_timing: id  1 | task {} |      acc per pos = (0.805, 0.632, 0.483)\n"
    )
    chain = read_log(line.format(0, 0) + line.format(1, 1))
    assert [len(request) for request in chain.requests] == [87, 87]
    assert chain.survival == (70 / 87, 55 / 87, 42 / 87)
    assert "0.8% of the tokens that full drafts would have were not drafted" in chain.assumed[1]
    assert not chain.ordered


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[2026-04-05 15:25:25 TP0] Decode batch, #running-req: 1, accept len: 2.80, accept rate: 0.60", "ask SGLang"),
        ('{"internal_states": [{"avg_spec_accept_length": 2.8}]}', "spec_correct_drafts_histogram"),
        ('sglang:spec_accept_length{model_name="m"} 2.8', "sglext of requests"),
        ("Concurrency:                 142.34\nAccept length:                           5.86\n", "ask SGLang"),
        (
            '{"batch_size": 1, "steps": 3, "topk": 1, "num_draft_tokens": 4, "acc_length": 2.5, "step_time": 0.01}',
            "step times, which `treeopt times` reads",
        ),
        ('{"timings": {"predicted_n": 280, "draft_n": 300, "draft_n_accepted": 180}}', "LLAMA_TRACE=1"),
        ("slot print_timing: draft acceptance = 0.64479 (  167 accepted /   259 generated)", "--verbosity 4"),
        ("num_drafts: 5\nnum_accepted_tokens: 7\nmean acceptance length: 2.40\n", "ask vLLM for positions"),
        (json.dumps({**SERVE, "spec_decode_per_position_acceptance_rates": []}), "ask vLLM for positions"),
        ("Speculative metrics: Draft acceptance rate: 0.6, System efficiency: 0.5", "ask vLLM for positions"),
        ('{"acceptanceLength": 2.5}', "ask TensorRT-LLM for positions"),
        ('{"stats": {"acceptance_percentiles": {"p50": 2.0}}}', "means of TensorRT-LLM's trtllm-bench alone"),
        ("= ACCEPTANCE BREAKDOWN (EAGLE)\n===\n[AL] AVG: 2.75\n", "ask TensorRT-LLM for positions"),
        ("Acceptance Rate Details\n---\n\n[AR] MINIMUM: 1.00\n[AR] AVERAGE: 2.75\n", "ask TensorRT-LLM for positions"),
        ('{"total_spec_decode_steps": {"avg": 128}, "token_weighted_acceptance_length": {}}', "ask AIPerf"),
        ('{"main_model_metrics": {}, "num_accepted_tokens": 5}', "m_batch_sizes"),
        ('{"choices": [{"decoding_steps": [5], "new_tokens": [14]}]}', "ask Spec-Bench"),
        ("llamacpp:spec_decode_num_drafts_total 5\nllamacpp:spec_decode_num_draft_tokens_total 9\n"
         "llamacpp:spec_decode_num_accepted_tokens_total 4\n", "ask llama-server for positions"),
        ('vllm:spec_decode_num_draft_tokens_total{model_name="m"} 6\n'
         'vllm:spec_decode_num_emitted_tokens_total{model_name="m"} 5\n', "ask vLLM for positions"),
        ("statistics draft-mtp: #gen tokens = 1585, #acc tokens = 1252, dur(b,g,a) = 1.0", "LLAMA_TRACE=1"),
        ('sglang:spec_total_accept_rate_per_position{position="0"} 0.8', "ask SGLang"),
        ('{"batch_sizes": [1, 2, 4, 64], "accept_length": 2.8}', "ask SGLang"),
        ('{"cuda_graph_config": {"batch_sizes": [1, 2, 4]}, "stats": {"acceptance_length": 2.8}}', "ask the engine"),
    ],
)  # fmt: skip
def test_means_alone_are_refused_with_what_to_ask_of_that_engine(text, words):
    with pytest.raises(TraceError) as refused:
        read_output(text, {})
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["hello\n", "{}", "[1, 2]", '{"a": [1', "\0", "3\n4\n"])
def test_what_nothing_reads_is_refused_with_the_formats_known(tmp_path, text):
    (tmp_path / "x").write_text(text)
    turned_away(
        tmp_path, tmp_path / "x", "engine", words=("x: nothing in it is known; known are counters", "LLAMA_TRACE")
    )


def test_settings_belong_to_the_kind_that_is_found(tmp_path):
    (tmp_path / "t").write_text(TABLE)
    more = ("--before", tmp_path / "t")
    turned_away(tmp_path, tmp_path / "t", "counters", *more, words=("--before does not apply to printed",), code=2)
    assert all(kind_of(text) in KINDS for text, _ in OUTPUTS.values())


@settings(max_examples=examples(100))
@given(st.sampled_from([text for text, _ in OUTPUTS.values()]), st.data())
def test_damaged_outputs_are_read_or_refused(text, data):
    """A stretch is cut out, doubled or replaced: whatever is left, no other error than ours."""
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    middle = data.draw(st.sampled_from(["", text[start:end] * 2, "-1", "1e999", "NaN", "[", "}", "null", "9" * 5000]))
    try:
        chain = read_output(text[:start] + middle + text[end:], {}).chain
    except TraceError:
        return
    assert 1 <= chain.tau <= 65


# --- rounded rates


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
        ({"spec_decode_num_drafts": 0}, "result 0: no step was counted"),
        ({"spec_decode_num_drafts": "5"}, "result 0: `spec_decode_num_drafts` must be a count, found '5'"),
        ({"spec_decode_draft_tokens": 10**9}, "result 0: 1000000000 tokens drafted in 2000 drafts of 3"),
        ({"spec_decode_draft_tokens": 4500}, "4500 tokens were drafted in 2000 steps of up to 3: lengths differed"),
        ({"spec_decode_per_position_acceptance_rates": [80, 60, 40]}, "shares in 0..1"),
        ({"spec_decode_per_position_acceptance_rates": {"0": 1}}, "must be a list of rates"),
        ({"spec_decode_accepted_tokens": 5000}, "positions are missing"),
    ],
)
def test_results_that_are_not_so(change, message):
    with pytest.raises(TraceError, match=message):
        read_output(json.dumps(SERVE | change), {})


def test_printed_positions_must_follow_each_other():
    with pytest.raises(TraceError, match="position 2 is printed where position 1 must be"):
        read_output(PRINTS.replace("acceptance at token 1: 0.60\n", ""), {})


def test_the_command_warns_where_no_draft_was_accepted(tmp_path):
    none = {"spec_decode_accepted_tokens": 0, "spec_decode_per_position_acceptance_rates": [0.0, 0.0, 0.0]}
    (tmp_path / "b.json").write_text(json.dumps(SERVE | none))
    trace, said = bring(tmp_path, tmp_path / "b.json", "engine")
    assert "Warning: NO DRAFT WAS ACCEPTED in 2000 steps: the engine loaded a drafter that was not trained" in said
    assert replay_tree(Tree.chain(3), trace).tau == 1.0
