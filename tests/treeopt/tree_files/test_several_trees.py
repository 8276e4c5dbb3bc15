"""Texts that hold several trees, or a tree that a program computes or changes: none is read in silence."""

import json

import click
import pytest

from treeopt.cli.options.what_to_draft import Static
from treeopt.errors import TreeError
from treeopt.tree import Tree
from treeopt.tree_files.choice_lists import read_tree

ONE, TWO = "[[0]]", "[[0], [1]]"

COMPUTED = {
    "sum": f"mc = {ONE} + [[1]]",
    "sum without a name": f"{ONE} + [[1]]",
    "difference": f"{TWO} - [[1]]",
    "product": f"mc = {ONE} * 2",
    "or": f"mc = None or {ONE}",
    "sum after a number": f"base = 3\nmc = {ONE} + [[1], [2]]",
    "two targets": f"a, b = {ONE}, {TWO}",
    "built from nothing": f"mc = []\nmc += {ONE}",
}
SEVERAL = {
    "two lines": f"{ONE}\n{TWO}\n",
    "Markdown table": f"| name | tree |\n| a | {ONE.replace(' ', '')} |\n| b | [[0],[1]] |",
    "syntax error between": "mc = [[0]]\nx = = 3\nnc = [[0],[1]]\n",
    "option twice": f"run --a-tree '{ONE}' --a-tree '{TWO}'",
    "configuration twice": "vllm serve m -sc '{\"tree\": [[0]]}' -sc '{\"tree\": [[0], [1]]}'",
    "Triton twice": 'eagle_choices:"{0}, {0, 0}" eagle_choices:"{0}, {1}"',
    "if and else": f"if x:\n    a = {ONE}\nelse:\n    a = {TWO}\n",
}
CHANGED = {
    "+=": f"mc = {ONE}\nmc += [[1], [2]]",
    "append": f"mc = {ONE}\nmc.append([1])",
    "extend": f"mc = {ONE}\nmc.extend([[1]])",
    "del": f"mc = {TWO}\ndel mc[1]",
    "item": f"mc = {TWO}\nmc[1] = [0, 0]",
    "sum with itself": f"mc = {ONE}\nmc = mc + [[1]]",
    "in an if": f"mc = {ONE}\nif x:\n    mc = {TWO}",
    "in a function": f"mc = {ONE}\ndef more():\n    mc.append([1])",
    "in its function": f"def make():\n    mc = {ONE}\n    mc.append([1])\n",
    "attribute": f"config.choices = {ONE}\nconfig.choices += [[1]]",
    "key": f'cfg = {{"tree": {ONE}}}\ncfg["tree"].append([1])',
}


