"""Step times from CSV tables and from results of engines' benchmarks: every form, and what is lacking."""

import json

import numpy as np
import pytest

from simulate.profiles.engine_times_csv import read_times
from simulate.profiles.profile import load_profile, save_profile
from tests.helpers.strategies import drawn_trace
from treeopt.constraints import chains_only
from treeopt.cost_model import StepShape
from treeopt.errors import CostError, UsageError
from treeopt.planning.search_pipeline import search
from treeopt.replay.static_tree import replay_tree
from treeopt.tree import Tree

BATCHES, CHAINS = (1, 4, 16), (0, 1, 2, 3, 5, 7)
DEVICE = "H100, some engine"


def engine_s(batch: int, drafted: int) -> float:
    """Seconds of a step: weights, tokens, drafted levels."""
    return 6e-3 + 4e-5 * batch * (drafted + 1) + 5e-4 * drafted


def written(path, rows, header="batch,drafted,step_ms"):
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def steps(rows=BATCHES):
    return [(batch, drafted, 1e3 * engine_s(batch, drafted)) for batch in rows for drafted in CHAINS]


def chain(batch: int, drafted: int) -> StepShape:
    return StepShape(batch, drafted + 1, (1,) * drafted)


def test_measured_chains_cost_what_they_took(tmp_path):
    found = read_times(written(tmp_path / "t.csv", steps()), device=DEVICE, context=(512, 2048))
    for batch in BATCHES:
        assert found.plain_s(batch=batch) == pytest.approx(engine_s(batch, 0))
        due = [engine_s(batch, drafted) for drafted in CHAINS[1:]]
        assert found.step_s([chain(batch, drafted) for drafted in CHAINS[1:]]) == pytest.approx(due)
        assert found.step_s([chain(batch, 4)])[0] == pytest.approx(engine_s(batch, 4), rel=1e-3)
        with pytest.raises(CostError, match=f"tokens 9 at batch {batch}: the profile measured tokens 2 to 8"):
            found.step_s([chain(batch, 8)])
    assert found.context == (512, 2048)
    assert (found.meta["device"], found.meta["imported"]["file"]) == (DEVICE, "t.csv")
    assert "processor" not in found.meta["provenance"]


def test_rates_and_tokens_a_step_tell_the_same(tmp_path):
    """Whatever was kept while it was measured; plain decoding commits one token without saying so."""
    rng = np.random.default_rng(0)
    rows = []
    for batch, drafted, step_ms in steps():
        committed = 1 + drafted * rng.random()
        rows.append((batch, drafted, 1e3 * batch * committed / step_ms, committed))
    rows = [(b, k, rate / kept if k == 0 else rate, kept if k else "") for b, k, rate, kept in rows]
    told = written(tmp_path / "a.csv", rows, "batch, drafted, tokens_s, committed")
    found = read_times(told, device=DEVICE, context=(512, 2048))
    due = read_times(written(tmp_path / "b.csv", steps()), device=DEVICE, context=(512, 2048))
    for one, other in zip(found.batches, due.batches, strict=True):
        assert one.plain_s == pytest.approx(other.plain_s)
        assert np.array(one.rest) == pytest.approx(np.array(other.rest))


def test_contexts_and_repetitions(tmp_path):
    """The median of repetitions, by context; other columns, empty lines, their order and a mark are nothing."""
    rows = [
        (note, context, drafted, batch, 1e3 * engine_s(batch, drafted) * factor * (1 + context / 4096))
        for batch in (1, 4)
        for context in (512, 2048)
        for drafted in CHAINS
        for note, factor in (("a", 0.9), ("b", 1.0), ("c", 1.3))
    ]
    rows = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    path = written(tmp_path / "t.csv", rows, "p25,context,drafted,batch,step_ms")
    path.write_text(path.read_text().replace("\n", "\n\n", 3), "utf-8-sig")
    found = read_times(path, device=DEVICE)
    assert [(times.batch, times.context) for times in found.batches] == [(1, 512), (1, 2048), (4, 512), (4, 2048)]
    assert found.context == (512, 2048)
    for context in (512, 2048):
        step = found.step_s([StepShape(4, 4, (1, 1, 1), context)])[0]
        assert step == pytest.approx(engine_s(4, 3) * (1 + context / 4096), rel=0.02)
    once = read_times(written(tmp_path / "s.csv", steps()), device=DEVICE, context=(1, 2))
    assert found.relative_error > once.relative_error  # the plain step is uncertain by 30 %


