"""Printed acceptance: log lines, results of benchmarks, rates as people paste them; the counts behind them."""

import json

import pytest

from tests.helpers.source_texts import LOG, SERVE, bring, chain_of, reading, turned_away
from treeopt.errors import TraceError
from treeopt.replay.static_tree import replay_tree
from treeopt.traces.importers.sources.bench_serve import Printed, printed_chain, unrounded
from treeopt.traces.importers.trace_source import read_output
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


MAX = "".join(
    f'maxserve_spec_decode_acceptance_rate_per_position_{part}{{position="{place}"}} {value}\n'
    for place, total in enumerate((40000.0, 30000.0, 20000.0))
    for part, value in (("sum", total), ("count", 500))
)
ATOM = (
    "[MTP Stats         ] Average toks/fwd: 2.80, Accepted/Total Draft tokens: {}/{}, Acceptance rate: 60.00%, "
    "Accepted tokens distribution: {{0: '20.00%', 1: '20.00%', 2: '20.00%', 3: '40.00%'}}\n"
)
DEEPSPEC = """\
+----------+------------+---------------+---------------+---------------+
| dataset  | accept_len | accept_rate@0 | accept_rate@1 | accept_rate@2 |
+----------+------------+---------------+---------------+---------------+
| gsm8k    | 2.95       | 0.8500        | 0.6500        | 0.4500        |
| mt-bench | 2.65       | 0.7500        | 0.5500        | 0.3500        |
"""
IK_LLAMA = """\
| task | rounds |    accepted |    rate | pos accept        |
|------|--------|-------------|---------|-------------------|
| code |   1500 |   2700/4500 |  60.00% | 80.0% 60.0% 40.0% |
| qa   |    500 |    900/1500 |  60.00% | 80.0% 60.0% 40.0% |
"""
PULL_REQUEST = """\
Number of draft proposals: 2,000
Number of accepted tokens: 3,600
Acceptance rate at token 0: 0.80
Acceptance rate at token 1: 0.60
Acceptance rate at token 2: 0.40
"""
SWEEP = (
    "max_concurrency,spec_decode_num_drafts,spec_decode_per_position_acceptance_rates\n"
    '8,1200,"[0.8, 0.6, 0.4]"\n16,800,"[0.8, 0.6, 0.4]"\n'
)
NEMO = '{"num_drafts": 2000, "acceptance_rate": 60.0, "per_position_acceptance_rates": [0.8, 0.6, 0.4]}'


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        (MAX, None),
        (ATOM.format(1800, 3000) + ATOM.format(3600, 6000), 2000),
        (DEEPSPEC, None),
        (IK_LLAMA, 2000),
        (PULL_REQUEST, 2000),
        (SWEEP, 2000),
        (NEMO, 2000),
        (
            '{"conditional_accept_rates": [0.8, 0.75, 0.667], "marginal_accept_rates": [0.8, 0.6, 0.4]}',
            None,
        ),  # ModelOpt
        (
            '{"num_drafts": 2000, "accepted_per_pos": [1600, 1200, 800], "acceptance_rate_per_pos": [0.8, 0.6, 0.4]}',
            2000,
        ),
        ("Per-position acceptance rate: 0.800, 0.600, 0.400", None),
        (
            "| run | pos 1 | pos 2 | pos 3 | accepted |\n|---|\n| plain | - | - | | |\n| MTP | 0.8 | 0.6 | 0.4 | |\n",
            None,
        ),
        ('{\n "per_position_acceptance": [\n  0.8,\n  0.6,\n  0.4\n ]\n}', None),
        ("acceptance rate at position 1: 80%, at position 2: 60%, at position 3: 40%", None),
        ("| Position | acceptance rate | note |\n|---|---|---|\n| 0 | 0.8 | |\n| 1 | 0.6 | |\n| 2 | 0.4 | |\n", None),
        ("| Position | acceptance rate |\n|---|---|\n| 0 | 0.8 |\n| 1 | 0.6 |\n| 2 | 0.4 |\n", None),
        (
            "|Metric|Value|\n|---|---|\n| Num_drafts | 2000 |\n| **Per-position acceptance rate** | 0.8, 0.6, 0.4 |",
            2000,
        ),
        ("set,accept_pos_0,accept_pos_1,accept_pos_2,steps\na,0.9,0.7,0.5,1000\nb,0.7,0.5,0.3,1000\n", 2000),
        ("Drafts: 2000\nPer-position acceptance (%):\n Position 0:  80.0\n Position 1: 60.0\n Position 2: 40.0", 2000),
        ("position\tacceptance_rate\n0\t0.8\n1\t0.6\n2\t0.4\n", None),
        ("k,pos_0,pos_1,pos_2,accept_length\n3,0.8,0.6,0.4,2.8\n", None),
    ],
)
def test_rates_are_read(text, steps):
    found = reading(text)
    assert (found.kind, found.chain.steps) == ("rates", steps)
    assert found.chain.survival == pytest.approx((0.8, 0.6, 0.4))


