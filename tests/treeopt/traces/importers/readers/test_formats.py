"""Acceptance figures of other programs as traces: what can be rebuilt is, what is drawn has the source's figures."""

import json
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.helpers.command_line import done, refused, run
from tests.helpers.strategies import assert_equal_arrays, drawn_trace
from treeopt.errors import TraceError, UsageError
from treeopt.replay.static_tree import accepted_lengths, replay_tree
from treeopt.searchers.static_trees.best_first import count_prefixes, from_table
from treeopt.traces.importers.readers.medusa_accuracy import joint_trace
from treeopt.traces.importers.readers.positional_table import drawn_trace as table_trace
from treeopt.traces.importers.readers.positional_table import rank_table
from treeopt.traces.importers.readers.sequoia_vector import vector_table
from treeopt.traces.importers.synthetic_trace import apportion, shuffled_outcomes
from treeopt.traces.merge_split import halves, merge_traces
from treeopt.traces.trace import load_trace, save_trace
from treeopt.tree import Tree


def bring(tmp_path, source, kind, *more):
    """The trace that the command makes."""
    result = done("trace", "import", source, "--format", kind, "--output", tmp_path / "out.npz", "--force", *more)
    return load_trace(tmp_path / "out.npz"), result.stderr


def turned_away(tmp_path, source, kind, *more, words, code=1):
    refused(run("trace", "import", source, "--format", kind, "--output", tmp_path / "no.npz", *more), *words, code=code)
    assert not (tmp_path / "no.npz").exists()


# --- Medusa's accuracy file


def heads_accuracy(candidates, emitted):
    """What the script keeps of one prompt: its loop over heads, on candidates (steps + 1, heads, ranks)."""
    return [candidates[: -head - 1, head].eq(emitted[head + 1 :, None]) for head in range(candidates.shape[1])]