def test_a_plan_of_an_engines_times_takes_its_best_chain(tmp_path):
    """By hand: tau along the trace over what the engine takes."""
    trace = drawn_trace([[0.8, 0.1], [0.7, 0.2]], [64] * 60, depth=7, rng=np.random.default_rng(1))
    cost = read_times(written(tmp_path / "t.csv", steps()), device=DEVICE, context=(512, 2048))
    plan = search(trace, cost, batch=BATCHES, rules=(chains_only(source="the engine"),), near=0.0)
    for entry in plan.entries:
        speed = {k: replay_tree(Tree.chain(k), trace).tau / engine_s(entry.batch, k) for k in range(1, 8)}
        assert entry.choice.tree == Tree.chain(entry.choice.tree.depth)
        assert speed[entry.choice.tree.depth] >= 0.995 * max(speed.values())
    (warning,) = (each for each in plan.warnings if "imported from an engine" in each)
    assert "a tree that branches is priced like a chain with the same number of nodes" in warning
    save_profile(cost, tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == cost


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no chain and no plain step: write a CSV"),
        ("bs,k,tok_s,accept\n1,0,9,\n", "which column is committed? the columns are bs, k, tok_s, accept; "),
        ("bs,k,tok_s,accept\n1,0,9,\n", "--columns committed=NAME, or accepted=NAME if the bonus is left out"),
        ("batch,drafted,tpot,tau\n1,0,9,1\n", "which column is step_ms? the columns are batch, drafted, tpot, tau"),
        ("batch,drafted,step_ms (us)\n1,0,9\n", "step_ms=NAME, or tokens_s=NAME or tpot_ms=NAME in place of step_ms"),
        ("batch,k,t/s,accept_length\n1,0,9,\n", "which column is committed? the columns are batch, k, t/s, accept_l"),
        ("batch,drafted,STEP (us),Step [ms]\n1,0,9,9\n", "`STEP (us)` and `Step [ms]` both give the time: keep one"),
        (
            "batch,drafted,step_us\n1,0,9ms\n",
            "`step_us` must be a number, found '9ms'; a unit belongs into the column's",
        ),
        ("batch,k,k\n1,0,9\n", "there are 2 columns `k`"),
        ("params,ngl,test,t/s\n7 B,99,tg128,9 ± 1\n", "llama-bench times the target alone"),
        ("model,test,t/s,ttfr (ms)\nQ,tg128,9 ± 1,\n", "which column is batch, drafted, committed?"),  # llama-benchy
        ("batch,drafted,step_ms\n1,0,2\n1,2.5,3", "line 3: `drafted` must be an integer, found '2.5'"),
        ("batch drafted step_ms\n1 0 2", "its first line has no names of columns: write a CSV"),
        ("K,Cum tok/s\n0,9\n", "the columns are K, Cum tok/s; a table needs batch, drafted, and step_ms"),
        ("Avg latency: 1.45 seconds\n10% percentile latency: 1.44 seconds\n", "its first line has no names of columns"),
        ("[2026-02-03 10:00:01 TP0] Decode batch, accept len: 2.73\n[2026] a, b, c\n", "no names of columns: write"),
        ('code_python rate=0.645\n"n_requests": 9, 2\n', "its first line has no names of columns: write a CSV"),
        ("|Metric|MTP 1|\n|---|---|\n|Acceptance length|1.84|\n", "the columns are Metric, MTP 1; a table needs"),
        ("Metric,avg,p25\nTTFT,9,8\n", "line 2: AIPerf has neither the batch size nor the tokens"),
        ("main: n = 9, m = 1\n\n| PP | S_TG t/s |\n|---|---|\n| 1 | 9 |\n", "line 5: llama-batched-bench times plain"),
        ("batch;drafted;step_ms\n1;0;10,5", "line 2: `step_ms` must be a number, found '10,5'"),
        ("batch,drafted,tpot_ms,committed\n1,0,10,\n1,1,6.6,0.8", "`committed` must be 1 to 2, bonus counted"),
        ("batch,drafted,step_ms\n1,0,1e-9", "line 2: a step of 1e-12 seconds is not possible"),
        ("batch,drafted,tokens_s,committed\n1,0,90,2", "line 2: `committed` must be 1 to 1, bonus counted, found 2"),
        ("batch,drafted,step_ms\n1,0,10\n1,1,6.67\n", "is shorter than a plain one of 10 ms, though it also drafts"),
        ('[{"max_concurrency": 1, "mean_itl_ms": 10.2}]', "batch 1: there is no line with `drafted` 1"),
    ],
)
def test_tables_that_say_nothing_are_named(tmp_path, text, message):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(CostError) as refusal:
        read_times(path, device=DEVICE, context=(512, 2048))
    assert str(refusal.value).startswith(f"{path}: ")
    assert message in str(refusal.value)


