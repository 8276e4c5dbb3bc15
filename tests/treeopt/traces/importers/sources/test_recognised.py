"""Outputs recognised by their content; several in one file, means alone and damaged ones are refused."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.slow_params import examples
from tests.helpers.source_texts import (
    AIPERF,
    COUNTS,
    LOG,
    META,
    METRICS,
    PROMETHEUS,
    RESPONSE,
    SERVE,
    SGLANG_LINE,
    bring,
    reading,
    turned_away,
)
from treeopt.errors import TraceError
from treeopt.replay.static_tree import replay_tree
from treeopt.traces.importers.chain_counts import Chain
from treeopt.traces.importers.trace_source import SOURCES, TraceSource, outputs, read_output
from treeopt.tree import Tree

QUERY = [
    {"metric": {"__name__": f"vllm:spec_decode_{name}_total", **({} if n is None else {"position": str(n)})},
     "value": [1780000000.1, str(count)]}
    for name, n, count in COUNTS
]  # fmt: skip
BOTH_NAMES = SGLANG_LINE.replace(
    "'spec_accept_histogram'", "'spec_correct_drafts_histogram': [400, 400, 400, 800], 'spec_accept_histogram'"
)


def half(result):
    """The result of a run that is half as long."""
    return {key: value // 2 if isinstance(value, int) else value for key, value in result.items()}


OUTPUTS = {
    "serve": (json.dumps(SERVE), "bench-serve"),
    "serve, appended": (json.dumps(SERVE) + "\n", "bench-serve"),
    "get_metrics": (json.dumps(METRICS, indent=1), "counters"),
    "aiperf records": (json.dumps({"metadata": {}, "metrics": {}, "spec_decode_acceptance": AIPERF}), "responses"),
    "aiperf raw": (json.dumps({"responses": [{"text": f"data: {RESPONSE}"}, "histogram"]}), "responses"),
    "sglang log": ("[2026-02-06 23:42:16] INFO\n" + SGLANG_LINE, "responses"),
    "sglang log, both names": ("[2026-02-06 23:42:16] INFO\n" + BOTH_NAMES, "responses"),
    "sglang log of JSON and lines": (f"{META}\n[2026-02-06] Decode batch, accept len: 2.80\n", "responses"),
    "sglang response, printed by Python": (repr({"text": "a", "meta_info": json.loads(META)}), "responses"),
    "query of Prometheus": (
        json.dumps({"status": "success", "data": {"resultType": "vector", "result": QUERY}}),
        "counters",
    ),
    "table of Grafana": (PROMETHEUS.replace("} ", "} | "), "counters"),
    "serve, files joined": (json.dumps(half(SERVE)) + json.dumps(half(SERVE), indent=1), "bench-serve"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_every_container_of_the_same_counts_is_the_same_chain(name):
    text, kind = OUTPUTS[name]
    output = reading(text)
    assert output.kind == kind
    assert output.chain.survival == pytest.approx((0.8, 0.6, 0.4), abs=1e-12)
    assert output.chain.steps == 2000


@pytest.mark.parametrize("kind", ["engine", "counters", "responses", "log"])
def test_a_file_is_recognised_by_its_content(tmp_path, kind):
    (tmp_path / "bench.png").write_text(json.dumps(SERVE))
    trace, said = bring(tmp_path, tmp_path / "bench.png", kind)
    assert replay_tree(Tree.chain(3), trace).tau == pytest.approx(2.8, abs=1e-12)
    assert trace.meta["imported"]["format"] == "bench-serve"
    assert "Assumed: only rank 0 was counted" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[2026-04-05 15:25:25 TP0] Decode batch, accept len: 2.80, accept rate: 0.60", "take of SGLang: "),
        ("slot print_timing: id 1 | draft acceptance rate = 0.57 ( 171 accepted / 297 generated)", "LLAMA_TRACE=1"),
        ('{"timings": {"draft_n": 300, "draft_n_accepted": 180}, "by": "llama.cpp"}', "LLAMA_TRACE=1"),
        (json.dumps({**SERVE, "spec_decode_per_position_acceptance_rates": []}), "docs/guides/import_measurements.md"),
        ("llamacpp:spec_decode_num_drafts_total 5\nllamacpp:spec_decode_num_draft_tokens_total 9\n"
         "llamacpp:spec_decode_num_accepted_tokens_total 4\n", "no positions; take llama-server's log with LLAMA"),
        ('vllm:spec_decode_num_draft_tokens_total{model_name="m"} 6\n', "take the responses of a server started with"),
        ("batch size: 1\nacc_length: 3.10\n", "means do not determine it: docs/guides"),
        ('{"turns": ["x"], "idxs": [100], "new_tokens": [380]}', "means do not determine it: docs/guides"),  # EAGLE
        ("hello\n", "it says nothing about speculative decoding: was it on?"),
        ("\n \n", "it is empty"),
    ],
)  # fmt: skip
def test_means_alone_are_refused_with_what_to_take_of_that_engine(text, words):
    with pytest.raises(TraceError) as refused:
        read_output(text, {})
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_output_that_is_wanted_is_named():
    with pytest.raises(TraceError) as refused:
        read_output('{"tensorrt-llm": {"acceptanceLength": 2.5}}', {})
    assert str(refused.value) == (
        "it has no acceptance by position or step in a form that is read, and means do not determine it: take of "
        "TensorRT-LLM: responses with per_request_spec_decode_stats; or give search or whatif `--acceptance 0.8,0.6` "
        "(shares of all steps by position), `--accepted-length L@K` (tokens per step with K draft tokens; L,L,L: "
        "with 1, 2, 3) or `--acceptance R@K` (accepted over drafted)"
    )


def test_the_guide_and_the_reference_list_every_source():
    """docs/guides/import_measurements.md has each output, docs/reference/file_formats.md each kind."""
    guide, reference = (
        Path(f"docs/{name}.md").read_text() for name in ("guides/import_measurements", "reference/file_formats")
    )
    for output in outputs():
        assert f"| {output.counts} | {output.how} |" in guide
    for name in SOURCES:
        assert f"\n| `{name}` | " in reference


def test_a_source_of_another_package_is_one_entry(tmp_path):
    """Modular MAX's rates by position, which treeopt itself does not read."""
    entry = TraceSource(
        name="max",
        title="rates of MAX",
        settings={"steps": "number of steps to draw"},
        holds=lambda content: "maxserve_rate" in content.text,
        chain=lambda content: Chain(tuple(float(line.split()[1]) for line in content.text.splitlines())),
    )
    (tmp_path / "max.txt").write_text("maxserve_rate 0.8\nmaxserve_rate 0.6\n")
    with SOURCES.registered(entry):
        trace, said = bring(tmp_path, tmp_path / "max.txt", "engine", "--steps", "500")
    assert trace.meta["imported"]["format"] == "max"
    assert replay_tree(Tree.chain(2), trace).tau == pytest.approx(2.4)
    assert "500 were drawn" in said


