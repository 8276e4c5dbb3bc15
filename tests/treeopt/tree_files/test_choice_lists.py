"""Trees of other programs: what their files hold is read, whatever disagrees is refused with its place."""

import json
import os
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executor.checkpoints.tensors.find_tensor_files import read_saved
from tests.helpers.strategies import rank_paths, trees
from treeopt.cli.options.value_types import STATIC, load_tree
from treeopt.errors import ExecutorError, TreeError
from treeopt.tree import Tree
from treeopt.tree_files.choice_lists import published_trees, read_tree, tree_of


def growmap_of(tree):
    """The dictionary that Sequoia saves, written node by node; ranks must be contiguous."""
    nodes = [(), *sorted(tree.paths, key=lambda path: (len(path), path))]
    number = {path: i for i, path in enumerate(nodes)}
    children = [[number[p] for p in nodes if len(p) == len(path) + 1 and p[:-1] == path] for path in nodes]
    levels = [[number[p] for p in nodes if len(p) == depth] for depth in range(tree.depth + 1)]
    mask = [[int(above == path[: len(above)]) for above in nodes] for path in nodes]
    return {
        "roots": levels,
        "branches": [[len(children[node]) for node in level] for level in levels],
        "Successors": children,
        "mask": torch.tensor(mask),
        "depth": torch.tensor([len(path) for path in nodes]),
        "size": len(nodes),
    }


def as_json(growmap):
    return {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in growmap.items()}


@st.composite
def contiguous(draw):
    """Trees whose siblings have ranks 0, 1, 2, ..."""
    paths = set(draw(trees(min_nodes=1)).paths)
    renamed = {(): ()}
    for path in sorted(paths, key=lambda path: (len(path), path)):
        siblings = sorted(other for other in paths if other[:-1] == path[:-1])
        renamed[path] = (*renamed[path[:-1]], siblings.index(path))
    return Tree.from_paths([path for path in renamed.values() if path])


@given(contiguous())
def test_growmaps_are_read_as_json_and_as_torch_saves_them(tmp_path_factory, tree):
    folder = tmp_path_factory.mktemp("growmaps")
    torch.save(growmap_of(tree), folder / "map.pt")
    (folder / "map.json").write_text(json.dumps(as_json(growmap_of(tree)), indent=4))
    assert load_tree(folder / "map.pt") == tree
    assert read_tree(folder / "map.json").tree == tree


def test_the_growmap_that_the_reference_shows():
    """4x2 of UMbreLLa, typed by hand from its file."""
    growmap = {
        "roots": [[0], [1, 2], [3, 4]],
        "branches": [[2], [1, 1], [0, 0]],
        "Successors": [[1, 2], [3], [4], [], []],
        "mask": [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [1, 0, 1, 0, 1]],
        "depth": [0, 1, 1, 2, 2],
        "size": 5,
    }
    assert tree_of(growmap).tree == Tree.from_paths([(0, 0), (1, 0)])
    assert tree_of(growmap).reading == "growmap"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("Successors", [[1, 2], [3], [], [], [4]], r"Successors\[4\] must continue with 4 .*found 4"),
        ("Successors", [[1, 2], [3], [], [], []], "5 entries, but names 3 nodes"),
    ],
)
def test_growmaps_that_are_broken(key, value, message):
    growmap = as_json(growmap_of(Tree.from_paths([(0, 0), (1, 0)])))
    with pytest.raises(TreeError, match=message):
        tree_of(growmap | {key: value})


# --- lists of rank paths


@given(rank_paths(), st.sampled_from(["list", "tuple", "mixed"]), st.booleans(), st.randoms())
def test_lists_are_read_in_any_order_and_as_leaves(paths, form, leaves, random):
    if not paths:
        return
    tree = Tree.from_paths(paths)
    listed = [path for path in tree.paths if not leaves or not any(p[:-1] == path for p in tree.paths)]
    random.shuffle(listed)
    kinds = {"list": [list], "tuple": [tuple], "mixed": [list, tuple]}[form]
    text = str([kinds[i % len(kinds)](path) for i, path in enumerate(listed)])
    found = tree_of(text)
    assert found.tree == tree
    assert found.reading == ("every node" if len(listed) == tree.nodes else "leaves only")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[0], [0, 0], [0]]", r"path 2 \[0\] repeats path 0"),
        ("[[0], [0, 0], [1, 0]]", r"path 2 \[1, 0\] has no parent \[1\] in the list.*path 1 .* continues another"),
        ("[[0], [0, -1]]", "path 1 must hold ranks in 0..32767, found -1"),
        ("[[0], []]", "path 1 is empty: the root is not a node"),
        ("[]", "the list is empty"),
        ("[" * 5000, "not a literal"),
    ],
)
def test_lists_that_are_no_trees(text, message):
    with pytest.raises(TreeError, match=message):
        tree_of(text)


CHOICES = """
'''Trees of a project.'''
import os
mc_sim_7b_63 = [[0], [0, 0], [1], [0, 1]]
stage2: list = [(0,), [1], (0, 0)]
leaves = ((0, 0, 0), (1,))
limit = 64
made = [[i] for i in range(4)]
"""


