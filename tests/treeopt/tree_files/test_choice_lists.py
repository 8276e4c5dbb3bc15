"""Trees of other programs in every spelling, file and option; what disagrees is refused with its place."""

import json
import os
import pickle
import time
from pathlib import Path

import click
import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.checkpoints.tensors.find_tensor_files import read_saved
from tests.helpers.strategies import rank_paths, trees
from treeopt.cli.options.value_types import NAMED_TREE, STATIC, load_tree
from treeopt.errors import ExecutorError, TreeError
from treeopt.tree import EMPTY, Tree
from treeopt.tree_files.choice_lists import holds_a_tree, named_tree, published_trees, read_tree, tree_of
from treeopt.tree_files.tree_text import named_values, value_in_text


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


TREE = Tree.from_paths([(0,), (1,), (0, 0)])
LISTS, TUPLES = "[[0], [1], [0, 0]]", "[(0,), (1,), (0, 0)]"

PLAIN = {
    "lists": LISTS,
    "tuples": TUPLES,
    "mixed": "[[0], (1,), (0, 0,),]",
    "over several lines": "[\n  (0,),   # best\n  (1,),\n  (0, 0),\n]",
    "leaves": "[(0, 0), (1,)]",
    "assignment": f"mc_sim = {LISTS}",
    "string assigned": f'speculative_token_tree = "{TUPLES}"',
    "attribute": f"config.eagle_choices = {LISTS}",
    "Python dictionary": f"spec = {{'method': 'eagle', 'speculative_token_tree': '{TUPLES}'}}",
    "call": f"Eagle3DecodingConfig(max_draft_len=2, eagle_choices={LISTS}, speculative_model='m')",
    "within a function": f"def main():\n    medusa_choices = {TUPLES}\n    return medusa_choices\n",
    "option": f'--medusa_choices="{LISTS}"',
    "JSON option": json.dumps({"speculative_token_tree": TUPLES}).join(["--speculative-config '", "'"]),
    "vLLM": json.dumps({"model": "t", "speculative_config": {"method": "eagle", "speculative_token_tree": TUPLES}}),
    "JSON in a list": json.dumps({"engines": [{"name": "a"}, {"name": "b", "medusa_choices": [[0], [1], [0, 0]]}]}),
    "command": f"vllm serve m --port 1 --speculative-config '{json.dumps({'speculative_token_tree': TUPLES})}'",
    "variable of a shell": f'export EAGLE_CHOICES="{LISTS}"',
    "array": f"np.array({LISTS}, dtype=object)",
    "Markdown": f"```python\nmc_sim = {LISTS}\n```\n",
    "prompt of Python": f">>> mc_sim = {LISTS}",
    "diff": f"+mc_sim = {LISTS}",
    "prompt of a shell": f"$ export TREE='{LISTS}'",
    "typographic quotes": f"\u201c{TUPLES}\u201d",
    "call without names": f"trtllm.EagleConfig({LISTS}, False, 0.5)",
    "JSON within a string of JSON": json.dumps(json.dumps({"eagle_choices": [[0], [1], [0, 0]]})),
    "TOML": f"[speculative]\nmax_draft_len = 2\neagle_choices = {LISTS}\n",
}
REFUSED = {
    "C++": "{{0}, {1}, {0, 0}}",
    "prompt over lines": ">>> mc_sim = [[0], [1],\n...           [0, 0]]",
    "Triton": 'parameters: {\n  key: "eagle_choices"\n  value: {\n    string_value: "{0}, {1}, {0, 0}"\n  }\n}\n',
    "code": "__import__('os').system('false')",
    "brackets without end": "[" * 50_000,
}
ONE, TWO = "[[0]]", "[[0], [1]]"
SEVERAL = {
    "Markdown table": f"| name | tree |\n| a | {ONE} |\n| b | {TWO} |",
    "if and else": f"if x:\n    a = {ONE}\nelse:\n    a = {TWO}\n",
    "top and below": json.dumps({"tree": [[0]], "spec": {"speculative_token_tree": "[(0,), (1,)]"}}),
    "key of YAML twice": f"- a: 1\n- eagle_choices: {ONE}\n  eagle_choices: {TWO}\n",
}
CHANGED = {
    "+=": f"mc = {ONE}\nmc += [[1], [2]]",
    "attribute": f"config.choices = {ONE}\nconfig.choices += [[1]]",
    "key": f'cfg = {{"tree": {ONE}}}\ncfg["tree"].append([1])',
}
YAML = {
    "TensorRT-LLM": f"speculative_config:\n  decoding_type: Eagle\n  max_draft_len: 3\n  eagle_choices: {LISTS}\n",
    "block lists": "speculative_config:\n  medusa_choices:\n  - [0]\n  - [1]\n  - - 0\n    - 0\n",
    "folded string": f"spec:\n  eagle_choices: >-\n    {LISTS}\n",
    "compose": f"services:\n  vllm:\n    command: --speculative-config x\n    env:\n      TREE: '{TUPLES}'\n",
    "list": "- [0]\n- [1]\n- [0, 0]\n",
    "two documents' anchor": f"a: &t {LISTS}\nmedusa:\n  medusa_choices: *t\n",
}


