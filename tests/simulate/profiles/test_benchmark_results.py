"""Results of engines' benchmarks as step times: what an engine took, and what is lacking."""

import json

import pytest

from simulate.profiles.engine_times_csv import read_times
from tests.simulate.profiles.test_engine_times_csv import DEVICE, engine_s, written
from treeopt.cost_model import StepShape
from treeopt.errors import CostError, UsageError

SIZES = [(batch, drafted) for batch in (1, 8) for drafted in (0, 1, 3)]
COLUMNS = "write a CSV with a line per measurement and the columns batch, drafted and step_ms"


def served(batch, drafted, **more):
    step_ms = 1e3 * engine_s(batch, drafted)
    record = {"max_concurrency": batch, "mean_itl_ms": step_ms, "mean_tpot_ms": step_ms / (1 + drafted / 2)}
    if drafted:
        record |= {"spec_decode_num_drafts": 2000, "spec_decode_draft_tokens": 2000 * drafted}
    return record | more


def speculative(batch, drafted, topk=1):
    sizes = {"batch_size": batch, "steps": drafted, "topk": topk if drafted else 0, "num_draft_tokens": drafted + 1}
    return sizes | {"acc_length": 1.5, "step_time": engine_s(batch, drafted), "speed": 100.0}


def costs_what_it_took(profile):
    for batch, drafted in SIZES:
        if drafted:
            chain = StepShape(batch, drafted + 1, (1,) * drafted)
            assert profile.step_s([chain])[0] == pytest.approx(engine_s(batch, drafted))
        else:
            assert profile.plain_s(batch=batch) == pytest.approx(engine_s(batch, 0))


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("make", [served, speculative])
def test_results_are_read_as_what_they_timed(tmp_path, make, lines):
    records = [make(*size) for size in SIZES]
    if make is speculative:
        records.append(speculative(1, 3, topk=4))  # a tree: no place in a profile of chains
    path = tmp_path / "r.json"
    path.write_text("\n".join(map(json.dumps, records)) if lines else json.dumps(records))
    costs_what_it_took(read_times(path, device=DEVICE, context=(512, 512)))


def test_several_files_are_one_table_and_state_their_contexts(tmp_path):
    """SGLang's bench_one_batch times plain steps; requests of 400 tokens with 200 new ones have 500 in the mean."""
    plain = tmp_path / "plain.jsonl"
    records = [
        {"batch_size": batch, "input_len": 400, "output_len": 200, "median_decode_latency": engine_s(batch, 0)}
        for batch in (1, 8)
    ]
    plain.write_text("\n".join(map(json.dumps, records)))
    sums = {"total_input_tokens": 4000, "total_output_tokens": 2000, "completed": 10}
    files = [plain]
    for batch, drafted in SIZES:
        if drafted:
            files.append(tmp_path / f"{batch}-{drafted}.json")
            files[-1].write_text(json.dumps(served(batch, drafted, **sums)))
    found = read_times(*files, device=DEVICE)
    costs_what_it_took(found)
    assert found.context == (500, 500)
    assert found.meta["imported"]["file"].startswith("plain.jsonl, 1-1.json")
    table = written(tmp_path / "t.csv", [(1, 0, 6), (1, 1, 7)])
    assert read_times(table, *files, device=DEVICE, context=(512, 512)).context == (512, 512)
    with pytest.raises(UsageError, match=r"1-1.json is given twice: its lines would count as repetitions"):
        read_times(*files, files[1], device=DEVICE)
    with pytest.raises(CostError, match=r"batch 1, context 500 .* no line with `drafted` 1"):
        read_times(plain, device=DEVICE)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"pl": 2, "t_tg": 0.03, "speed_tg": 32.0}, f"result 1: llama-batched-bench times plain steps .*: {COLUMNS}"),
        ({"avg_latency": 1.9, "latencies": [1.9]}, f"vllm bench latency has neither .*: {COLUMNS}"),
        ({"world_info": {}, "performance": {}}, f"trtllm-bench has means .*: {COLUMNS}"),
        ({"something": 1}, "which column is batch, drafted, step_ms. the columns are something;"),
        ({"schema": "treeopt.profile/2", "batches": []}, "is 'treeopt.profile/2', no table of an engine's step times"),
        ([[3]], f"is JSON, but no results of a benchmark: {COLUMNS}"),
        ([], f"holds no chain and no plain step: {COLUMNS}"),
        (served(64, 0, completed=8), "8 requests never fill max_concurrency"),
        (served(1, 0, max_concurrency=None), "max_concurrency must be a number: serve with --max-concurrency"),
        (served(1, 0, spec_decode_acceptance_length=2.1), "does not say how many tokens are drafted"),
        (served(1, 3) | {"spec_decode_draft_tokens": 5000}, "2.5 tokens per draft is no chain"),
        (served(1, 0, mean_itl_ms=127.4, mean_tpot_ms=12.8), "is 9.95 times mean_tpot_ms, .* at most 1: .* --stream-"),
        (served(8, 3, accept_length=2.8, mean_itl_ms=3.6, mean_tpot_ms=3.7), "commits 2.8 tokens: .* SGLang's results"),
        (served(1, 0, k="x"), "result 1: `k` must be an integer, found 'x'"),
        (served(1, 0, mean_itl_ms="9"), "`mean_itl_ms` must be a number above 0, found '9'"),
        (
            [served(1, 0, model_id="a"), served(1, 1, model_id="b")],
            "results of several models, a, b: keep those of one",
        ),
        (speculative(1, 0) | {"batch_size": "x"}, "result 1: `batch` must be an integer, found 'x'"),
    ],
)
def test_what_results_lack_is_named(tmp_path, record, message):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(record))
    with pytest.raises(CostError, match=message):
        read_times(path, device=DEVICE, context=(1, 1))


