"""Profiles of engines whose drafter often finds nothing: the time of a step that drafts, from steps of both kinds."""

import numpy as np
import pytest

from executor.profiling.profile_settings import Measuring
from executor.runners.engine_runner import EngineRunner
from tests.helpers.measured_profiles import measure_profile
from treeopt.cost_model import StepShape
from treeopt.engines.driver import EngineStep
from treeopt.errors import UsageError
from treeopt.replay.static_tree import step_seconds
from treeopt.tree import Tree

PLAIN_S, TOKEN_S = 0.010, 0.004
EVERY = 4  # one step in four drafts
PROMPTS = [[1, 2, 3, 4]] * 8


class Lookup:
    """An engine whose steps take so much a drafted token, on average over the rows; every fourth step drafts."""

    tree_requests, longest, alive = 0, 0, 1

    def launch(self, draft):
        return draft

    def __init__(self, least=1, *, reports=True):
        self.meta, self.least, self.reports = {"name": "llama.cpp"}, least, reports

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def decode(self, requests, *, draft, concurrency):
        draft = draft if draft >= self.least else 0
        at_s, left = 1.0, [request.new_tokens - 1 for request in requests]
        for number in range(len(requests)):
            yield EngineStep(number, 1, at_s, prefill=True)
        step = 0
        while any(left):
            drafts = [draft if (step + row) % EVERY == 0 else 0 for row in range(len(requests))]
            at_s += PLAIN_S + TOKEN_S * sum(drafts) / len(drafts)
            step += 1
            for row in range(len(requests)):
                left[row] -= 1
                known = drafts[row] if self.reports else None
                yield EngineStep(row, 1, at_s, drafted=known, ended=left[row] == 0)


def profile(engine, batches=(1, 4), work=None, progress=lambda runs: None):
    settings = Measuring(batch=batches, max_depth=3, new_tokens=EVERY * 10 + 1, rounds=2)
    return measure_profile(EngineRunner(lambda most: engine), PROMPTS, settings, work=work, progress=progress)


@pytest.mark.parametrize("batch", [1, 4])
def test_a_step_that_drafts_is_priced_in_full(batch):
    measured = profile(Lookup())
    for length in (1, 2, 3):
        step_s = measured.step_s([StepShape.of(Tree.chain(length), batch=batch)])[0]
        assert step_s == pytest.approx(PLAIN_S + TOKEN_S * length, rel=1e-6)
    # As many steps draft in the predicted run as in the profile's: the mean is what was measured.
    drafted = [EVERY - 1, 0, 0, 1]
    mean_s = step_seconds(Tree.chain(3), measured, batch=batch, drafted=np.array(drafted))
    assert mean_s == pytest.approx(PLAIN_S + TOKEN_S * 3 / EVERY, rel=1e-6)


def test_a_length_that_was_never_drafted_takes_the_time_per_token_of_the_next():
    measured = profile(Lookup(least=2))
    assert measured.step_s([StepShape.of(Tree.chain(1), batch=1)])[0] == pytest.approx(PLAIN_S + TOKEN_S)
    assert [row["mean_drafted"] for row in measured.meta["spread"] if row["batch"] == 1] == [0, 0, 0.5, 0.75]


def test_without_a_report_every_step_counts_as_drafting():
    measured = profile(Lookup(reports=False), batches=(1,))
    step_s = measured.step_s([StepShape.of(Tree.chain(2), batch=1)])[0]
    assert step_s == pytest.approx(PLAIN_S + TOKEN_S * 2 / EVERY, rel=1e-6)
    drafted = np.array([EVERY - 1, 0, 1])
    assert step_seconds(Tree.chain(2), measured, batch=1, drafted=drafted) == pytest.approx(step_s)
    assert not profile(Lookup(), batches=(1,)).meta["means_over_all_steps"]


def test_an_engine_that_drafts_nothing_has_no_profile():
    with pytest.raises(UsageError, match="in no timed step did the engine draft anything: decode more tokens"):
        profile(Lookup(least=9))


def test_an_interrupted_profile_resumes(tmp_path):
    """Kept rounds are not measured again; only whole ones are kept, whose ratios to plain decoding count."""
    work, done = tmp_path / "p.json.work", []

    def stop(runs):
        done.append(runs)
        if len(done) == 11:  # of 16, in the second round
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile(Lookup(), work=work, progress=stop)
    left = []
    resumed, whole = profile(Lookup(), work=work, progress=left.append), profile(Lookup())
    assert sum(left) == 8
    assert resumed.batches == whole.batches
    with pytest.raises(UsageError, match=r"was begun with batch \[1, 4\], not \[1\]"):
        profile(Lookup(), batches=(1,), work=work)
