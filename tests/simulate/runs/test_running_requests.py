"""Distributions of running requests, from tables and metrics."""

import pytest

from simulate.runs.server_load import LOADS, read_running
from treeopt.errors import UsageError

LOG = "INFO [loggers.py:271] Engine 000: Avg generation throughput: 72.0 tokens/s, Running: {} reqs, Waiting: 0 reqs\n"
TOKENS = """# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 10.0
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf"} 40.0
"""
FORMS = {
    "requests,share\n4, 1\n0,5\n16,3\n": {4: 0.25, 16: 0.75},
    "vllm:num_requests_running{m='a'} 8.0\nvllm:num_requests_running{m='a'} 2\n": {2: 0.5, 8: 0.5},
    TOKENS + "vllm:num_requests_running 4\n": {4: 1.0},  # steps that read prompts are in the histogram, too
    "ray_vllm_num_requests_running{ReplicaId='a'} 6\n": {6: 1.0},
    LOG.format(8) + LOG.format(2) + "Running: tests\n": {2: 0.5, 8: 0.5},
    "sglang:num_running_reqs 3\nother 7\n": {3: 1.0},
    'trtllm_num_requests_running 3.0\nlmdeploy:num_requests_running{engine="0"} 5.0\n': {3: 0.5, 5: 0.5},
}


@pytest.mark.parametrize("text", FORMS)
def test_every_form(tmp_path, text):
    (tmp_path / "f").write_text(text)
    found = read_running(tmp_path / "f")
    assert found == FORMS[text]


def test_many_loads_are_joined_to_a_few_with_the_same_mean(tmp_path):
    (tmp_path / "f").write_text("requests,share\n" + "".join(f"{n},1\n" for n in range(1, 201)))
    found = read_running(tmp_path / "f")
    assert len(found) == LOADS
    assert sum(found.values()) == pytest.approx(1)
    assert sum(n * share for n, share in found.items()) == pytest.approx(100.5, abs=0.5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "requests,share\nx,1\n",
        "requests,share\n1,nan\n2,1\n",
        "requests,share\n1,-1\n2,1\n",
        "requests,time\n1,1\n",
        "vllm:num_requests_running 0\n",
        TOKENS + "vllm:num_requests_running 0\n",  # tokens of prompts and drafts are no requests
    ],
)
def test_others_are_refused_with_what_is_wanted(tmp_path, text):
    (tmp_path / "f").write_text(text)
    with pytest.raises(UsageError, match=r"f: (must hold running requests|is no distribution)"):
        read_running(tmp_path / "f")