def report(record, head="Maximum"):
    """Print a result as `vllm bench serve` does; SGLang's bench_serving has another head."""
    lines = {
        "Successful requests": 64,
        f"{head} request concurrency": record["max_concurrency"],
        "Total input tokens": 64 * 400,
        "Total generated tokens": 64 * 200,
        "Mean TPOT (ms)": record["mean_tpot_ms"],
        "Mean ITL (ms)": record["mean_itl_ms"],
    }
    if "spec_decode_num_drafts" in record:
        lines |= {"Drafts": 2000, "Draft tokens": record["spec_decode_draft_tokens"]}
    return "\n".join(f"{name + ':':<40} {value:<10}" for name, value in lines.items())


def test_printed_reports_are_read_as_the_results_that_they_show(tmp_path):
    """Posted ones stand among other lines; a report of SGLang's plain decoding belongs to them."""
    path, frame = tmp_path / "bench.log", "```\n============ Serving Benchmark Result ============\n{}\n=====\n```\n"
    reports = [report(served(*size), "Maximum" if size[1] else "Max") for size in SIZES]
    path.write_text("tip: install termplotlib\n" + "".join(map(frame.format, reports)))
    found = read_times(path, device=DEVICE)
    costs_what_it_took(found)
    assert found.context == (500, 500)
    path.write_text(frame.format("Successful requests:     16\nMean ITL (ms):      10.2\n"))
    with pytest.raises(CostError, match="result 1: max_concurrency must be a number: serve with --max-concurrency"):
        read_times(path, device=DEVICE)
    path.write_text(frame.format(report(served(8, 0)) + "\nAccept length:      2.14\n"))
    with pytest.raises(CostError, match="result 1: does not say how many tokens are drafted"):
        read_times(path, device=DEVICE)


def test_a_cell_of_a_table_of_results_that_is_no_number_is_named(tmp_path):
    (tmp_path / "s.csv").write_text("max_concurrency,mean_itl_ms\n4,1.2.3\n")
    with pytest.raises(CostError, match=r"line 2: `mean_itl_ms` must be a number above 0, found '1\.2\.3'"):
        read_times(tmp_path / "s.csv", device=DEVICE, context=(1, 1))


def test_what_is_no_json_is_named(tmp_path):
    for text in ('{"a":', "[" * 100_000):
        path = tmp_path / "r.json"
        path.write_text(text)
        with pytest.raises(CostError, match=r"r\.json: neither JSON nor lines of JSON"):
            read_times(path, device=DEVICE, context=(1, 1))
    path.write_text(json.dumps([served(1, 0), served(1, 1)]))
    with pytest.raises(UsageError, match="does not say at which context"):
        read_times(path, device=DEVICE)
