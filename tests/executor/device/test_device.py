"""Clocks: the host's, and that of a device behind it; free memory inside containers and batch systems."""

import gc
from collections.abc import Callable

import pytest
import torch

from executor import device
from executor.decoding.cuda_graphs import Graphs
from executor.decoding.decoder import Decoder, LaunchedStep, copy_to_host
from executor.decoding.request_queue import Step
from executor.device import Clock, elapsed_s, free_bytes, group_limits, no_collection
from tests.helpers.models import random_heads, random_prompts, small_target
from treeopt.tree import Tree


class Event:
    """Stands for CUDA's: the n-th recorded is passed after n squared milliseconds."""

    recorded = 0

    def __init__(self, *, enable_timing):
        assert enable_timing

    def record(self, stream):
        Event.recorded += 1
        self.stream, self.passed_ms = stream, Event.recorded**2

    def elapsed_time(self, end):
        return float(end.passed_ms - self.passed_ms)


def test_marks_on_cuda_lie_in_the_queue_of_the_device(monkeypatch):
    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr("torch.cuda.current_stream", lambda device: f"stream of {device}")
    clock = Clock(torch.device("cuda:1"))
    one, two, three = (clock.mark() for _ in range(3))
    assert clock.queued
    assert one.stream == "stream of cuda:1"
    assert elapsed_s(one, two) == pytest.approx(0.003)
    assert elapsed_s(two, three) == pytest.approx(0.005)


@pytest.mark.parametrize("before", [True, False])
def test_no_garbage_is_collected_while_steps_are_timed(monkeypatch, before):
    state = [before]
    for name, value in {"isenabled": lambda: state[-1], "disable": lambda: state.append(False)}.items():
        monkeypatch.setattr(gc, name, value)
    monkeypatch.setattr(gc, "enable", lambda: state.append(True))
    with no_collection():
        assert not state[-1]
    assert state[-1] == before


class Queue:
    """Stands for the clock of a device behind the host: a second passes from mark to mark."""

    queued = True

    def __init__(self):
        self.now = 0.0

    def mark(self):
        self.now += 1
        return self.now


def steps_of(monkeypatch, *, graphs: bool = False, working: int = 0) -> tuple[list[Step], float]:
    """Three requests one after the other, outcomes read late, by a slow caller; and the time at the end."""
    queue, empty = Queue(), torch.empty
    monkeypatch.setattr("executor.decoding.decoder.Clock", lambda device: queue)
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **words: empty(*size, **words))

    def capture(work: Callable[[], None]) -> Callable[[], None]:
        queue.now += 50
        return work

    monkeypatch.setattr("executor.decoding.decoder.Graphs", lambda rows: Graphs(rows, capture))
    decoder = Decoder(small_target(), random_heads(), tree=Tree.chain(2), late=1)
    decoder.graphs, decoder.bucket = graphs, 256
    found = []
    for step in decoder.steps(random_prompts((5, 3, 8)), new_tokens=6):
        found.append(step)
        queue.now += working
    return found, queue.now


@pytest.mark.parametrize("late", [0, 1, 3])
def test_outcomes_take_the_memory_of_those_that_were_read(monkeypatch, late):
    """A device writes an outcome before the host has waited for it, and no other into the same memory until then."""

    def decoded():
        decoder = Decoder(target, heads, tree=Tree.chain(2), batch=2, late=late)
        return decoder.generate(prompts, new_tokens=[9, 1, 4, 9], stop=stop)

    target, heads, prompts, stop = small_target(), random_heads(), random_prompts((5, 1, 8, 3)), ()
    stop = torch.tensor(decoded()[3].tokens[-2:])
    expected, known, on_the_way, empty, copy = decoded(), {}, {}, torch.empty, copy_to_host

    def copied(*args, **words):
        memory = copy(*args, **words)
        assert id(memory) not in on_the_way
        known[id(memory)], on_the_way[id(memory)] = memory, memory.clone()
        return memory.fill_(-1)

    def read(step):
        return step.outcome.copy_(on_the_way.pop(id(step.outcome))).tolist()

    monkeypatch.setattr("executor.decoding.decoder.Clock", lambda device: Queue())
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **words: empty(*size, **words))
    monkeypatch.setattr("executor.decoding.decoder.copy_to_host", copied)
    monkeypatch.setattr(LaunchedStep, "read", read)
    assert decoded() == expected
    assert len(known) == late + 1


def total_s(steps: list[Step]) -> float:
    return sum(step.admit_s + step.draft_s + step.rest_s for step in steps)


@pytest.mark.parametrize("graphs", [False, True])
def test_seconds_of_a_device_behind_the_host_add_up(monkeypatch, graphs):
    """All that passed from the first mark, captures too, but for each pause with the caller (1), and the end: the last
    step's way to the caller (1), and the step that was under way then (3).
    """
    steps, ended = steps_of(monkeypatch, graphs=graphs)
    assert sum(max(step.ended) for step in steps) == 3
    assert total_s(steps) == ended - 1 - len(steps) - 4
    assert max(step.draft_s + step.rest_s for step in steps) < 100  # captures take 2 x 50, before drafting


def test_what_a_caller_does_with_a_step_counts_nowhere(monkeypatch):
    assert steps_of(monkeypatch)[0] == steps_of(monkeypatch, working=7)[0]


NAMES = ("memory.max", "memory.current", "inactive_file")


def group(folder, *, most: str, used: int, idle: int = 0, names=NAMES) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{most}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 7\n{names[2]} {idle}\n")


def test_every_group_around_a_process_counts(tmp_path, monkeypatch):
    monkeypatch.setitem(device.GROUPS, "", (tmp_path, *device.GROUPS[""][1:]))
    (tmp_path / "own").write_text("0::/job/step\n")
    group(tmp_path / "job", most="1000", used=900, idle=50)
    group(tmp_path / "job" / "step", most="max", used=100)
    assert list(group_limits(tmp_path / "own")) == [150]
    group(tmp_path / "job" / "step", most="120", used=130)
    assert list(group_limits(tmp_path / "own")) == [0, 150]
    group(tmp_path, most="500", used=0)  # of a container, which sees its own group as the root
    (tmp_path / "own").write_text("0::/elsewhere\n")
    assert list(group_limits(tmp_path / "own")) == [500]
    assert list(group_limits(tmp_path / "missing")) == []


def test_groups_of_version_1(tmp_path, monkeypatch):
    monkeypatch.setitem(device.GROUPS, "memory", (tmp_path, *device.GROUPS["memory"][1:]))
    (tmp_path / "own").write_text("5:cpu,cpuacct:/x\n4:memory:/docker/1\n")
    group(tmp_path, most="700", used=300, idle=100, names=device.GROUPS["memory"][1:])
    assert list(group_limits(tmp_path / "own")) == [500]


def test_free_memory_is_the_least_of_all(monkeypatch):
    whole = free_bytes(torch.device("cpu"))
    monkeypatch.setattr(device, "group_limits", lambda own: [whole // 2, whole * 2])
    assert free_bytes(torch.device("cpu")) == whole // 2