@pytest.mark.parametrize("spelling", PLAIN)
def test_a_file_and_the_command_line_take_any_spelling(tmp_path: Path, spelling: str) -> None:
    for suffix in ("", ".json", ".py", ".yaml"):
        (tmp_path / f"tree{suffix}").write_text(PLAIN[spelling])
        assert read_tree(tmp_path / f"tree{suffix}").tree == TREE
    if spelling != "leaves":  # there a list that lacks parents has them, as before
        assert STATIC.convert(PLAIN[spelling], None, None) == TREE


def refused(tmp_path: Path, text: str, message: str) -> None:
    """Check that a text is refused at every door, in one line."""
    for suffix in (".txt", ".py", ".json", ".yaml"):
        (tmp_path / f"tree{suffix}").write_text(text)
        with pytest.raises(TreeError, match=message):
            read_tree(tmp_path / f"tree{suffix}")
    with pytest.raises(click.UsageError, match=message) as caught:
        STATIC.convert(text, None, None)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("spelling", REFUSED)
def test_what_is_no_literal_is_refused(tmp_path: Path, spelling: str) -> None:
    refused(tmp_path, REFUSED[spelling], "not a literal|list of rank paths|path . must|not (Python|YAML|JSON|read)")


def test_the_form_that_is_wanted_is_named() -> None:
    with pytest.raises(TreeError) as caught:
        value_in_text(REFUSED["Triton"], fits=holds_a_tree)
    assert str(caught.value) == (
        "not a literal, and no list of rank paths in it: write one such as [[0], [0, 0]], alone, as NAME = [...], or "
        "as a value in JSON or YAML"
    )


@pytest.mark.parametrize("form", SEVERAL)
def test_of_several_trees_none_is_taken(tmp_path: Path, form: str) -> None:
    refused(tmp_path, SEVERAL[form], "it has several (trees, .*, .*: write FILE:NAME|values of .*: leave one)")


@pytest.mark.parametrize("form", CHANGED)
def test_a_tree_that_a_program_changes_is_refused(tmp_path: Path, form: str) -> None:
    refused(tmp_path, CHANGED[form], "is computed or changed by the program: write the whole list")


@pytest.mark.parametrize(
    "text",
    [
        f"mc = {ONE}\nlimit = 3\nlimit += 1",
        f"mc = {ONE}\nfor path in mc:\n    print(path)",
        f"mc = {ONE}\nnc = {TWO}\nnc.append([2])\n",
    ],
)
def test_other_changes_do_not_matter(tmp_path: Path, text: str) -> None:
    (tmp_path / "tree.py").write_text(text)
    assert read_tree(tmp_path / "tree.py", name="mc" if "mc" in text else None).tree == Tree.chain(1)


@pytest.mark.parametrize("text", ["[]", "()", " []\n", '"[]"'])
def test_the_empty_list_is_no_speculation_at_every_door(tmp_path: Path, text: str) -> None:
    assert STATIC.convert(text, None, None) == EMPTY
    assert NAMED_TREE.convert(text, None, None) == (text, EMPTY)
    for suffix in (".txt", ".py", ".json", ".yaml"):
        (tmp_path / f"tree{suffix}").write_text(text)
        assert read_tree(tmp_path / f"tree{suffix}").tree == EMPTY
        assert STATIC.convert(str(tmp_path / f"tree{suffix}"), None, None) == EMPTY
        assert NAMED_TREE.convert(str(tmp_path / f"tree{suffix}"), None, None)[1] == EMPTY


