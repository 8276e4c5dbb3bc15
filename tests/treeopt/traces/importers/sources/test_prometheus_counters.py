"""Counters of engines in every container: the same chain, and a trace that replays to it."""

import json

import pytest

from tests.helpers.source_texts import LOG, METRICS, PROMETHEUS, bring, chain_of, reading, turned_away
from treeopt.errors import TraceError
from treeopt.replay.static_tree import replay_tree
from treeopt.traces.importers.chain_counts import Chain
from treeopt.tree import Tree

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


TEXTS = {
    "vllm": VLLM,
    "lmdeploy": VLLM.replace("vllm:", "lmdeploy:"),
    "llama.cpp": LLAMA_CPP,
    "tensorrt-llm": TRTLLM,
}


def scaled(text, factor):
    """The counters of a text, `factor` times as high."""
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return "\n".join(f"{name} {factor * float(value)}" for name, _, value in lines)


@pytest.mark.parametrize("engine", TEXTS)
def test_every_engines_counters_tell_the_same_chain(tmp_path, engine):
    found = reading(TEXTS[engine])
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


def test_models_and_engines_of_one_text(tmp_path):
    other = VLLM.replace("model-8B", 'b\\"}').replace(" 4.0", " 5.0").replace(" 7.0", " 8.0")
    found = reading(VLLM + other, model='b"}')
    assert found.chain.survival == (1.0, 0.4, 0.2)
    with pytest.raises(TraceError, match="it has several models, "):
        chain_of(VLLM + other)
    with pytest.raises(TraceError, match="it has model model-8B, not x"):
        chain_of(VLLM, model="x")
    with pytest.raises(TraceError, match=r"found llama\.cpp and vllm"):
        chain_of(VLLM + LLAMA_CPP)
    replicas = VLLM + VLLM.replace('engine="0"', 'engine="1"')
    assert chain_of(replicas) == Chain((0.8, 0.4, 0.2), 10, engine="vllm")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (VLLM.replace(" 7.0", " 8.0"), "positions have 7 accepted tokens, .* has 8"),
        (VLLM.replace('"0"} 4.0', '"0"} 1.0').replace('"2"} 1.0', '"2"} 4.0'), "accepted more often"),
        (VLLM.replace(" 5.0", " 5.5"), "must be a count, found 5.5"),
        (VLLM.replace(" 5.0", " 1" + "0" * 400), "is not a sample of Prometheus text"),
        (
            TRTLLM.replace('_position="0",worker="1"} 3', '_position="0",worker="1"} 9', 1),
            "drafts were longer where they were better",
        ),
        (TRTLLM.replace("drafted_tokens_total", "draft_total"), "totals have no positions"),
    ],
)
def test_counters_that_are_not_so(text, message):
    with pytest.raises(TraceError, match=message):
        chain_of(text)


def test_position_0_alone_is_told_of():
    lines = [line for line in TRTLLM.splitlines() if '"0"' in line and 'position="0"' in line]
    assert "C++ runtime" in chain_of("\n".join(lines)).assumed[-1]


