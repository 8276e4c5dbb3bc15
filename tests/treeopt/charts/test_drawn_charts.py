import matplotlib as mpl
import numpy as np
import pytest

from simulate.profiles.profile import BatchTimes, Profile
from treeopt import draw_speedups, draw_tau, search
from treeopt.replay.static_tree import replay_tree
from treeopt.searchers.static_trees.best_first import count_prefixes
from treeopt.traces.trace import Trace

mpl.use("Agg")
from matplotlib import pyplot as plt


@pytest.fixture(scope="module")
def trace():
    rng = np.random.default_rng(0)
    rank = (rng.geometric(0.6, (600, 3)) - 1).astype(np.int16)
    rank[rank >= 8] = -1
    position = np.tile(np.arange(20, dtype=np.int32), 30)
    rank[np.arange(3) >= (20 - position)[:, None]] = -2
    return Trace(np.repeat(np.arange(30, dtype=np.int32), 20), position, rank, 8)


def test_speedups_show_every_way_and_its_figures(trace):
    times = [BatchTimes(b, 1.0, ((1, 0.05), (3, 0.1)), ((2, 1.0), (64, 1.0 + b))) for b in (1, 4)]
    plan = search(trace, Profile(tuple(times), (0, 100), 0.01), batch=(1, 4), max_nodes=20)
    figure, ax = plt.subplots()
    draw_speedups(ax, plan)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert {"chosen tree", "best chain"} <= set(labels)
    line = next(drawn[0] for drawn in ax.containers if drawn.get_label() == "best chain")
    rows = plan.frame().query("name == 'best chain'")
    assert line.get_ydata() == pytest.approx(rows["speedup"].to_numpy())
    plt.close(figure)


def test_tau_shows_average_and_replay(trace):
    figure, ax = plt.subplots()
    draw_tau(ax, trace, sizes=(1, 4, 16))
    averaged = next(line for line in ax.get_lines() if line.get_label() == "averaged over positions")
    replayed = next(drawn[0] for drawn in ax.containers if drawn.get_label() == "replayed along the walk")
    frontier = count_prefixes(trace, nodes=16, depth=3)
    assert averaged.get_ydata()[1] == pytest.approx(frontier.tokens(3)[4])
    assert replayed.get_ydata()[2] == pytest.approx(replay_tree(frontier.tree(16, 3), trace).tau)
    plt.close(figure)
