"""Counters as AIPerf scrapes them, TGI's histogram and ModelOpt's: the same chain as the counts behind them.

The forms follow docs/server-metrics and the CSV exporter of AIPerf 0.13.0, router/src/server.rs of TGI 3, and
examples/specdec_bench of NVIDIA Model-Optimizer.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.treeopt.traces.importers.readers.test_formats import bring
from treeopt.errors import TraceError
from treeopt.replay.static_tree import replay_tree
from treeopt.traces.importers.readers.engine_outputs import kind_of, read_output
from treeopt.tree import Tree

LABELS = {"engine": "0", "model_name": "m"}
COUNTS = [("num_drafts", None, 2000), ("num_draft_tokens", None, 6000), ("num_accepted_tokens", None, 3600)]
COUNTS += [("num_accepted_tokens_per_pos", n, count) for n, count in enumerate((1600, 1200, 800))]
URL = "http://localhost:8000/metrics"


def series(times=1.0, *, url=URL):
    """The series of each counter."""
    metrics = {"vllm:kv_cache_usage_perc": {"type": "gauge", "series": [{"stats": {"avg": 0.2}}]}}
    for name, position, count in COUNTS:
        labels = LABELS | ({} if position is None else {"position": str(position)})
        entry = {"endpoint_url": url, "labels": labels, "stats": {"total": count * times, "rate": 3.2}}
        metric = metrics.setdefault(f"vllm:spec_decode_{name}", {"type": "counter", "unit": "tokens", "series": []})
        metric["series"].append(entry)
    return metrics


def scrape(at, times):
    """A line of server_metrics_export.jsonl."""
    metrics = {"vllm:num_requests_running": [{"value": 12.0}]}
    for name, metric in series(times).items():
        if "spec_decode" in name:
            metrics[name] = [{"labels": s["labels"], "value": s["stats"]["total"]} for s in metric["series"]]
    return json.dumps({"endpoint_url": URL, "timestamp_ns": at, "metrics": metrics, "request_sent_ns": at - 5})


EXPORT = json.dumps({"schema_version": "1.0", "summary": {}, "metrics": series(), "input_config": {}}, indent=1)
SCRAPES = "\n".join(scrape(at, times) for at, times in ((1, 1.0), (2, 1.5), (3, 2.0)))
CSV = (
    "# AIPerf Server Metrics Export (CSV)\r\n# aiperf_version: 0.13.0\r\n#\r\n"
    "Endpoint,Type,Metric,Unit,avg,min,max,engine,model_name,Description\r\n"
    'localhost:8000,gauge,vllm:kv_cache_usage_perc,ratio,0.1910,0.0000,0.2020,0,m,"KV-cache usage, 1 is all."\r\n'
    "\r\n"
    "Endpoint,Type,Metric,Unit,total,rate,rate_avg,rate_min,rate_max,rate_std,position,engine,model_name,Description\r\n"
    + "".join(
        f"localhost:8000,counter,vllm:spec_decode_{name},tokens,{count}.0000,3.2000,,,,,"
        f'{"" if position is None else position},0,m,"Number of, say, drafts."\r\n'
        for name, position, count in COUNTS
    )
    + "\r\nEndpoint,Type,Metric,Unit,count,sum,avg,Description,buckets\r\n"
    "localhost:8000,histogram,vllm:e2e_request_latency_seconds,seconds,19,259.8700,13.6800,E2E,0.3=0;+Inf=19\r\n"
)
TGI = (
    "# TYPE tgi_request_skipped_tokens histogram\n"
    + "".join(
        f'tgi_request_skipped_tokens_bucket{{le="{le}"}} {n}\n'
        for le, n in (("0", 600), ("1", 1000), ("2", 1400), ("3", 2200), ("+Inf", 2200))
    )
    + "tgi_request_skipped_tokens_sum 3600\ntgi_request_skipped_tokens_count 2200\n"
    "# TYPE tgi_request_success counter\ntgi_request_success 200\ntgi_request_count 201\n"
    'tgi_batch_inference_count{method="decode"} 900\n'
)


def labelled(position):
    return 'engine="0",model_name="m"' + ("" if position is None else f',position="{position}"')


PROMETHEUS = "".join(
    f"vllm:spec_decode_{name}_total{{{labelled(position)}}} {count}.0\n" for name, position, count in COUNTS
)
VECTOR = [
    {
        "metric": LABELS | {"__name__": f"vllm:spec_decode_{name}_total"} | ({} if n is None else {"position": str(n)}),
        "value": [1780000000.5, str(count)],
    }
    for name, n, count in COUNTS
]
MATRIX = [
    {"metric": row["metric"], "values": [[1, "7"], [2, "9"], [3, str(int(row["value"][1]) + 7)]]} for row in VECTOR
]
LOG = "".join(
    f"INFO 11-25 10:00:{n}0 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 2.80, Accepted throughput: "
    "72.0 tokens/s, Drafted throughput: 120.0 tokens/s, Accepted: 720 tokens, Drafted: 1200 tokens, Per-position "
    "acceptance rate: 0.800, 0.600, 0.400, Avg Draft acceptance rate: 60.0%\n"
    for n in range(5)
)


def api(kind, result):
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}})


HISTOGRAM = {"1": 400, "2": 400, "3": 400, "4": 800}
BENCH = {"Acceptance_Length_Histogram": HISTOGRAM, "Joint_Acceptance_Rate": {"1": 1.0, "2": 0.8}, "Average_AL": 2.81}
PROFILE = {"measured": True, "num_speculative_tokens": 3, "acceptance_length_histogram": HISTOGRAM}
FORMS = {
    "answer of Prometheus": (api("vector", VECTOR), "counters"),
    "answer of Prometheus, a range": (api("matrix", MATRIX), "counters"),
    "kubectl logs": ("".join(f"[pod/vllm-0/vllm] {line}\n" for line in PROMETHEUS.splitlines()), "counters"),
    "docker compose": ("".join(f"vllm-1  | {line}\n" for line in PROMETHEUS.splitlines()), "counters"),
    "quotation": ("".join(f"> {line}\n" for line in PROMETHEUS.splitlines()), "counters"),
    "exemplars": (PROMETHEUS.replace(".0\n", '.0 # {trace_id="a"} 1.0 1780000000.5\n') + "# EOF\n", "counters"),
    "time stamps": (PROMETHEUS.replace(".0\n", ".0 1780000000500\n"), "counters"),
    "names with underscores": (PROMETHEUS.replace("vllm:", "vllm_"), "counters"),
    "headers of HTTP": ("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n" + PROMETHEUS, "counters"),
    "log in JSON": ("".join(json.dumps({"level": "INFO", "msg": x}) + "\n" for x in LOG.splitlines()), "log"),
    "scrape in JSON": (json.dumps({"status": 200, "body": PROMETHEUS}), "counters"),
    "aiperf json": (EXPORT, "counters"),
    "aiperf csv": (CSV, "counters"),
    "aiperf scrapes": (SCRAPES, "counters"),
    "tgi": (TGI, "counters"),
    "tgi, le as floats": (TGI.replace('le="2"', 'le="2.0"'), "counters"),
    "specdec_bench": (json.dumps(BENCH), "specdec-bench"),
    "speculation profile": (json.dumps(PROFILE | {"marginal_accept_rates": [0.8, 0.6, 0.4]}), "specdec-bench"),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_the_same_counts_is_the_same_chain(name):
    text, kind = FORMS[name]
    output = read_output(text, {})
    assert output.kind == kind
    assert output.chain.survival == pytest.approx((0.8, 0.6, 0.4), abs=1e-12)
    assert output.chain.steps == 2000


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_files_of_powershell_are_read(tmp_path, encoding):
    mark = "\ufeff" if encoding.endswith("e") else ""
    (tmp_path / "m").write_bytes((mark + PROMETHEUS.replace("\n", "\r\n")).encode(encoding))
    trace, _ = bring(tmp_path, tmp_path / "m", "engine")
    assert replay_tree(Tree.chain(3), trace).tau == pytest.approx(2.8, abs=1e-12)


@pytest.mark.parametrize("name", ["aiperf csv", "tgi", "specdec_bench"])
def test_they_replay_to_their_own_tau(tmp_path, name):
    (tmp_path / "file.any").write_text(FORMS[name][0], "utf-8")
    trace, said = bring(tmp_path, tmp_path / "file.any", "engine")
    assert replay_tree(Tree.chain(3), trace).tau == pytest.approx(2.8, abs=1e-12)
    if name == "tgi":
        assert trace.meta["imported"]["engine"] == "tgi"
        assert "TGI counts each prefill as a step that accepted nothing" in said


def test_endpoints_are_added_and_models_are_asked_for():
    two = json.loads(EXPORT)
    for name, metric in series(url="http://other:8000/metrics").items():
        two["metrics"][name]["series"] += metric["series"]
    assert read_output(json.dumps(two), {}).chain.steps == 4000
    other = CSV + CSV.replace(",0,m,", ",0,n,")
    with pytest.raises(TraceError, match="it has several models, m, n: name one with --model"):
        read_output(other, {})
    assert read_output(other, {"model": "n"}).chain.steps == 2000


def test_one_scrape_counts_since_the_server_started():
    assert read_output(scrape(1, 1.0), {}).chain.steps == 2000
    with pytest.raises(TraceError, match="fell from 4000 to 2000: the engine was restarted"):
        read_output(scrape(1, 2.0) + "\n" + scrape(2, 1.0), {})


def test_a_profile_without_histogram_has_rates_alone():
    chain = read_output(json.dumps({"marginal_accept_rates": [0.6, 0.3, 0.0]}), {}).chain
    assert (chain.survival, chain.steps) == ((0.6, 0.3, 0.0), None)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=8), st.integers(0, 40))
def test_prefills_leave_tgis_histogram(histogram, prefills):
    """Whatever was counted, the steps without prefills have the histogram's shares."""
    if not sum(histogram):
        histogram[0] = 1
    buckets = [sum(histogram[: n + 1]) + prefills for n in range(len(histogram))]
    lines = [f'tgi_request_skipped_tokens_bucket{{le="{n}"}} {count}' for n, count in enumerate(buckets)]
    lines += [f'tgi_request_skipped_tokens_bucket{{le="+Inf"}} {buckets[-1]}', f"tgi_request_success {prefills}"]
    chain = read_output("\n".join(lines), {}).chain
    steps = sum(histogram)
    assert chain.survival == tuple(sum(histogram[n:]) / steps for n in range(1, len(histogram)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TGI.replace("tgi_request_success 200\n", ""), "`tgi_request_success` is missing"),
        (TGI.replace("success 200", "success 700"), "counts 700 requests, but only 600 forwards yielded one token"),
        (TGI.replace('le="1"} 1000', 'le="1"} 100'), "must rise up to the bucket of 3, found [600, 100"),
        (TGI.replace('le="1"', 'le="x"'), "whole numbers of tokens as `le`, found 'x'"),
        (TGI.replace('le="1"', 'le="7"'), "must have buckets 0, 1, ..., +Inf"),
        ('tgi_request_skipped_tokens_bucket{le="0"} 9\n', "must have buckets"),
        (
            'tgi_request_skipped_tokens_bucket{le="0"} 9\ntgi_request_skipped_tokens_bucket{le="+Inf"} 9\n',
            "TGI was started without --speculate",
        ),
        ('tgi_request_skipped_tokens{quantile="0.5"} 1\ntgi_request_skipped_tokens_sum 3600\n', "ask TGI for its hist"),
        (
            EXPORT.replace('"total": 2000.0', '"total": "many"'),
            "`vllm:spec_decode_num_drafts`, series 0: total must be",
        ),
        (EXPORT.replace('"series": [', '"series": 3, "x": ['), "must have a list of `series`, found 3"),
        (CSV.replace("2000.0000", "n/a"), "total of vllm:spec_decode_num_drafts must be a count, found 'n/a'"),
        (CSV.replace(",2,0,m,", ",5,0,m,"), "position 2 is missing"),
        (json.dumps({"Acceptance_Length_Histogram": {"0": 4}}), "numbers of tokens, from 1, as keys, found ['0']"),
        (json.dumps({"Acceptance_Length_Histogram": {"1": -4}}), "counts of steps, found [-4]"),
        (json.dumps({"Acceptance_Length_Histogram": {"1": 10**30}}), "counts of steps, found [1000"),
        (json.dumps({"marginal_accept_rates": [10**400]}), "must be a list of rates in 0..1"),
        (CSV.replace("Number of, say, drafts.", "x" * 200_000), "not a table of cells: field larger than field limit"),
        (api("vector", [VECTOR[0] | {"value": [1, 10**400]}]), "must have values of a time and a number"),
        (json.dumps({"Acceptance_Length_Histogram": {"999": 4}}), "at most 65 tokens of a step, found 999"),
        (json.dumps(PROFILE | {"num_speculative_tokens": 2}), "a step accepted 3 drafts, more than the depth of 2"),
        (json.dumps(PROFILE | {"num_speculative_tokens": "3"}), "`num_speculative_tokens` must be in 1..64, found '3'"),
        ("Metric,avg,min,max\nAcceptance Length (ratio),2.80,1.00,4.00\n", "ask AIPerf for histograms"),
        ('{"Average_AL": 2.8, "Request_AL": {"0": {"0": 2.8}}}', "ask ModelOpt's specdec_bench for"),
        ('{"usage": {"total_draft_tokens_count": 492, "accepted_draft_tokens_count": 176}}', "LM Studio counts no pos"),
        ('{"choices": [{"turns": ["a"], "idxs": [70], "new_tokens": [210]}]}', "evaluation/eval.py writes `accept_len"),
        ("\n  \n", "it is empty"),
        (api("matrix", [MATRIX[0] | {"values": [[1, "9"], [2, "7"]]}]), "fell within the range"),
        (api("vector", [VECTOR[0] | {"value": [1, "many"]}]), "must have values of a time and a number"),
        ("Speculation: acceptance rate 61.2 %, 2.8 tokens per step", "ask the engine for steps, for histograms"),
    ],
)
def test_what_contradicts_itself_or_holds_means_alone_is_refused(text, words):
    with pytest.raises(TraceError) as caught:
        read_output(text, {})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_texts_are_still_none_of_these():
    assert kind_of(json.dumps({"metrics": {"vllm:num_requests_running": {"type": "gauge"}}})) is None
    with pytest.raises(TraceError, match="nothing in it is known"):
        read_output("Endpoint,Type,Metric,Unit,avg\nlocalhost,gauge,vllm:num_requests_running,x,1\n", {})
