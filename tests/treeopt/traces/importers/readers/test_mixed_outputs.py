"""Files that hold several kinds of output, or a line that was cut off: refused.

Kinds are read together where one sums up the other, or where a prompt quotes it.
"""

import json

import pytest

from tests.treeopt.traces.importers.readers.test_engine_outputs import (
    HISTOGRAM,
    META,
    PRINTED,
    PRINTS,
    RESPONSE,
    SERVE,
    SGLANG_LINE,
    TABLE,
)
from tests.treeopt.traces.importers.readers.test_scraped_counters import EXPORT, LOG, PROMETHEUS, scrape
from treeopt.errors import TraceError
from treeopt.traces.importers.readers.engine_outputs import read_output

STEPS = "".join(f"slot update_slots: id  0 | task {n} | accepted  1/ 3 draft tokens\n" for n in range(9))
STATISTICS = (
    "statistics draft: #calls(b,g,a) = 9 9 9, #gen drafts = 9, #acc drafts = 9, #gen tokens = 27, #acc tokens = 9, "
    "#acc rate/pos = (1.000, 0.000, 0.000), dur(b,g,a) = 1.0\n"
)
SPEC_BENCH = json.dumps({"choices": [{"accept_lengths": [1, 2, 3]}]})


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ((LOG, TABLE), "printed results of vLLM's benchmarks and log lines of acceptance by position"),
        ((LOG, PRINTS), "printed results of vLLM's benchmarks and log lines of acceptance by position"),
        ((LOG, PROMETHEUS), "log lines of acceptance by position and an engine's counters"),
        ((TABLE, PROMETHEUS), "printed results of vLLM's benchmarks and an engine's counters"),
        ((TABLE, PRINTED), "printed results of vLLM's benchmarks and an engine's counters"),
        ((PROMETHEUS, STEPS), "LLAMA_TRACE lines and an engine's counters"),
        ((LOG, STEPS), "LLAMA_TRACE lines and log lines of acceptance by position"),
        ((LOG, SGLANG_LINE), "histograms of responses and log lines of acceptance by position"),
        ((json.dumps(SERVE), META), "results of `vllm bench serve` and histograms of responses"),
        ((SPEC_BENCH, META), "Spec-Bench's accept_lengths and histograms of responses"),
        (
            (json.dumps({"Acceptance_Length_Histogram": HISTOGRAM}), META),
            "ModelOpt's specdec_bench and histograms of responses",
        ),
        ((EXPORT.replace("\n", ""), META), "an engine's counters and histograms of responses"),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_different_outputs_in_one_file_are_refused(parts, named, order):
    with pytest.raises(TraceError, match=r"^it holds .* and .*: keep one$") as caught:
        read_output("\n".join(parts[::order]), {})
    assert all(name in str(caught.value) for name in named.split(" and "))


def test_llama_cpps_statistics_sum_up_the_steps_of_its_trace():
    assert read_output(STEPS + STATISTICS, {}).kind == "llama-trace"


@pytest.mark.parametrize(
    ("quoted", "text", "kind"),
    [
        ("acceptance at token 0: 0.80", SGLANG_LINE, "responses"),
        ("acceptance at token 0: 0.80", LOG, "log"),
        ("vllm:spec_decode_num_drafts_total", LOG, "log"),
    ],
)
def test_words_of_another_output_in_a_prompt_are_not_read(quoted, text, kind):
    prompt = f"[10:00:00] Receive: obj=GenerateReqInput(text='what is {quoted}, please?')\n"
    output = read_output(prompt + text, {})
    assert output.kind == kind
    assert output.chain.survival == pytest.approx((0.8, 0.6, 0.4))


# --- lines that were cut off


@pytest.mark.parametrize("line", [META, RESPONSE, f"data: {RESPONSE}", json.dumps(SERVE), SPEC_BENCH, scrape(1, 1.0)])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_line_of_json_that_was_cut_off_is_named(line, share):
    cut = line[: max(int(len(line) * share), line.index("{") + 2)]
    for lines, number in (((line, line, cut), 3), ((line, cut, "", line), 2), ((line, "", cut, "", ""), 3)):
        with pytest.raises(TraceError, match=f"^line {number} is not JSON: cut off[?] remove it$"):
            read_output("\n".join(lines), {})


def test_an_earlier_scrape_with_a_line_that_was_cut_off_is_refused():
    with pytest.raises(TraceError, match="line 2 is not JSON: cut off"):
        read_output(scrape(3, 2.0), {}, before=f"{scrape(1, 1.0)}\n{scrape(2, 1.0)[:-9]}")