def test_python_files_have_trees_by_name(tmp_path):
    file = tmp_path / "choices.py"
    file.write_text(CHOICES)
    assert read_tree(file, name="mc_sim_7b_63").tree == Tree.from_paths([(0, 0), (0, 1), (1,)])
    assert read_tree(file, name="stage2").tree == Tree.from_paths([(0, 0), (1,)])
    assert read_tree(file, name="leaves").reading == "leaves only"
    with pytest.raises(
        TreeError, match=r"choices.py: it has several trees, mc_sim_7b_63, stage2, leaves: write FILE:NAME"
    ):
        read_tree(file)
    with pytest.raises(TreeError, match="it has no tree 'made'; it has mc_sim_7b_63, stage2, leaves"):
        read_tree(file, name="made")
    for text, message in (
        ("choices = [[0], [0]]", r"choices.py: choices: path 1 \[0\] repeats path 0"),
        ("def f(:", "not Python"),
        ("limit = 3", "it has no list of rank paths with a name"),
    ):
        file.write_text(text)
        with pytest.raises(TreeError, match=message):
            read_tree(file)
    file.write_text("[[0], [1]]", "utf-8-sig")
    assert read_tree(file).tree == Tree.from_paths([(0,), (1,)])
    with pytest.raises(TreeError, match="it holds a single tree without a name, got the name 'x'"):
        read_tree(file, name="x")


@pytest.mark.parametrize("name", sorted(published_trees()))
def test_published_lists_come_back(tmp_path, name):
    tree = published_trees()[name]
    paths = [list(path) for path in tree.paths]
    (tmp_path / "choices.py").write_text(f"other = [[0]]\n{name.split('/')[-1]} = {paths}\n")
    assert load_tree(tmp_path / "choices.py", name=name.split("/")[-1]) == tree
    (tmp_path / "engine.json").write_text(json.dumps({"method": "eagle", "speculative_token_tree": str(tree.paths)}))
    found = read_tree(tmp_path / "engine.json")
    assert (found.tree, found.name) == (tree, "speculative_token_tree")
    (tmp_path / "plain.txt").write_text(str([tuple(path) for path in paths]))
    assert load_tree(tmp_path / "plain.txt") == tree


def test_files_that_cannot_be_read(tmp_path):
    for name, content, message in [
        ("a.json", b"{", "a.json: not JSON"),
        ("a.json", b"[" * 100_000, "a.json: not JSON"),
        ("a.txt", b"\xff\xff", "a.txt: cannot be read"),
        ("a.json", b'{"size": 3}', "a.json: it has no list of rank paths with a name"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TreeError, match=message):
            read_tree(tmp_path / name)
    with pytest.raises(TreeError, match="cannot be read: No such file"):
        read_tree(tmp_path / "none.json")
    with pytest.raises(TreeError, match=r"saved=find_tensor_files\.read_saved"):
        read_tree(tmp_path / "a.pt")


# --- what torch saved


class Code:
    """Runs a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.system, (f"touch {self.path}",))


def test_pickled_code_is_refused_and_not_run(tmp_path):
    file = tmp_path / "map.pt"
    torch.save(growmap_of(Tree.chain(2)) | {"more": Code(tmp_path / "ran")}, file)
    with pytest.raises(ExecutorError, match=r"map.pt: refused: it holds posix.system, where plain tensors must be"):
        load_tree(file)
    file.write_bytes(pickle.dumps(Code(tmp_path / "ran")))
    with pytest.raises(ExecutorError, match=r"not a readable file of torch\.save"):
        load_tree(file)
    assert not (tmp_path / "ran").exists()


def test_saved_values_are_read_as_numpy(tmp_path):
    file = tmp_path / "a.pt"
    value = [torch.tensor([True, False]), {"half": torch.tensor([0.5], dtype=torch.bfloat16), "n": (1, "a", None)}]
    torch.save(value, file)
    found = read_saved(file)
    assert found[0].dtype == np.bool_
    assert found[1]["half"].tolist() == [0.5]
    assert found[1]["n"] == [1, "a", None]
    deep: list = [1]
    for _ in range(9):
        deep = [deep]
    for held, message in [
        (torch.zeros(1).expand(10**6, 10**6), r"it claims \(1000000, 1000000\), which is more than its data"),
        ([torch.zeros(2, 2).to_sparse()], r"it\[0\] must be a plain tensor"),
        (deep, "nested more than 8 levels deep"),
    ]:
        torch.save(held, file)
        with pytest.raises(ExecutorError, match=message):
            read_saved(file)


# --- on the command line


def test_the_command_line_takes_files(tmp_path, caplog):
    (tmp_path / "choices.py").write_text(CHOICES)
    torch.save(growmap_of(Tree.full(2, 2)), tmp_path / "map.pt")
    convert = STATIC.convert
    caplog.set_level("INFO", "treeopt")
    assert convert(f"{tmp_path}/choices.py:stage2", None, None) == Tree.from_paths([(0, 0), (1,)])
    assert convert(f"{tmp_path}/map.pt", None, None) == Tree.full(2, 2)
    assert caplog.messages == []
    assert convert(f"{tmp_path}/choices.py:leaves", None, None) == Tree.from_paths([(0, 0, 0), (1,)])
    assert "read as a list of leaves, which implies 4 nodes" in caplog.text
    assert convert("eagle1/chain5", None, None) == Tree.chain(5)