@pytest.mark.parametrize("given", [LISTS, TUPLES])
def test_trees_to_compare_with_are_spelled_alike(given: str) -> None:
    assert NAMED_TREE.convert(given, None, None) == (given, TREE)
    assert NAMED_TREE.convert(YAML["block lists"], None, None)[1] == TREE
    name = "medusa/mc_sim_7b_63"
    assert NAMED_TREE.convert(name, None, None) == (name, published_trees()[name])


@pytest.mark.parametrize("spelling", YAML)
@pytest.mark.parametrize("suffix", [".yaml", ".txt"])
def test_yaml_is_read(tmp_path: Path, spelling: str, suffix: str) -> None:
    (tmp_path / f"tree{suffix}").write_text(YAML[spelling])
    assert read_tree(tmp_path / f"tree{suffix}", name="medusa_choices" if "*t" in YAML[spelling] else None).tree == TREE


@settings(deadline=None)
@given(
    trees(min_nodes=1),
    st.sampled_from(["{}", "t = {}", '--tree="{}"', '{{"a": {{"eagle_choices": "{}"}}}}']),
)
def test_every_tree_survives_every_form(tree: Tree, form: str) -> None:
    assert STATIC.convert(form.format(list(tree.paths)), None, None) == tree
    assert STATIC.convert(form.format([list(path) for path in tree.paths]), None, None) == tree


def test_names_lead_to_trees_at_any_depth(tmp_path: Path) -> None:
    file = tmp_path / "engines.json"
    file.write_text(
        json.dumps({"a": {"medusa_choices": [[0]]}, "b": [{"eagle_choices": LISTS}], "c": {"sizes": [[1, 2]]}})
    )
    with pytest.raises(TreeError, match=r"several trees, a\.medusa_choices, b\[0\]\.eagle_choices: write FILE:NAME"):
        read_tree(file)
    found = read_tree(file, name="eagle_choices")
    assert (found.tree, found.name) == (TREE, "b[0].eagle_choices")
    assert read_tree(file, name="b[0].eagle_choices").tree == TREE
    with pytest.raises(TreeError, match=r"it has no tree 'other'; it has a\.medusa_choices"):
        read_tree(file, name="other")
    file.write_text(json.dumps({"a": {"medusa_choices": [[0], [0]]}}))
    with pytest.raises(TreeError, match=r"engines\.json: a\.medusa_choices: path 1 \[0\] repeats path 0"):
        read_tree(file)


def test_names_that_refer_to_themselves_end() -> None:
    """Ten values of ten references each, a YAML bomb, are looked at once; a value within itself too."""
    lines = ["a0: &a0 {x: [[0], [1]]}"]
    lines += [f"a{n}: &a{n} {{{', '.join(f'k{k}: *a{n - 1}' for k in range(10))}}}" for n in range(1, 12)]
    started = time.monotonic()
    value = value_in_text("\n".join(lines), ".yaml")
    assert len(named_values(value, like=lambda item: isinstance(item, list))) == 1
    assert time.monotonic() - started < 5
    loop = yaml.safe_load("&a {b: *a, c: [[0]]}")
    assert list(named_values(loop, like=lambda item: isinstance(item, list))) == ["c"]


BOMB = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40))
BOMB = "a0: &a0 [[0], [1]]\n" + BOMB


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (BOMB, "a39", "path 0 must hold ranks"),
        (
            BOMB + "x: {Successors: *a39, roots: 1, branches: 1, mask: 1, depth: 1, size: 1}",
            "x",
            "Successors.0. must be",
        ),
        ("a: [[0], [0x" + "f" * 5000 + "]]", "a", "must hold ranks in 0..32767, found one too large"),
        ("[" * 2000, None, "not read: YAML with brackets nested more than 200 deep"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_grows_without_end_is_refused_at_once(text: str, name: str | None, message: str) -> None:
    started = time.monotonic()
    with pytest.raises(TreeError, match=message) as caught:
        named_tree(value_in_text(text, ".yaml", fits=holds_a_tree), name)
    assert time.monotonic() - started < 5
    assert len(str(caught.value)) < 400