def test_rows_are_pooled_by_their_steps():
    text = IK_LLAMA.replace("80.0% 60.0% 40.0% |\n| qa", "60.0% 40.0% 20.0% |\n| qa")
    assert chain_of(text).survival == pytest.approx((0.65, 0.45, 0.25))
    assert "the 2 rows do not say how many steps they cover" in chain_of(DEEPSPEC).assumed[1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Per-position acceptance rate: 0.4, 0.6", "is accepted more often"),
        ("per-position acceptance: 80%, 0.6, 0.4\n", "rates mix per cent and shares"),
        ("Conditional acceptance per position: 0.80, 0.75\n", "give `--acceptance 0.8,0.6`"),
        ("Conditional acceptance: pos 1: 80%, pos 2: 75%", "give `--acceptance 0.8,0.6`"),
        ("Acceptance: pos 1: 80% (800/1000), pos 2: 75% (600/800)", "give `--acceptance 0.8,0.6`"),
        ("A per-position acceptance: 0.8, 0.6\nB per-position acceptance: 0.7, 0.5\n", "it has 2 lists"),
        ("Mean acceptance length: 3.50\nPer-position acceptance: 0.8, 0.6, 0.4\n", "add up to 2.80 tokens a step"),
        (
            "|Metric|Value|\n|Acceptance length| 3.50 |\n|Per-position acceptance| 0.8, 0.6, 0.4 |\n",
            "add up to 2.80 tokens a",
        ),
        ("Acceptance rate at token 0: 0,80\nAcceptance rate at token 1: 0,60\n", "numbers with a decimal point"),
        (ATOM.format(6, 9).replace("3: '40", "3: '30"), "adds up to 90.0%"),
        ("per-position accept " + "0.1, " * 20_000 + "x", "no acceptance by position or step"),  # in linear time
        ("0.8\n0.6\n0.4\n", "--format table --column survival"),
        ("| Draft tokens | Acceptance rate |\n|---|---|\n| 1 | 80% |\n| 2 | 72% |\n", "`--acceptance R@K`"),  # lengths
        ("k,accept@1,accept@2\n1,0.8,-\n2,0.8,0.6\n", "it has rates of 1 to 2 positions: keep those of one length"),
        ("k,accept@1,accept@2\n2,-,0.6\n", "numbers with a decimal point, found ['-']"),
        ("model,mean_itl_ms,acceptance_length\ndspark,4.69,3.44\n", "`--accepted-length L@K`"),
    ],
)
def test_what_is_refused(text, words):
    with pytest.raises(TraceError) as refused:
        read_output(text, {})
    assert words in str(refused.value)


def test_shares_of_all_steps_in_a_table(tmp_path):
    path = tmp_path / "rates.csv"
    path.write_text("0.8\n0.6\n0.4\n")
    trace, _ = bring(tmp_path, path, "table", "--column", "survival", "--steps", 3000)
    assert trace.meta["imported"]["survival"] == [0.8, 0.6, 0.4]
    _, said = bring(tmp_path, path, "table", "--column", "rank")
    assert "0.8, 0.6, 0.4 are each given the one before; if they are shares of all steps: --column survival" in said
    survival = ("table", "--column", "survival")
    turned_away(tmp_path, path, *survival, "--length", 64, words=("no --depth or --length",), code=2)
    path.write_text("0.8,0.6\n0.6,0.4\n")
    turned_away(tmp_path, path, *survival, words=("one rate for each position",), code=2)


@pytest.mark.parametrize("end", ["_total", ""])
def test_counters_under_other_names(end):
    text = "".join(
        f'ray_vllm_spec_decode_{name}{end}{{model_name="m"{label}}} {value}\n'
        for name, label, value in (
            ("num_drafts", "", 2000),
            ("num_draft_tokens", "", 6000),
            ("num_accepted_tokens", "", 3600),
            *(("num_accepted_tokens_per_pos", f',position="{place}"', n) for place, n in enumerate((1600, 1200, 800))),
        )
    )
    found = reading(text)
    assert (found.kind, found.engine, found.chain.survival) == ("counters", "vllm", (0.8, 0.6, 0.4))