FORMS = {
    "kubectl logs": ("".join(f"[pod/vllm-0/vllm] {line}\n" for line in PROMETHEUS.splitlines()), "counters"),
    "docker compose": ("".join(f"vllm-1  | {line}\n" for line in PROMETHEUS.splitlines()), "counters"),
    "quotation": ("".join(f"> {line}\n" for line in PROMETHEUS.splitlines()), "counters"),
    "exemplars": (PROMETHEUS.replace(".0\n", '.0 # {trace_id="a"} 1.0 1780000000.5\n') + "# EOF\n", "counters"),
    "time stamps": (PROMETHEUS.replace(".0\n", ".0 1780000000500\n"), "counters"),
    "names with underscores": (PROMETHEUS.replace("vllm:", "vllm_"), "counters"),
    "headers of HTTP": ("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n" + PROMETHEUS, "counters"),
    "log in JSON": ("".join(json.dumps({"level": "INFO", "msg": x}) + "\n" for x in LOG.splitlines()), "log"),
    "scrape in JSON": (json.dumps({"status": 200, "body": PROMETHEUS}), "counters"),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_the_same_counts_is_the_same_chain(name):
    text, kind = FORMS[name]
    output = reading(text)
    assert output.kind == kind
    assert output.chain.survival == pytest.approx((0.8, 0.6, 0.4), abs=1e-12)
    assert output.chain.steps == 2000


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_files_of_powershell_are_read(tmp_path, encoding):
    mark = "\ufeff" if encoding.endswith("e") else ""
    (tmp_path / "m").write_bytes((mark + PROMETHEUS.replace("\n", "\r\n")).encode(encoding))
    trace, _ = bring(tmp_path, tmp_path / "m", "engine")
    assert replay_tree(Tree.chain(3), trace).tau == pytest.approx(2.8, abs=1e-12)


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
    found = reading(page + idle)
    assert (found.engine, found.chain.steps, found.chain.survival) == ("vllm", 20, (0.8, 0.2))
    with pytest.raises(TraceError, match=r"line 6 repeats `vllm:spec_decode_num_drafts_total` with another value"):
        chain_of("\n".join(page.splitlines()[:5]) + "\n" + page.replace("} 5\n", "} 6\n"))


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
        chain_of(page.replace("llamacpp", "vllm"))


ENGINE_1 = [metric | {"labels": metric["labels"] | {"engine": "1"}} for metric in METRICS]


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(json.dumps(METRICS).replace("2000", drafts) for drafts in ("2000", "3000")),
        json.dumps({"before": METRICS, "after": json.loads(json.dumps(METRICS).replace("2000", "3000"))}),
    ],
)
def test_two_dumps_of_get_metrics_are_not_added(text):
    with pytest.raises(TraceError, match="it repeats `vllm:spec_decode_num_drafts_total` with another value: keep one"):
        chain_of(text)


def test_the_same_dump_counts_once_and_engines_are_added():
    assert chain_of(json.dumps([*METRICS, *METRICS])).steps == 2000
    assert chain_of(json.dumps([*METRICS, *ENGINE_1])).steps == 4000


def test_steps_without_a_draft_are_counted_where_all_tokens_are(tmp_path):
    """5 drafts accepted 7 tokens; 30 tokens of 3 requests leave 15 steps that drafted nothing: priced as plain ones."""
    whole = VLLM + (
        'vllm:generation_tokens_total{engine="0",model_name="model-8B"} 30.0\n'
        'vllm:request_success_total{engine="0",finished_reason="stop",model_name="model-8B"} 2.0\n'
        'vllm:request_success_total{engine="0",finished_reason="length",model_name="model-8B"} 1.0\n'
    )
    chain = chain_of(whole)
    assert (chain.steps, chain.undrafted) == (20, 0.75)
    assert chain_of(whole.replace("vllm:", "ray_vllm_")) == chain
    assert chain.survival == pytest.approx((0.2, 0.1, 0.05))
    (tmp_path / "m.txt").write_text(whole)
    trace, _ = bring(tmp_path, tmp_path / "m.txt", "engine")
    counts = replay_tree(Tree.chain(3), trace)
    assert counts.tau == pytest.approx(1.35)
    assert counts.drafted_counts[0] / counts.drafted_counts.sum() == pytest.approx(0.75)
    assert chain_of(VLLM).undrafted == 0
    assert chain_of(whole + VLLM.replace('engine="0"', 'engine="1"')).undrafted == 0  # tokens of one engine alone


def test_counters_without_positions_are_refused_with_their_tokens_per_step():
    text = (
        "sglang:spec_verify_calls_total 126.0\nsglang:generation_tokens_total 296.0\nsglang:num_requests_total 13.0\n"
    )
    with pytest.raises(TraceError, match=r"SGLang counts no positions; its 126 steps .* `--accepted-length 2.25@K`"):
        chain_of(text)


@pytest.mark.parametrize("name", ["num_drafts", "num_draft_tokens", "num_accepted_tokens"])
def test_a_counter_that_one_of_several_engines_lacks_is_named(name):
    other = VLLM.replace('engine="0"', 'engine="1"').splitlines(keepends=True)
    text = VLLM + "".join(line for line in other if f"decode_{name}_total" not in line)
    with pytest.raises(TraceError, match=f"`vllm:spec_decode_{name}_total` is missing of an engine whose other"):
        chain_of(text)
