"""Tables of acceptance by depth and rank: the trace has their figures; and traces that are split and merged."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.helpers.command_line import done, refused, run
from tests.helpers.positional_trees import from_table
from tests.helpers.source_texts import bring, turned_away
from tests.helpers.strategies import assert_equal_arrays, drawn_trace
from tests.treeopt.tree_files.test_choice_lists import Code
from treeopt.errors import TraceError, UsageError
from treeopt.replay.static_tree import accepted_lengths
from treeopt.searchers.best_first import count_prefixes
from treeopt.traces.importers.sources.table import drawn_trace as table_trace
from treeopt.traces.importers.sources.table import rank_table
from treeopt.traces.importers.synthetic_trace import apportion, shuffled_outcomes
from treeopt.traces.merge_split import halves, merge_traces
from treeopt.traces.trace_files import load_trace, save_trace
from treeopt.tree import Tree


def test_code_in_a_source_is_refused_and_not_run(tmp_path):
    torch.save([torch.zeros(6, 4), Code(tmp_path / "ran")], tmp_path / "a.pt")
    turned_away(tmp_path, tmp_path / "a.pt", "table", "--column", "rank", words=("refused: it holds posix.system",))
    np.save(tmp_path / "a.npy", np.array([Code(tmp_path / "ran")], dtype=object), allow_pickle=True)
    turned_away(tmp_path, tmp_path / "a.npy", "table", "--column", "rank", words=("without objects",))
    assert not (tmp_path / "ran").exists()


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


@pytest.mark.parametrize(("row", "doubtful"), [([0.1, 0.2, 0.3], True), ([0.1, 0.2], False), ([0.2] * 3, False)])
def test_ranks_that_get_better_are_doubted(tmp_path, row, doubtful):
    (tmp_path / "t.json").write_text(json.dumps([row]))
    trace, _ = bring(tmp_path, tmp_path / "t.json", "table", "--column", "rank", "--requests", "4", "--length", "9")
    assert any("was --column recall meant?" in each for each in trace.meta["assumed"]) == doubtful


@pytest.mark.parametrize(
    ("name", "content", "more", "words"),
    [
        ("t.json", "[[0.5, 0.7]]", ("--column", "rank"), ("row 0 sum to 1.2", "--column recall")),
        ("t.json", "[[0.5, 0.4]]", ("--column", "recall"), ("row 0 has 0.5 at rank 0 and 0.4", "--column rank")),
        ("t.json", "[0, 0.6, 0.3, 0.1]", ("--column", "rank"), ("rank 0 is never right", "leave out the 0 in front")),
        ("t.csv", "rank0,rank1\n0.5,0.2", ("--column", "rank"), ("line 1 must be numbers", "'rank0,rank1'")),
        ("t.pt", "x", ("--column", "rank"), ("not a readable file of torch.save",)),
    ],
)
def test_tables_that_are_not_so(tmp_path, name, content, more, words):
    (tmp_path / name).write_text(content)
    turned_away(tmp_path, tmp_path / name, "table", *more, words=(name, *words))


@pytest.mark.parametrize("option", ["--requests", "--length"])
def test_traces_too_large_to_be_drawn(tmp_path, option, monkeypatch):
    (tmp_path / "t.json").write_text("[[0.5, 0.4], [0.3, 0.2]]")
    words = (f"{option} 1000000000", "--length", "MiB, at most 256")
    turned_away(tmp_path, tmp_path / "t.json", "table", "--column", "rank", option, "1000000000", words=words, code=2)
    depth = ("--depth", "1000000000")
    (tmp_path / "t.json").write_text("[0.5, 0.4]")
    turned_away(tmp_path, tmp_path / "t.json", "table", "--column", "rank", *depth, words=("--depth",), code=2)
    most = 6 * 7 * (2 + 4 + 4)  # bytes of rank, request, position
    monkeypatch.setattr("treeopt.traces.importers.sources.table.MAX_BYTES", most)
    how = {"rng": np.random.default_rng(0), "meta": {}}
    found = table_trace(np.array([[0.5]]), requests=6, length=7, **how)
    assert sum(array.nbytes for array in (found.rank, found.request, found.position)) == most
    with pytest.raises(UsageError, match="--requests 7 of --length 7"):
        table_trace(np.array([[0.5]]), requests=7, length=7, **how)


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