@given(st.integers(1, 4), st.integers(2, 7), st.integers(2, 4), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_the_trace_behind_an_accuracy_file_comes_back(prompts, steps, heads, ranks, seed):
    """Against the definition: rank of the token d + 1 further on, counted at every position of every prompt."""
    if heads > steps:
        return
    draw = torch.Generator().manual_seed(seed)
    results, due = None, []
    for _ in range(prompts):
        emitted = torch.randint(0, 6, (steps + 1,), generator=draw)
        candidates = torch.stack(
            [torch.stack([torch.randperm(6, generator=draw)[:ranks] for _ in range(heads)]) for _ in range(steps + 1)]
        )
        for t in range(steps):
            row = []
            for head in range(heads):
                later = t + head + 1
                found = candidates[t, head].tolist()
                token = int(emitted[later]) if later <= steps else None
                row.append(-2 if token is None else found.index(token) if token in found else -1)
            due.append(row)
        kept = heads_accuracy(candidates, emitted)
        results = kept if results is None else [torch.cat(pair) for pair in zip(results, kept, strict=True)]
    trace = joint_trace([head.numpy() for head in results], meta={})
    assert trace.rank.tolist() == due
    assert (trace.requests, trace.anchors, trace.width) == (prompts, prompts * steps, ranks)


def accuracy_file(trace, path):
    """The file that the script would have written of this trace, whose requests are all of one length."""
    steps = trace.anchors // trace.requests
    rank = trace.rank.reshape(trace.requests, steps, trace.depth)
    heads = []
    for head in range(trace.depth):
        kept = torch.tensor(rank[:, : steps - head, head].reshape(-1, 1).astype(int))
        heads.append(kept.eq(torch.arange(trace.width)))
    torch.save(heads, path)


def test_a_known_trace_survives_the_round_trip(tmp_path):
    rng = np.random.default_rng(3)
    known = drawn_trace([[0.5, 0.2, 0.1], [0.3, 0.3, 0.1]], [9] * 5, depth=4, rng=rng)
    accuracy_file(known, tmp_path / "vicuna_heads_accuracy.pt")
    found, said = bring(tmp_path, tmp_path / "vicuna_heads_accuracy.pt", "medusa-accuracy")
    for name in ("request", "position", "rank"):
        assert_equal_arrays(getattr(found, name), getattr(known, name))
    assert found.width == known.width
    assert found.meta["verification"] == "greedy"
    assert found.meta["drafter"] == {"kind": "medusa", "heads": 4}
    assert found.meta["imported"]["file"] == "vicuna_heads_accuracy.pt"
    assert len(found.meta["imported"]["sha256"]) == 64
    assert f"Assumed: {found.meta['assumed'][0]}" in said
    assert "45 anchors of 5 requests" in said
    assert replay_tree(Tree.full(2, 3), found).steps.tolist() == replay_tree(Tree.full(2, 3), known).steps.tolist()
    assert run("trace", "info", tmp_path / "out.npz").exit_code == 0


def bools(*shape):
    return torch.zeros(*shape, dtype=torch.bool)


@pytest.mark.parametrize(
    ("held", "more", "words"),
    [
        (torch.zeros(5, 20), (), ("must be a list of one array per head, found ndarray", "--format table")),
        (
            [torch.zeros(6, 4), torch.zeros(4, 4)],
            (),
            ("head 0 must hold truth values, found float32", "--format table"),
        ),
        ([bools(6, 4), bools(4, 5)], (), ("head 1 must be (rows, ranks) with ranks as head 0, found (4, 5)",)),
        ([bools(6)], (), ("head 0 must be (rows, ranks)", "found (6,)")),
        ([bools(6, 4), bools(4, 4), bools(3, 4)], (), ("head 2 must have 2 rows (2 prompts of 3 steps", "found 3")),
        ([bools(6, 4), bools(6, 4)], (), ("one row per prompt less, found 6 and 6",)),
        ([bools(7, 4), bools(5, 4)], (), ("one row per prompt less, found 7 and 5",)),
        ([bools(6, 4)], (), ("add --prompts or --steps",)),
        ([bools(6, 4)], ("--prompts", "4"), ("6 rows cannot be divided into 4 prompts",)),
        ([bools(6, 4)], ("--prompts", "3", "--steps", "3"), ("the rows belong to 2 steps, --steps says 3",)),
        ([bools(6, 4), bools(4, 4)], ("--prompts", "3"), ("the rows belong to 2 prompts, --prompts says 3",)),
        ([bools(2, 4), bools(0, 4)], (), ("head 1 must have 1 rows",)),
        (
            [torch.ones(6, 2, dtype=torch.bool), bools(4, 2)],
            (),
            ("head 0, row 0 must have at most one true rank", "[0, 1]"),
        ),
        ([], (), ("must be a list of one array per head",)),
        ({"a": bools(2, 2)}, (), ("found dict",)),
    ],
)
def test_accuracy_files_that_are_not_so(tmp_path, held, more, words):
    torch.save(held, tmp_path / "a.pt")
    turned_away(tmp_path, tmp_path / "a.pt", "medusa-accuracy", *more, words=("a.pt: ", *words))


def test_one_head_with_its_prompts_or_steps(tmp_path):
    torch.save([torch.eye(6, dtype=torch.bool)], tmp_path / "a.pt")
    for more in (("--prompts", "2"), ("--steps", "3")):
        found, _ = bring(tmp_path, tmp_path / "a.pt", "medusa-accuracy", *more)
        assert found.rank[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
        assert found.position.tolist() == [0, 1, 2, 0, 1, 2]


class Code:
    """Runs a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.system, (f"touch {self.path}",))


def test_code_in_a_source_is_refused_and_not_run(tmp_path):
    torch.save([bools(6, 4), Code(tmp_path / "ran")], tmp_path / "a.pt")
    turned_away(tmp_path, tmp_path / "a.pt", "medusa-accuracy", words=("refused: it holds posix.system",))
    np.save(tmp_path / "a.npy", np.array([Code(tmp_path / "ran")], dtype=object), allow_pickle=True)
    turned_away(tmp_path, tmp_path / "a.npy", "table", "--column", "rank", words=("without objects",))
    assert not (tmp_path / "ran").exists()


# --- positional tables


@given(arrays.arrays(np.float64, st.integers(1, 8), elements=st.integers(0, 50).map(float)), st.integers(0, 1000))
def test_things_are_shared_out_to_less_than_one_of_what_is_due(shares, total):
    if shares.sum() == 0:
        return
    counts = apportion(shares, total)
    assert counts.sum() == total
    assert (np.abs(counts - shares / shares.sum() * total) < 1).all()
    outcomes = shuffled_outcomes(shares, total, np.random.default_rng(0))
    assert np.bincount(outcomes, minlength=len(shares)).tolist() == counts.tolist()


tables = arrays.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 6)), elements=st.floats(0, 0.16))


@given(tables)
def test_recall_is_ranks_summed_up(table):
    back = rank_table(np.cumsum(table, axis=1), column="recall")
    np.testing.assert_allclose(back, table, atol=1e-12)
    assert_equal_arrays(rank_table(table, column="rank"), table)


@settings(max_examples=30)
@given(tables, st.integers(0, 9))
def test_a_drawn_trace_has_the_tables_figures(tmp_path_factory, table, seed):
    """Frequencies to one anchor; a path's is the product of its steps' but for chance (six standard deviations)."""
    folder = tmp_path_factory.mktemp("table")
    np.save(folder / "t.npy", table)
    more = ("--column", "rank", "--requests", "4", "--length", "500", "--seed", seed, "--depth", "2")
    trace, _ = bring(folder, folder / "t.npy", "table", *(more if len(table) == 1 else more[:-2]))
    assert trace.width == table.shape[1]
    assert trace.depth == max(len(table), 2 if len(table) == 1 else 1)
    for depth in range(trace.depth):
        row = table[min(depth, len(table) - 1)]
        known = trace.rank[:, depth] != -2
        for rank, due in enumerate(row):
            share = float((trace.rank[known, depth] == rank).mean())
            assert abs(share - due) < 1 / 2000 + 4 * depth / 2000 + 1e-9
    if trace.depth > 1:
        full = trace.rank[trace.rank[:, 1] != -2]
        due = table[0, 0] * table[min(1, len(table) - 1), 0]
        both = float(((full[:, 0] == 0) & (full[:, 1] == 0)).mean())
        assert abs(both - due) < 6 * (due * (1 - due) / len(full)) ** 0.5 + 0.004


def test_tables_are_read_from_every_kind_of_file(tmp_path):
    table = [[0.5, 0.25], [0.375, 0.125], [0.25, 0.125]]
    torch.save(torch.tensor(table), tmp_path / "t.pt")
    np.save(tmp_path / "t.npy", np.array(table, dtype=np.float32))
    (tmp_path / "t.json").write_text(json.dumps(table))
    (tmp_path / "t.csv").write_text("# rank 0, rank 1\n0.5, 0.25\n\n0.375,0.125\n0.25,0.125\n")
    found = []
    for suffix in ("pt", "npy", "json", "csv"):
        trace, said = bring(tmp_path, tmp_path / f"t.{suffix}", "table", "--column", "rank")
        assert "Assumed: depths are independent of each other" in said
        found.append(trace.rank.tolist())
    assert found[0] == found[1] == found[2] == found[3]
    assert (len(trace.rank), trace.requests, trace.meta["seed"]) == (25600, 200, 0)
    other, _ = bring(tmp_path, tmp_path / "t.csv", "table", "--column", "rank", "--seed", "1")
    assert other.rank.tolist() != found[0]


def test_the_best_tree_of_a_drawn_trace_is_that_of_the_products(tmp_path):
    """Tables whose path products lie far apart: the most frequent paths are the most probable ones."""
    table = np.array([[0.6, 0.2, 0.05], [0.5, 0.15, 0.02]])
    np.save(tmp_path / "t.npy", table)
    trace, _ = bring(tmp_path, tmp_path / "t.npy", "table", "--column", "rank", "--requests", "100", "--length", "200")
    assert count_prefixes(trace, nodes=4, depth=2).tree(4, 2) == from_table(table, nodes=4).tree(4, 2)


@pytest.mark.parametrize(
    ("name", "content", "more", "words"),
    [
        ("t.json", "[[0.5, 0.7]]", ("--column", "rank"), ("row 0 sum to 1.2", "--column recall")),
        ("t.json", "[[0.5, 0.4]]", ("--column", "recall"), ("row 0 has 0.5 at rank 0 and 0.4", "--column rank")),
        ("t.json", "[[0.5, 0.4], [50, 1]]", ("--column", "rank"), ("row 1, rank 0 must be a probability", "found 50")),
        ("t.json", "[[0.5], [0.5, 0.2]]", ("--column", "rank"), ("rows of different lengths",)),
        ("t.json", "[[[0.5]]]", ("--column", "rank"), ("one or two dimensions",)),
        ("t.json", '["a"]', ("--column", "rank"), ("must hold numbers",)),
        ("t.json", "[NaN]", ("--column", "rank"), ("value [0] is not finite",)),
        ("t.json", "[", ("--column", "rank"), ("not JSON",)),
        ("t.csv", "rank0,rank1\n0.5,0.2", ("--column", "rank"), ("line 1 must be numbers", "'rank0,rank1'")),
        ("t.csv", "", ("--column", "rank"), ("must hold numbers",)),
        ("t.npy", "x", ("--column", "rank"), ("not an array of numpy.save",)),
        ("t.pt", "x", ("--column", "rank"), ("not a readable file of torch.save",)),
        ("t.txt", "x", ("--column", "rank"), ("must be one of .npy",)),
    ],
)
def test_tables_that_are_not_so(tmp_path, name, content, more, words):
    (tmp_path / name).write_text(content)
    turned_away(tmp_path, tmp_path / name, "table", *more, words=(name, *words))


def test_options_without_meaning(tmp_path):
    (tmp_path / "t.json").write_text("[[0.5, 0.4], [0.3, 0.2]]")
    turned_away(tmp_path, tmp_path / "t.json", "table", words=("--column",), code=2)
    turned_away(tmp_path, tmp_path / "t.json", "table", "--column", "rank", "--depth", "3", words=("--depth",), code=2)
    turned_away(tmp_path, tmp_path / "t.json", "table", "--steps", "3", words=("--steps does not apply",), code=2)
    turned_away(tmp_path, tmp_path / "none.json", "table", "--column", "rank", words=("none.json", "No such file"))
    (tmp_path / "t.json").write_text("[[0.1, 0.2, 0.3]]")
    _, said = bring(tmp_path, tmp_path / "t.json", "table", "--column", "rank")
    assert "was --column recall meant?" in said


@pytest.mark.parametrize("option", ["--requests", "--length"])
def test_traces_too_large_to_be_drawn(tmp_path, option, monkeypatch):
    (tmp_path / "t.json").write_text("[[0.5, 0.4], [0.3, 0.2]]")
    words = (f"{option} 1000000000", "--length", "MiB, at most 256")
    turned_away(tmp_path, tmp_path / "t.json", "table", "--column", "rank", option, "1000000000", words=words, code=2)
    (tmp_path / "v.json").write_text("[0, 0.6, 0.3, 0.1]")
    turned_away(tmp_path, tmp_path / "v.json", "sequoia-vector", option, "1000000000", words=words, code=2)
    depth = ("--depth", "1000000000")
    (tmp_path / "t.json").write_text("[0.5, 0.4]")
    turned_away(tmp_path, tmp_path / "t.json", "table", "--column", "rank", *depth, words=("--depth",), code=2)
    most = 6 * 7 * (2 + 4 + 4)  # bytes of rank, request, position
    monkeypatch.setattr("treeopt.traces.importers.readers.positional_table.MAX_BYTES", most)
    how = {"rng": np.random.default_rng(0), "meta": {}}
    found = table_trace(np.array([[0.5]]), requests=6, length=7, **how)
    assert sum(array.nbytes for array in (found.rank, found.request, found.position)) == most
    with pytest.raises(UsageError, match="--requests 7 of --length 7"):
        table_trace(np.array([[0.5]]), requests=7, length=7, **how)


def test_info_tells_what_a_trace_was_imported_from(tmp_path):
    (tmp_path / "t.json").write_text("[[0.5, 0.4], [0.3, 0.2]]")
    trace, _ = bring(tmp_path, tmp_path / "t.json", "table", "--column", "rank")
    lines = done("trace", "info", tmp_path / "out.npz").stdout.splitlines()
    assert lines[1] == "imported: table, t.json; seed 0."
    beware = [line for line in lines if line.startswith("Warning: assumed: ")]
    assert beware == [f"Warning: assumed: {each}." for each in trace.meta["assumed"]]
    assert len(beware) >= 3


# --- Sequoia's vectors


@pytest.mark.parametrize("reject_slot", [True, False])
def test_both_layouts_of_a_vector_say_the_same(tmp_path, reject_slot):
    """What `test_accept.py` and `fast_test.py` would save of one measurement."""
    accepted = torch.tensor([0.6342, 0.1079, 0.0570, 0.0225])
    vector = torch.zeros(4 + 1 + reject_slot)
    vector[1:5] = accepted
    if reject_slot:
        vector[5] = 1 - accepted.sum()
    torch.save(vector, tmp_path / "acceptance-rate-vector.pt")
    trace, said = bring(tmp_path, tmp_path / "acceptance-rate-vector.pt", "sequoia-vector", "--depth", "3")
    assert (trace.depth, trace.width) == (3, 4)
    shares = [float((trace.rank[:, 0] == rank).mean()) for rank in range(4)]
    np.testing.assert_allclose(shares, accepted, atol=1 / trace.anchors)
    assert "holds at every depth" in said
    expected = 1 + sum(0.6342**depth for depth in (1, 2, 3))
    assert replay_tree(Tree.chain(3), trace).tau == pytest.approx(expected, rel=0.02)


def test_vectors_that_do_not_tell(tmp_path):
    vector = np.array([0.0, 0.7, 0.2, 0.0995])
    with pytest.raises(TraceError, match=r"sums to 0.9995.*--reject-slot.*--no-reject-slot"):
        vector_table(vector, depth=2)
    assert vector_table(vector, depth=2, reject_slot=True).shape == (2, 2)
    assert vector_table(vector, depth=2, reject_slot=False).shape == (2, 3)
    with pytest.raises(TraceError, match=r"with the rejections the vector must sum to 1, found 0\.9"):
        vector_table(np.array([0, 0.7, 0.2]), depth=2, reject_slot=True)
    with pytest.raises(TraceError, match=r"begins with 0, found \(3,\) beginning with 0.7"):
        vector_table(np.array([0.7, 0.2, 0.1]), depth=2)
    with pytest.raises(TraceError, match="row 0, rank 1 must be a probability"):
        vector_table(np.array([0, 1.7, 0.2]), depth=2)
    with pytest.raises(TraceError, match=r"ranks of row 0 sum to 1.4"):
        vector_table(np.array([0, 0.7, 0.7]), depth=2, reject_slot=False)
    np.save(tmp_path / "v.npy", np.array([[0.0, 0.5, 0.5]]))
    turned_away(tmp_path, tmp_path / "v.npy", "sequoia-vector", words=("one row that begins with 0, found (1, 3)",))


# --- one trace as two


def test_a_trace_is_split_and_joined_again(tmp_path):
    rng = np.random.default_rng(0)
    whole = drawn_trace([[0.5, 0.2]], rng.integers(1, 9, 11).tolist(), depth=2, rng=rng)
    object.__setattr__(whole, "meta", {"text_sha256": "ab", "assumed": ["x"]})
    save_trace(whole, tmp_path / "t.npz")
    words = ("trace", "split", tmp_path / "t.npz", "--share", "0.3", "--seed", "4")
    result = done(*words, "--output", tmp_path / "a.npz", "--rest", tmp_path / "b.npz")
    first, rest = (load_trace(tmp_path / f"{name}.npz") for name in "ab")
    assert "3 requests" in result.stderr
    assert (first.requests, rest.requests) == (3, 8)
    assert not set(first.request) & set(rest.request)
    assert first.meta["split"] == {"share": 0.3, "seed": 4, "part": "first", "requests": 11}
    again = merge_traces([first, rest])
    assert sorted(map(tuple, again.rank.tolist())) == sorted(map(tuple, whole.rank.tolist()))
    assert again.meta["assumed"] == ["x"]
    with pytest.raises(TraceError, match="texts that stand in the list before it"):
        merge_traces([first, first])
    twice, _ = halves(first, share=0.5, seed=1)
    assert twice.meta["split"]["before"]["seed"] == 4
    for share in (0.0, 1.0, -0.5, float("nan")):
        with pytest.raises(UsageError, match=f"share must lie between 0 and 1, got {share}"):
            halves(whole, share=share, seed=0)
        parts = ("--output", tmp_path / "c.npz", "--rest", tmp_path / "d.npz", "--force")
        refused(run("trace", "split", tmp_path / "t.npz", "--share", share, *parts), "share", code=2)
        assert not (tmp_path / "c.npz").exists()
    same = ("--output", tmp_path / "c.npz", "--rest", tmp_path / "c.npz", "--force")
    refused(run(*words, *same), "--output and --rest must be two files", code=2)
    refused(
        run(*words[:2], tmp_path / "none.npz", "--output", tmp_path / "c.npz", "--rest", tmp_path / "d.npz"), "none.npz"
    )
    assert accepted_lengths(Tree.chain(1), first).shape == (first.anchors,)


def test_what_any_of_the_merged_traces_assumed_is_kept():
    rng = np.random.default_rng(0)
    parts = []
    for number, assumed in enumerate((["a", "b"], ["b", "c"], None)):
        trace = drawn_trace([[0.5, 0.2]], [5, 5], depth=2, rng=rng)
        meta = {"text_sha256": str(number)} | ({"assumed": assumed} if assumed else {})
        object.__setattr__(trace, "meta", meta)
        parts.append(trace)
    assert merge_traces(parts).meta["assumed"] == ["a", "b", "c"]
