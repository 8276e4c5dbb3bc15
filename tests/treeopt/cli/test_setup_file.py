"""The setup file: options of engine and models read by several commands; an option beside it wins."""

import json

import click
import pytest

from tests.helpers.command_line import done, refused, run
from treeopt.cli.commands.profile import profile
from treeopt.cli.commands.trace import collect
from treeopt.cli.commands.validate import validate
from treeopt.cli.options.settings_options import KEYS, read_setup, setup_text

SETUP = """engine = "vllm"
engine-python = "vllm/bin/python"
method = "eagle3"
target = "T"
drafter = "D"
servers = 2
"""


@pytest.fixture
def setup(tmp_path):
    path = tmp_path / "vllm.toml"
    path.write_text(SETUP)
    return path


@pytest.mark.parametrize("command", [collect, profile, validate])
def test_commands_read_a_setup_and_an_option_beside_it_wins(setup, command, monkeypatch):
    seen = []
    monkeypatch.setattr(command, "callback", lambda **values: seen.append(click.get_current_context().params))
    words = ["--setup", str(setup), "--prompts", "p.jsonl", "--output", "o", "--target", "other"]
    command.main([*words, "--url", "1=http://a"], standalone_mode=False)
    (values,) = seen
    named = {name: str(values[name]) for name in ("engine", "method", "target", "drafter", "servers", "engine_python")}
    assert named == {
        "engine": "vllm",
        "method": "eagle3",
        "target": "other",
        "drafter": "D",
        "servers": "2",
        "engine_python": "vllm/bin/python",
    }


def test_what_is_written_is_read_again(tmp_path):
    values = {"engine": "openai", "urls": ((3, "http://a"), (0, "http://b")), "servers": 2, "random_weights": True}
    (tmp_path / "s.toml").write_text(setup_text({**values, "method": None, "engine_args": ""}))
    read = read_setup(tmp_path / "s.toml")
    assert read == {**values, "urls": ["3=http://a", "0=http://b"]}
    assert read.keys() <= KEYS.keys()


def test_a_command_writes_the_setup_that_it_was_given(tmp_path):
    out, setup = tmp_path / "trace.json", tmp_path / "s.toml"
    words = ["--target", "toy", "--drafter", "medusa:3", "--random-weights", "--threads", "1", "--write-setup", setup]
    sizes = ["--prompt-tokens", "8", "--batch", "1", "--max-nodes", "2", "--max-depth", "1", "--rounds", "2", "--steps"]
    done("profile", *words, *sizes, "2", "--new-tokens", "12", "--output", out)
    assert json.loads(out.read_text())["schema"].startswith("treeopt.profile/")
    assert read_setup(setup) == {"target": "toy", "drafter": "medusa:3", "random_weights": True, "threads": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [("foo = 1\n", "`foo` is no option of a setup"), ("a b\n", "is not TOML"), (None, "No such file")],
)
def test_other_files_are_refused_with_file_and_key(tmp_path, text, words):
    path = tmp_path / "bad.toml"
    if text is not None:
        path.write_text(text)
    refused(run("profile", "--setup", path, "--output", tmp_path / "o"), f"--setup {path}", words, code=2)


def test_a_value_of_the_wrong_type_is_refused_with_file_and_key(setup):
    setup.write_text('engine = "vllm"\nservers = "two"\n')
    refused(run("profile", "--setup", setup, "--output", "p.json"), f"--setup {setup}: `servers`: 'two' is not", code=2)