def test_the_context_is_said_once(tmp_path):
    with pytest.raises(UsageError, match="does not say at which context"):
        read_times(written(tmp_path / "t.csv", steps()), device=DEVICE)
    rows = [(*row, 700) for row in steps()]
    with pytest.raises(UsageError, match="has a column `context`"):
        read_times(written(tmp_path / "c.csv", rows, "batch,drafted,step_ms,context"), device=DEVICE, context=(1, 2))
    with pytest.raises(CostError, match=r"none\.csv: cannot be read"):
        read_times(tmp_path / "none.csv", device=DEVICE, context=(1, 2))


def test_time_per_output_token_is_that_of_a_step_over_its_tokens(tmp_path):
    tokens, steps = tmp_path / "tpot.csv", tmp_path / "itl.csv"
    tokens.write_text("batch,drafted,tpot_ms,committed\n1,0,10,\n1,1,6.25,1.92\n1,3,5,2.8\n")
    steps.write_text("batch,drafted,step_ms\n1,0,10\n1,1,12\n1,3,14\n")
    one, other = (read_times(path, device=DEVICE, context=(512, 2048)) for path in (tokens, steps))
    assert [time for _, time in one.batches[0].rest] == pytest.approx([time for _, time in other.batches[0].rest])


def test_pasted_tables_are_read(tmp_path):
    path = tmp_path / "pasted.md"
    for text in (
        "| batch | drafted | step_ms |\n|---|:---:|---|\n| 1 | 0 | 10 |\n| 1 | 1 | 12 |\n",
        "My, own sweep:\n\n|batch|drafted|step_ms|\n|---|---|---|\n|1|0|10|\n|1|1|12|\n\nOne is, sadly, slower.\n",
        "|**batch**|`drafted`|tpot_ms|committed|\n|-|-|-|-|\n|1|0|10|\u2014|\n|1|1|**8**|`1.5`|\n",
        "batch\tdrafted\tstep_ms\n1\t0\t10\n1\t1\t12\n",
    ):
        path.write_text(text)
        profile = read_times(path, device=DEVICE, context=(512, 512))
        assert (profile.batches[0].plain_s, profile.doubts) == (0.01, ())


@pytest.mark.parametrize(
    ("rows", "doubt"),
    [
        ("1,0,10\n1,1,9.8\n1,3,9.7\n", "9.7 ms with 3 drafted, 10 ms with fewer"),
        ("8,0,12\n8,1,12.5\n8,3,11.8\n", "11.8 ms with 3 drafted, 12.5 ms with fewer"),
        ("8,0,11.4\n8,1,103\n", "103 ms with 1 drafted, 11.4 ms with fewer"),
        ("1,0,20\n1,1,24\n8,0,10\n8,1,12\n", "at batch 8, less: was it divided by the batch"),
        ("1,0,7000\n1,1,8000\n", "takes 7 s at batch 1: were microseconds given as ms"),
    ],
)
def test_times_that_no_step_can_have_are_doubted(tmp_path, rows, doubt):
    path = tmp_path / "t.csv"
    path.write_text(f"batch,drafted,step_ms\n{rows}")
    assert doubt in read_times(path, device=DEVICE, context=(512, 512)).doubts[0]


