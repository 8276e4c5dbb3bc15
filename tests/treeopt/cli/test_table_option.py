"""`--table`: the table of results beside the output, as the API's `frame()` has it."""

import pandas as pd
import pytest

import treeopt
from tests.helpers.command_line import done, refused, run

TRACES = ("data/traces/medusa-t0.npz", "data/traces/eagle-t0.npz")


def same(path, frame):
    """Assert that a CSV file holds the frame."""
    pd.testing.assert_frame_equal(pd.read_csv(path).convert_dtypes(), frame.convert_dtypes(), check_exact=True)


def test_search_writes_its_plan_as_a_table(trace_file, profile_file, tmp_path):
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1")
    plan = tmp_path / "plan.json"
    done(*words, "--output", plan, "--table", tmp_path / "plan.csv")
    frame = treeopt.load_plan(plan).frame()
    same(tmp_path / "plan.csv", frame)
    done(*words, "--json", "--table", tmp_path / "plan.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "plan.parquet"), frame)


@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "--trace", TRACES[0], "--tree", "1", "--batch", "4"),
        ("compare", *TRACES, "--shapes", "chain:2"),
    ],
    ids=lambda words: words[0],
)
def test_records_are_written_as_tables(words, tmp_path):
    done(*words, "--output", tmp_path / "record.json", "--table", tmp_path / "record.csv")
    frame = treeopt.load_record(tmp_path / "record.json").frame()
    assert len(frame) > 0
    same(tmp_path / "record.csv", frame)


def test_a_table_that_cannot_be_written_is_refused_before_any_work(trace_file, profile_file, tmp_path):
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1")
    refused(run(*words, "--table", tmp_path / "t.json"), "a table's file ends in .csv or .parquet", code=2)
    refused(run(*words, "--table", tmp_path / "no" / "t.csv"), "--table", code=2)
    copy = tmp_path / "trace.csv"
    copy.write_bytes(trace_file.read_bytes())
    refused(run(*words[:2], copy, *words[3:], "--table", copy), "is read as trace", code=2)
    assert copy.read_bytes() == trace_file.read_bytes()
