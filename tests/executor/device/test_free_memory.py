"""Free memory inside containers and batch systems."""

import torch

from executor import device as free_memory
from executor.device import free_bytes, group_limits

NAMES = ("memory.max", "memory.current", "inactive_file")


def group(folder, *, most: str, used: int, idle: int = 0, names=NAMES) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{most}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 7\n{names[2]} {idle}\n")


def test_every_group_around_a_process_counts(tmp_path, monkeypatch):
    monkeypatch.setitem(free_memory.GROUPS, "", (tmp_path, *free_memory.GROUPS[""][1:]))
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
    monkeypatch.setitem(free_memory.GROUPS, "memory", (tmp_path, *free_memory.GROUPS["memory"][1:]))
    (tmp_path / "own").write_text("5:cpu,cpuacct:/x\n4:memory:/docker/1\n")
    group(tmp_path, most="700", used=300, idle=100, names=free_memory.GROUPS["memory"][1:])
    assert list(group_limits(tmp_path / "own")) == [500]


def test_free_memory_is_the_least_of_all(monkeypatch):
    whole = free_bytes(torch.device("cpu"))
    monkeypatch.setattr(free_memory, "group_limits", lambda own: [whole // 2, whole * 2])
    assert free_bytes(torch.device("cpu")) == whole // 2
