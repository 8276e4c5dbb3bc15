"""`treeopt train` as people meet it: a drafter in a folder, interruptions, self-distillation, refusals."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from executor.checkpoints import load_drafter
from executor.drafters.base.recipe import recipes
from executor.target.load_hf_model import load_target
from executor.target.tokenizer import load_tokenizer
from tests.helpers.command_line import CONTEXT, done, read_json, refused, run, write_drafter, write_target
from tests.helpers.slow_params import slow_unless
from treeopt.api.train_drafter import SCHEMA

ROOT = Path(__file__).parent.parent.parent.parent
SHORT = ("--steps", "3", "--batch", "2", "--length", "16", "--held-out", "0.2")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder with `target`, `drafter`, `texts.jsonl`, `chats.jsonl` and `questions.jsonl`; not to be written to."""
    folder = tmp_path_factory.mktemp("tiny")
    write_target(folder / "target")
    write_drafter(folder / "drafter", heads=2)
    records = {
        "texts": [{"text": f"for i in range({n}): print(i)"} for n in range(12)],
        "chats": [
            {"conversations": [{"from": "human", "value": f"{n}?"}, {"from": "gpt", "value": f"it is {n}, of course"}]}
            for n in range(12)
        ],
        "questions": [{"turns": [f"what is {n}", "why"]} for n in range(6)],
    }
    for name, lines in records.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def train(tiny, output, *more, recipe="medusa1", data="texts.jsonl", short=SHORT):
    words = ("--target", tiny / "target", "--data", tiny / data, "--output", output, "--recipe", recipe)
    return run("train", *words, *short, *more)


def log_of(folder: Path) -> dict:
    return json.loads((folder / "training.json").read_text())


def test_a_drafter_is_trained_and_written(tiny, tmp_path):
    result = train(tiny, tmp_path / "o", "--set", "depths=2", "--json")
    assert result.exit_code == 0, result.stderr
    found = read_json(result.stdout)
    assert (found["schema"], found["recipe"], found["steps"], found["tops"]) == (SCHEMA, "medusa1", 3, [1, 2, 4, 8])
    assert len(found["depths"]) == 2
    for depth in found["depths"]:
        assert depth["anchors"] > 0
        assert sorted(depth["hits"]) == depth["hits"]
    assert "step 3/3: loss" in result.stderr
    target = load_target(tiny / "target")
    drafter = load_drafter(tmp_path / "o", target)
    assert drafter.max_depth == 2
    log = log_of(tmp_path / "o")
    assert log["recipe"]["depths"] == 2
    assert log["data"] == ["texts.jsonl"]
    assert log["held_out"][0]["anchors"] == found["depths"][0]["anchors"]
    assert log["target"]["weights"]
    assert str(tmp_path) not in json.dumps(log)


def test_a_training_that_is_finished_is_not_gone_on_with(tiny, tmp_path):
    assert train(tiny, tmp_path / "o", "--set", "depths=1").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "o").iterdir() if path.is_file()) == [
        *("config.json", "medusa_lm_head.safetensors", "training.json"),
    ]
    refused(train(tiny, tmp_path / "o", "--set", "depths=1", "--resume"), "--resume", "finished", code=2)


def test_a_drafter_of_another_kind_or_depth_is_not_trained_further(tiny, tmp_path):
    refused(train(tiny, tmp_path / "p", "--drafter", tiny / "drafter", recipe="eagle"), "eagle", "medusa")
    refused(train(tiny, tmp_path / "q", "--drafter", tiny / "drafter"), "5 depths", "2")


@pytest.mark.parametrize(
    "recipe",
    slow_unless(lambda recipe: recipe in {"eagle3", "hydra++"}, sorted(set(recipes()) - {"medusa1", "medusa2"})),
)
def test_every_recipe_writes_what_decodes(tiny, tmp_path, recipe):
    """The router alone is trained of a drafter that is there."""
    words = ["--set", "depths=2"]
    if recipe == "coral-router":
        assert train(tiny, tmp_path / "eagle", recipe="eagle").exit_code == 0
        words += ["--drafter", tmp_path / "eagle", "--set", "router_groups=4"]
    if recipe == "eagle3":
        words += ["--set", "draft_vocabulary=100"]
    result = train(tiny, tmp_path / "o", *words, recipe=recipe)
    assert result.exit_code == 0, result.stderr
    asked = ["--target", tiny / "target", "--prompt", "for i in", "--new-tokens", "12"]
    plain = done("decode", *asked).stdout
    assert done("decode", *asked, "--drafter", tmp_path / "o", "--tree", "[[0],[1],[0,0]]").stdout == plain
    if recipe == "eagle3":
        assert load_drafter(tmp_path / "o", load_target(tiny / "target")).lm_head.weight.shape[0] == 100