def test_a_plain_step_that_grows_faster_than_the_batch_is_doubted(tmp_path):
    path = tmp_path / "per_user.csv"
    path.write_text("batch,drafted,tokens_s,committed\n1,0,100,\n1,1,150,1.8\n32,0,60,\n32,1,80,1.8\n")
    profile = read_times(path, device=DEVICE, context=(512, 512))
    assert "10 ms at batch 1 and 533 ms at batch 32" in profile.doubts[0]
    assert profile.doubts[0] in profile.caveats()
    path.write_text("batch,drafted,tokens_s,committed\n1,0,100,\n1,1,150,1.8\n32,0,1600,\n32,1,2500,1.8\n")
    assert not read_times(path, device=DEVICE, context=(512, 512)).doubts


ITL = "batch,drafted,step_ms\n1,0,10\n1,1,12\n1,3,14\n"


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("batch,drafted,step_us\n1,0,10000\n1,1,12000\n1,3,14000\n", {}),
        ("| BS | K | Step time (µs) |\n|---|---|---|\n| 1 | 0 | 1e4 |\n| 1 | 1 | 12000 |\n| 1 | 3 | 14000 |\n", {}),
        ("batch_size,spec_len,step_s,mean_tpot_ms\n1,0.0,0.010,9\n1,1.0,0.012,9\n1,3.0,0.014,9\n", {}),
        ("bs,gamma,tok/s,tau\n1,0,100,nan\n1,1,150,1.8\n1,3,200,2.8\n", {}),
        ("n,l,x,y\n1,0,10,0\n1,1,6.66667,0.8\n1,3,5,0.6\n", "batch=n,drafted=l,tpot_ms=x,acceptance=y"),
        ("n,l,x,y\n1,0,10,N/A\n1,1,6.66667,80%\n1,3,5,60 %\n", "batch=n,drafted=l,tpot_ms=x,acceptance=y"),
        ("n,l,step_ms,x,y\n1,0,1,.01,\n1,1,1,.00666667,.8\n1,3,1,.005,1.8\n", "batch=n,drafted=l,tpot_s=x,accepted=y"),
        ('[{"bs":1,"k":0,"step_ns":1e7},{"bs":1,"k":1,"step_ns":12e6},{"bs":1,"k":3,"step_ns":14e6}]', {}),
        ("max_concurrency,k,mean_itl_ms\n1,0,10\n1,1,12\n1,3,14\n", {}),
    ],
)
def test_own_names_and_units_tell_the_same(tmp_path, text, columns):
    """By hand: 10, 12 and 14 ms of no, one and three drafted tokens; no unit is taken for another."""
    (tmp_path / "itl.csv").write_text(ITL)
    (tmp_path / "own.csv").write_text(text)
    named = dict(part.split("=") for part in columns.split(",")) if columns else {}
    one = read_times(tmp_path / "own.csv", device=DEVICE, context=(512, 512), columns=named)
    other = read_times(tmp_path / "itl.csv", device=DEVICE, context=(512, 512))
    assert [time for _, time in one.batches[0].rest] == pytest.approx([time for _, time in other.batches[0].rest])


def test_columns_that_are_named_must_be_there(tmp_path):
    (tmp_path / "own.csv").write_text(ITL)
    with pytest.raises(CostError, match="there is no column 'lat'; the columns are batch, drafted, step_ms"):
        read_times(tmp_path / "own.csv", device=DEVICE, context=(1, 2), columns={"step_us": "lat"})
    with pytest.raises(
        UsageError, match="--columns must be like batch=bs,step_us=latency, with batch, drafted, step_ms"
    ):
        read_times(tmp_path / "own.csv", device=DEVICE, context=(1, 2), columns={"step": "step_ms"})


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
