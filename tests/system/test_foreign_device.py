"""All that runs on a device makes its tensors there, and gives there what it gives on the CPU.

`test_host_reads` traces the loop with every drafter and rule; here are policies that ask the host, and what records.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.foreign_device import FAULTS, JOBS

ROOT = Path(__file__).resolve().parent.parent.parent
CASES = [
    *(
        ("decode", {"kind": kind, "rule": rule, "tree": tree})
        for kind, rule, tree in (
            ("medusa", "greedy", "opt-tree"),
            ("medusa", "greedy", "cost-aware"),
            ("eagle3", "sample-and-match", "shared"),
            ("language-model", "sequoia", "branching"),
        )
    ),
    ("impose", {}),
    ("record", {"kind": "eagle3", "probabilities": True}),
    ("record", {"kind": "hydra++", "beam": 3}),
    ("record", {"kind": "medusa", "temperature": 1.0, "rule": "sequoia"}),
    ("profile", {}),
]


@pytest.fixture(scope="module")
def found():
    """What came of all cases, in a process of its own."""
    asked = json.dumps([*CASES, *(("fail", {"fault": fault}) for fault in FAULTS)])
    told = subprocess.run(
        [sys.executable, "-m", "tests.helpers.foreign_device"], input=asked, capture_output=True, text=True, cwd=ROOT
    )
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", range(len(CASES)), ids=lambda i: "-".join([CASES[i][0], *map(str, CASES[i][1].values())])
)
def test_a_device_of_its_own_gives_what_the_cpu_gives(found, number):
    job, settings = CASES[number]
    due = json.loads(json.dumps(JOBS[job]("cpu", **settings)))
    if job != "record":
        assert found[number] == due
        return
    for part, array in zip(found[number], due, strict=True):  # attention is another kernel, so logarithms may round
        np.testing.assert_allclose(part, array, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(found, fault):
    place = len(CASES) + list(FAULTS).index(fault)
    error = "MixedError" if fault in ("mixed", "index") else "CrossingError"
    assert error in found[place]
    assert JOBS["fail"]("cpu", fault=fault) == 5
