"""SGLang's cost table, by its own parser and look-up rule; step times from two measured arms, which come back."""

import bisect
import json

import numpy as np
import pytest

from simulate.profiles.profile import load_profile
from simulate.profiles.sglang_cost_table import profile_of_arms, read_cost_table, write_cost_table
from simulate.runs.simulate_settings import VerdictSettings
from simulate.runs.verdict_record import compare_lengths
from treeopt.cost_model import StepShape
from treeopt.errors import CostError
from treeopt.replay.static_tree import replay_tree
from treeopt.storage.user_files import shipped
from treeopt.traces.importers.acceptance_curves import acceptance
from treeopt.tree import Tree

PROFILE = load_profile(shipped("profiles/eagle3-cpu.json"))
SAMPLED = {"sample_batch_tokens": [2, 4, 9], "sample_steps_per_sec": [100.0, 50.0, 20.0], "max_batch_tokens": 12}


def written(path, profile=PROFILE):
    write_cost_table(profile, path)
    return json.loads(path.read_text())


def test_the_written_table_meets_sglangs_conditions_and_comes_back(tmp_path):
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


ACCEPTED = "0.80,0.62,0.46,0.33,0.24,0.17,0.12"
ARMS = shipped("traces").parent.parent / "docs" / "examples" / "vllm_52362_arms.csv"
# vllm#52362, MI355X, adaptive over fixed 7, by concurrency.
PUBLISHED = {4: -0.070, 8: -0.083, 16: -0.047, 32: -0.054, 64: 0.064, 128: 0.180, 256: 0.697}


def test_both_arms_come_back_and_fewer_drafted_tokens_take_no_longer():
    trace = acceptance(ACCEPTED)
    (profile, _), tau = profile_of_arms(ARMS, trace), replay_tree(Tree.chain(7), trace).tau
    rates = {(4, 0): 381.5, (4, 7): 970.3, (256, 0): 8878.6, (256, 7): 7852.4}
    for (batch, length), rate in rates.items():
        step_s = profile.plain_s(batch=batch)
        if length:
            step_s = float(profile.step_s([StepShape.of(Tree.chain(length), batch=batch)])[0])
        assert batch * (tau if length else 1) / step_s == pytest.approx(rate)
    for times in profile.batches:
        assert (np.diff([seconds for _, seconds in times.rest]) >= 0).all()


def test_a_verdict_has_the_speeds_of_both_arms():
    """Where rows emptied at the end of each run, plain decoding was 4 % slower than measured and ratios 3 % off."""
    profile, _ = profile_of_arms(ARMS, acceptance(ACCEPTED))
    record = compare_lengths(acceptance(ACCEPTED), profile, {4: None, 256: None}, VerdictSettings(), fixed=7)
    for load, *rates in zip(record["loads"], (381.5, 8878.6), (970.3, 7852.4), strict=True):
        for arm, rate in zip(load["configurations"], rates, strict=False):
            assert arm["tokens_s"]["value"] == pytest.approx(rate, rel=0.01)


@pytest.mark.slow
def test_the_third_arm_has_the_published_sign():
    """All seven loads of vllm#52362, whose third arm set the two constants."""
    trace = acceptance(ACCEPTED)
    profile, _ = profile_of_arms(ARMS, trace)
    record = compare_lengths(trace, profile, dict.fromkeys(PUBLISHED), VerdictSettings(adaptive_s=1e-3), fixed=7)
    for load in record["loads"]:
        speeds = {arm["name"]: arm["tokens_s"]["value"] for arm in load["configurations"]}
        assert (speeds["adaptive"] > speeds["fixed"]) == (PUBLISHED[load["requests"]] > 0)


def test_batch_sizes_of_one_arm_are_named(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("batch,drafted,tokens_s\n1,0,9\n1,2,9\n4,0,30\n8,2,50\n16,0,80\n16,2,80\n")
    profile, known = profile_of_arms(path, acceptance(ACCEPTED))
    assert [times.batch for times in profile.batches] == [1, 16]
    assert known[1] == "only one of the two arms was measured at batch 4, 8: left out"
    assert known[2].startswith("between batch 1 and 16 verification is taken to rise on a line")


def test_arms_are_read_in_the_tables_that_step_times_are_read_in(tmp_path):
    rows = "|8|0|700.0|\n|8|3|1,000.50|\n|4|0|400|\n|4|3|600|"
    (tmp_path / "a.md").write_text(f"| concurrency | K | tok/s |\n|---:|---:|---:|\n{rows}")
    profile, _ = profile_of_arms(tmp_path / "a.md", acceptance(ACCEPTED))
    assert profile.plain_s(batch=8) == pytest.approx(8 / 700)
    step_s = float(profile.step_s([StepShape.of(Tree.chain(3), batch=8)])[0])
    assert step_s == pytest.approx(8 * replay_tree(Tree.chain(3), acceptance(ACCEPTED)).tau / 1000.5)
    assert not profile.doubts


def test_arms_of_tokens_of_one_request_are_doubted(tmp_path):
    (tmp_path / "a.csv").write_text("batch,drafted,tokens_s\n1,0,100\n8,0,80\n1,3,180\n8,3,120\n")
    profile, _ = profile_of_arms(tmp_path / "a.csv", acceptance(ACCEPTED))
    assert "was tokens_s that of one request, not of all" in profile.doubts[0]
    assert "add them to a.csv" in profile.way_to([64])[0]


BAD = {
    "batch,drafted,tokens_s\n1,0,x\n": "line 2",
    "batch,drafted\n1,0\n": "which column is tokens_s? the columns are batch, drafted: rename or add it",
    "bs,k,tok/s\n1,0,9\n1,2,9\n1,3,9\n": "must be 0 and one length",
    "batch,drafted,tokens_s\n1,0,9\n2,2,9\n": "at the same batch sizes",
    "batch,drafted,tokens_s\n1,0,9\n1,2,9\n": "one batch size, 1, does not tell drafting from verification",
    "batch,drafted,tokens_s\n1,0,9\n1,2,900\n2,0,9\n2,2,900\n": "takes less than a plain one",
    "": "must be 0 and one length",
    "batch,drafted,tokens_s\n1,0,9\n1,9,9\n2,0,9\n2,9,9\n": "9 tokens are drafted, the acceptance has 8 positions",
    "batch,drafted,tokens_s\n1,0,9\n8,0\n": "line 3: `tokens_s` must be a number, found ''",
    "batch,drafted,tokens_s\n1,0,9\n1,0,9\n": "line 3: 1, 0, 9 are there twice",
}


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_pair_of_arms_is_refused(tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(CostError, match=r"a\.csv: ") as error:
        profile_of_arms(tmp_path / "a.csv", acceptance(ACCEPTED))
    assert BAD[text] in str(error.value)
