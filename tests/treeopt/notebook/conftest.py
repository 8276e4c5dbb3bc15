"""A value of every kind, for what notebooks show and draw of it."""

import pytest

import treeopt
from treeopt.tree import Tree

TRACES = ["data/traces/medusa-t0.npz", "data/traces/eagle-t0.npz"]


@pytest.fixture(scope="package")
def values():
    return {
        "tree": Tree.from_paths([(0, 0), (1,)]),
        "trace": treeopt.load_trace(TRACES[0]),
        "plan": treeopt.search(TRACES[0], batch=(1, 4), max_nodes=4, solver_work=0),
        "profile": treeopt.load_profile("data/profiles/eagle-cpu.json"),
        "validation": treeopt.load_validation("data/validations/medusa-cpu.json"),
        "comparison": treeopt.compare(TRACES, sizes="chain:2"),
        "run": treeopt.simulate(TRACES[0], tree=Tree.chain(1), batch=4),
        "server": treeopt.simulate(TRACES[0], tree=Tree.chain(1), batch=4, arrivals=20, requests=40, replications=2),
    }
