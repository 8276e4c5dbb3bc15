"""SGLang's cost table: what its own parser asks for, a round trip, and its own look-up rule."""

import bisect
import json

import numpy as np
import pytest

from simulate.profiles.profile import load_profile
from simulate.profiles.sglang_cost_table import read_cost_table, write_cost_table
from treeopt.errors import CostError
from treeopt.storage.user_files import shipped

PROFILE = load_profile(shipped("profiles/eagle3-cpu.json"))
SAMPLED = {"sample_batch_tokens": [2, 4, 9], "sample_steps_per_sec": [100.0, 50.0, 20.0], "max_batch_tokens": 12}


def written(path, profile=PROFILE):
    write_cost_table(profile, path)
    return json.loads(path.read_text())


def test_the_written_table_meets_sglangs_conditions(tmp_path):
    """Conditions of `SpsCostTable.__post_init__` (SGLang 0.5.23), and a curve that does not rise."""
    table = written(tmp_path / "t.json")
    assert set(table) == {"sample_batch_tokens", "sample_steps_per_sec", "max_batch_tokens"}
    probes, rates = table["sample_batch_tokens"], table["sample_steps_per_sec"]
    assert probes == sorted(set(probes))
    assert len(probes) == len(rates) > 10
    assert table["max_batch_tokens"] >= probes[-1]
    assert (np.diff(rates) < 0).all()
    parts = PROFILE.parts(batch=1, tokens=9, depth=8, width=1)
    step_s = parts.verify_s[2] + parts.draft_s[:, 1].sum()
    assert rates[probes.index(2)] == pytest.approx(1 / step_s, rel=1e-5)  # six digits


def test_a_table_comes_back_as_it_was(tmp_path):
    table = written(tmp_path / "t.json")
    again = written(tmp_path / "u.json", read_cost_table(tmp_path / "t.json", device="x"))
    assert again == table


def test_the_sampled_form_is_looked_up_at_the_probe_below(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps(SAMPLED))
    for times in read_cost_table(tmp_path / "t.json", device="x").batches:
        for tokens, seconds in times.rest:
            place = max(bisect.bisect_right(SAMPLED["sample_batch_tokens"], times.batch * tokens) - 1, 0)
            assert seconds == pytest.approx(1 / SAMPLED["sample_steps_per_sec"][place])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sample_batch_tokens": [2, 2, 9]}, "must rise strictly"),
        ({"sample_steps_per_sec": [1.0]}, "as many values, found 1"),
        ({"sample_steps_per_sec": [1.0, -1.0, 1.0]}, "sample_steps_per_sec"),
        ({"sample_batch_tokens": [5, 6, 7], "max_batch_tokens": 7}, "no number of requests has a drafted token"),
    ],
)
def test_tables_that_cannot_be_are_refused(tmp_path, changes, words):
    (tmp_path / "t.json").write_text(json.dumps(SAMPLED | changes))
    with pytest.raises(CostError, match=words):
        read_cost_table(tmp_path / "t.json", device="x")


def test_the_additive_form_lies_on_lines_between_its_probes(tmp_path):
    table = {"bias_seconds": 0.01, "bs_probes": [1, 8], "alpha_seconds": [0.0, 0.002]}
    table |= {"m_probes": [2, 66], "theta_seconds": [0.001, 0.033]}
    (tmp_path / "t.json").write_text(json.dumps(table))
    found = read_cost_table(tmp_path / "t.json", device="x").batches
    assert [times.batch for times in found] == [1, 8]
    for times in found:
        assert len(times.rest) == {1: 64, 8: 8}[times.batch]
        for tokens, seconds in times.rest:
            theta_s = 0.001 + max(0, times.batch * tokens - 2) * 0.0005
            assert seconds == pytest.approx(0.01 + {1: 0.0, 8: 0.002}[times.batch] + theta_s)
    (tmp_path / "t.json").write_text(json.dumps(table | {"m_probes": [66]}))
    with pytest.raises(CostError, match="`m_probes` must rise strictly and have as many values, found 2"):
        read_cost_table(tmp_path / "t.json", device="x")


def test_other_files_are_left_to_other_readers(tmp_path):
    for text in ("batch,drafted,step_ms\n1,0,1\n", "[1]", '{"a": 1}'):
        (tmp_path / "t").write_text(text)
        assert read_cost_table(tmp_path / "t", device="x") is None