def refused(tmp_path, text, message):
    """Check that a text is refused at every door, in one line."""
    for suffix in (".txt", ".py", ".json", ".yaml"):
        (tmp_path / f"tree{suffix}").write_text(text)
        with pytest.raises(TreeError, match=message):
            read_tree(tmp_path / f"tree{suffix}")
    with pytest.raises(click.UsageError, match=message) as caught:
        Static().convert(text, None, None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", COMPUTED)
def test_a_computed_list_is_not_read_as_one_of_its_parts(tmp_path, form):
    refused(tmp_path, COMPUTED[form], "not a literal|no list of rank paths|not Python|not YAML|not JSON")


def test_the_line_that_computes_a_list_is_named(tmp_path):
    refused(tmp_path, f"base = 3\nmc = {ONE} + [[1]]", "line 2 computes mc: write the whole list")


@pytest.mark.parametrize("form", SEVERAL)
def test_of_several_trees_none_is_taken(tmp_path, form):
    refused(tmp_path, SEVERAL[form], "it has several trees, .*, .*: write FILE:NAME")


def test_documents_and_repeated_keys_of_yaml_are_several_trees(tmp_path):
    pytest.importorskip("yaml", reason="the extra yaml is not installed")
    message = "it has several trees, 1.eagle_choices, 2.eagle_choices: write FILE:NAME"
    for between in ("---\n", ""):
        refused(tmp_path, f"eagle_choices: {ONE}\n{between}eagle_choices: {TWO}\n", message)
    (tmp_path / "a.yaml").write_text(f"eagle_choices: {ONE}\n---\nlimit: 3\n---\n")
    assert read_tree(tmp_path / "a.yaml").tree == Tree.chain(1)


def test_the_number_before_a_name_chooses(tmp_path):
    (tmp_path / "a.txt").write_text(f"{ONE}\n{TWO}\n")
    assert read_tree(tmp_path / "a.txt", name="2.value").tree == Tree.from_paths([(0,), (1,)])
    with pytest.raises(TreeError, match=r"it has several trees 'value'; it has 1\.value, 2\.value"):
        read_tree(tmp_path / "a.txt", name="value")
    (tmp_path / "a.txt").write_text(f"{ONE}\n{ONE}\n")
    assert read_tree(tmp_path / "a.txt").tree == Tree.chain(1)


@pytest.mark.parametrize("form", CHANGED)
def test_a_tree_that_is_changed_later_is_refused(tmp_path, form):
    refused(tmp_path, CHANGED[form], r"(mc|choices|cfg\.tree) is changed after line [12]: write the whole list")


@pytest.mark.parametrize(
    "text",
    [
        f"mc = {ONE}\nlimit = 3\nlimit += 1",
        f"mc = {ONE}\ndef more(mc):\n    mc.append([1])",
        f"mc = {ONE}\nfor path in mc:\n    print(path)",
        f'cfg = {{"tree": {ONE}}}\ncfg["limit"] = 3',
        f"mc = {TWO}\nmc.append([2])\nmc = {ONE}",
    ],
)
def test_other_changes_do_not_matter(tmp_path, text):
    (tmp_path / "tree.py").write_text(text)
    assert read_tree(tmp_path / "tree.py").tree == Tree.chain(1)


def test_only_the_tree_that_is_used_must_not_change(tmp_path):
    (tmp_path / "trees.py").write_text(f"mc = {ONE}\nnc = {TWO}\nnc.append([2])\n")
    assert read_tree(tmp_path / "trees.py", name="mc").tree == Tree.chain(1)
    with pytest.raises(TreeError, match=r"trees\.py: nc is changed after line 2: write the whole list"):
        read_tree(tmp_path / "trees.py", name="nc")


BELOW = {
    "YAML": f"medusa_choices: {ONE}\nspeculative_config:\n  eagle_choices: {TWO}\n",
    "JSON": json.dumps({"tree": [[0]], "speculative_config": {"speculative_token_tree": "[(0,), (1,)]"}}),
    "Python": f"mc = {ONE}\nconfig = {{'eagle_choices': {TWO}}}\n",
    "TOML": f"[a]\neagle_choices = {ONE}\n[b]\neagle_choices = {TWO}\n",
    "INI": f"[a-b]\neagle_choices={ONE}\n[c d]\neagle_choices={TWO}\n",
    "key twice": f'{{"eagle_choices": {ONE}, "eagle_choices": {TWO}}}',
    "key twice below": f'{{"a": {{"eagle_choices": {ONE}, "eagle_choices": {TWO}}}}}',
}


@pytest.mark.parametrize("form", BELOW)
def test_a_tree_at_the_top_hides_none_below(tmp_path, form):
    if form == "YAML":
        pytest.importorskip("yaml", reason="the extra yaml is not installed")
    refused(tmp_path, BELOW[form], "it has several trees, .*, .*: write FILE:NAME|not (a literal|Python|JSON|YAML)")


def test_one_tree_at_the_top_and_below_is_one(tmp_path):
    file = tmp_path / "engine.json"
    file.write_text(json.dumps({"tree": [[0], [1]], "speculative_config": {"speculative_token_tree": "[(0,), (1,)]"}}))
    assert read_tree(file).tree == Tree.from_paths([(0,), (1,)])
    assert read_tree(file, name="speculative_token_tree").name == "speculative_config.speculative_token_tree"
    file.write_text(json.dumps({"tree": [[0]], "limits": {"sizes": [[1, 2]], "schedule": [[3, 4]]}}))
    assert (read_tree(file).tree, read_tree(file).name) == (Tree.chain(1), "tree")