def test_settings_belong_to_the_kind_that_is_found(tmp_path):
    (tmp_path / "t").write_text(LOG)
    more = ("--before", tmp_path / "t")
    turned_away(tmp_path, tmp_path / "t", "counters", *more, words=("--before does not apply to log",), code=2)


@settings(max_examples=examples(100))
@given(st.sampled_from([text for text, _ in OUTPUTS.values()]), st.data())
def test_damaged_outputs_are_read_or_refused(text, data):
    """A stretch is cut out, doubled or replaced: whatever is left, no other error than ours."""
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    middle = data.draw(st.sampled_from(["", text[start:end] * 2, "-1", "1e999", "NaN", "[", "}", "null", "9" * 5000]))
    try:
        chain = reading(text[:start] + middle + text[end:]).chain
    except TraceError:
        return
    assert 1 <= chain.tau <= 65


STEPS = "".join(f"slot update_slots: id  0 | task {n} | accepted  1/ 3 draft tokens\n" for n in range(9))


STATISTICS = (
    "statistics draft: #calls(b,g,a) = 9 9 9, #gen drafts = 9, #acc drafts = 9, #gen tokens = 27, #acc tokens = 9, "
    "#acc rate/pos = (1.000, 0.000, 0.000), dur(b,g,a) = 1.0\n"
)


SPEC_BENCH = json.dumps({"choices": [{"accept_lengths": [1, 2, 3]}]})


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ((LOG, PROMETHEUS), "log lines of acceptance by position and an engine's counters"),
        ((json.dumps(SERVE), META), "results of `vllm bench serve` and histograms of responses"),
        ((json.dumps(METRICS), META), "an engine's counters and histograms of responses"),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_different_outputs_in_one_file_are_refused(parts, named, order):
    with pytest.raises(TraceError, match=r"^it holds .* and .*: keep one$") as caught:
        reading("\n".join(parts[::order]))
    assert all(name in str(caught.value) for name in named.split(" and "))


def test_llama_cpps_statistics_sum_up_the_steps_of_its_trace():
    assert reading(STEPS + STATISTICS).kind == "llama-trace"


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
    output = reading(prompt + text)
    assert output.kind == kind
    assert output.chain.survival == pytest.approx((0.8, 0.6, 0.4))


@pytest.mark.parametrize("line", [META, RESPONSE, f"data: {RESPONSE}", json.dumps(SERVE), SPEC_BENCH])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_line_of_json_that_was_cut_off_is_named(line, share):
    cut = line[: max(int(len(line) * share), line.index("{") + 2)]
    for lines, number in (((line, line, cut), 3), ((line, cut, "", line), 2), ((line, "", cut, "", ""), 3)):
        with pytest.raises(TraceError, match=f"^line {number} is not JSON: cut off[?] remove it$"):
            reading("\n".join(lines))


def test_an_earlier_scrape_with_a_line_that_was_cut_off_is_refused():
    with pytest.raises(TraceError, match="line 2 is not JSON: cut off"):
        reading(PROMETHEUS, before=f"{META}\n{META[:-9]}")