def test_epochs_and_padded_rows(tiny, tmp_path):
    short = ("--epochs", "1", "--batch", "2", "--length", "24", "--held-out", "0", "--padded", "--set", "depths=1")
    result = train(tiny, tmp_path / "o", "--json", data="chats.jsonl", short=short)
    assert result.exit_code == 0, result.stderr
    log = log_of(tmp_path / "o")
    assert (log["rows"], log["rows_held_out"], log["steps"]) == (12, 0, 6)
    answers = [f"it is {n}, of course" for n in range(12)]
    assert log["tokens_learnt"] == sum(min(len(a) + 1, 24 - len(f"{n}?\n")) for n, a in enumerate(answers))
    assert read_json(result.stdout)["depths"][0]["anchors"] == 0
    assert read_json(result.stdout)["depths"][0]["loss"] is None
    assert log["held_out"][0]["loss"] is None
    assert "held out:" not in result.stderr


def test_what_the_target_writes_is_learnt(tiny, tmp_path):
    words = ("--self-distill", "--distill-tokens", "8", "--distill-temperature", "0", "--set", "depths=1")
    result = train(tiny, tmp_path / "o", *words, data="questions.jsonl")
    assert result.exit_code == 0, result.stderr
    written = [json.loads(line) for line in (tmp_path / "o" / "self-distilled-1-of-1.jsonl").read_text().splitlines()]
    assert [[m["role"] for m in record["messages"]] for record in written] == [["user", "assistant"] * 2] * 6
    assert log_of(tmp_path / "o")["self_distilled"]
    assert load_drafter(tmp_path / "o", load_target(tiny / "target")).max_depth == 1


@pytest.mark.parametrize("lora", [True, False])
def test_a_target_that_is_trained_too_is_a_model_folder(tiny, tmp_path, lora):
    words = ("--set", "depths=2", *(["--lora"] if lora else []))
    result = train(tiny, tmp_path / "o", *words, recipe="medusa2")
    assert result.exit_code == 0, result.stderr
    target = load_target(tmp_path / "o" / "target")
    assert load_drafter(tmp_path / "o", target).max_depth == 2
    assert len(load_tokenizer(tmp_path / "o" / "target", vocabulary=target.vocabulary)) == 257
    assert log_of(tmp_path / "o").get("lora", {}).get("rank") == (32 if lora else None)


SLOW = ("--steps", "120", "--batch", "2", "--length", "16", "--held-out", "0.2", "--save-every", "20")


@pytest.mark.slow
def test_an_interrupted_training_goes_on(tiny, tmp_path):
    """Ended by the system at some step; the rest gives the same drafter."""
    assert train(tiny, tmp_path / "whole", "--set", "depths=2", short=SLOW).exit_code == 0
    words = ["train", "--target", tiny / "target", "--data", tiny / "texts.jsonl", "--output", tmp_path / "parts"]
    words += ["--recipe", "medusa1", "--set", "depths=2", *SLOW]
    child = subprocess.Popen(
        [sys.executable, "-c", "from treeopt.cli import main; main()", *map(str, words)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    for line in child.stderr:
        if line.startswith("step ") and int(line.split()[1].split("/")[0]) >= 30:
            child.send_signal(signal.SIGKILL)
            break
    child.wait()
    child.stderr.close()
    assert not (tmp_path / "parts" / "training.json").exists()
    refused(train(tiny, tmp_path / "parts", "--set", "depths=2", short=SLOW), "--resume", code=2)
    other = train(tiny, tmp_path / "parts", "--set", "depths=3", "--resume", short=SLOW)
    refused(other, "was begun with recipe", code=2)
    refused(
        train(tiny, tmp_path / "parts", "--set", "depths=2", "--resume", "--seed", "1", short=SLOW), "begun", code=2
    )
    result = train(tiny, tmp_path / "parts", "--set", "depths=2", "--resume", short=SLOW)
    assert result.exit_code == 0, result.stderr
    name = "medusa_lm_head.safetensors"
    assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_settings_without_meaning(tiny, tmp_path):
    cases = [
        (("--set", "depth=3"), ["depth=3", "depths"]),
        (("--epochs", "1"), ["--steps", "--epochs"]),
        (("--resume",), ["--resume", "nothing"]),
        (("--distill-tokens", "9"), ["--distill-temperature and --distill-tokens need --self-distill"]),
    ]
    for words, named in cases:
        refused(train(tiny, tmp_path / "o", *words), *named, code=2)
        assert not (tmp_path / "o").exists()
    refused(train(tiny, tmp_path / "o", "--length", str(CONTEXT + 1)), "context", CONTEXT, code=1)
    refused(train(tiny, tmp_path / "o", recipe="medusa3"), "medusa3", *recipes(), code=2)
    refused(train(tiny, tmp_path / "o", "--held-out", "1"), "--held-out", code=2)


def test_inputs_that_are_none(tiny, tmp_path):
    refused(train(tiny, tmp_path / "o", data="none.jsonl"), "none.jsonl", "No such file")
    refused(train(tiny, tmp_path / "o", data="questions.jsonl"), "questions.jsonl, line 1", "--self-distill")
    refused(train(tiny, tmp_path / "o", "--target", tmp_path), tmp_path, code=1)
    (tmp_path / "bad.jsonl").write_text('{"text": "ab"}\n{"txt": "ab"}\n')
    refused(train(tiny, tmp_path / "o", "--data", tmp_path / "bad.jsonl"), "bad.jsonl, line 2", "txt")
