"""Run a command in this process, check its refusals, and the small models and files that command tests share."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from executor.checkpoints import save_drafter
from executor.drafters.medusa.drafter import MedusaHeads
from simulate.profiles.profile import BatchTimes, Profile, save_profile
from simulate.profiles.step_tables import Prefill
from tests.helpers.strategies import drawn_trace
from treeopt.cli import main
from treeopt.traces.trace_files import save_trace

HIDDEN, HEADS, VOCABULARY, CONTEXT = 32, 3, 320, 128


MODELS = {
    "target": {"name": "tiny", "weights": "0123456789abcdef", "dtype": "float32"},
    "drafter": {"kind": "medusa", "heads": HEADS, "weights": "fedcba9876543210"},
}


TEXTS = [f"{'ab cd ef gh '[: 4 + n]}{n}" for n in range(8)]


def run(*words, stdin=None):
    """The command in this process; anything but an exit code is a traceback, and a warning is one too."""
    result = CliRunner().invoke(main, [str(word) for word in words], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError("traceback") from result.exception
    return result


def done(*words):
    result = run(*words)
    assert result.exit_code == 0, result.stderr
    return result


def one_line(stderr):
    """The message of a refusal."""
    lines = stderr.splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith("Error: ")
    return lines[0]


def error_of(result):
    """The message of a refusal that warnings may precede."""
    lines = [line for line in result.stderr.splitlines() if not line.startswith("Warning: ")]
    if lines[0] == "" and lines[-1] == "Error: interrupted":
        del lines[0]  # click ends the line on which ^C stands
    return one_line("\n".join(lines))


def refused(result, *words, code=1):
    """One line on stderr that holds these words, nothing on stdout; code None takes 1 and 2."""
    message = one_line(result.stderr)
    assert result.stdout == ""
    assert result.exit_code in ((1, 2) if code is None else (code,)), message
    for word in words:
        assert str(word) in message, message
    assert message.removeprefix("Error: ").strip(" :.") != ""
    return message


def read_json(text):
    """JSON as other programs read it: without NaN and Infinity."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def files(folder):
    """Every file below a folder, hidden ones too, with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def unchanged(tmp_path, request):
    """Fails when the test leaves a file behind or changes one; what `profile` has measured is left on purpose."""
    before = {}

    def freeze():
        before.update(files(tmp_path))

    yield freeze
    assert before, "freeze() first"
    assert {name: kept for name, kept in files(tmp_path).items() if name != "output.work"} == before


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """One thread serves a tiny model best."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def small_trace(*, requests=8, depth=3, width=4, lengths=20, meta=None):
    drawn = drawn_trace(
        [[0.6, 0.1, *[0.02] * 8][:width]], [lengths] * requests, depth=depth, rng=np.random.default_rng(1)
    )
    return replace(drawn, meta=MODELS | {"verification": "greedy", "temperature": 0.0} if meta is None else meta)


def small_profile(*, batches=(1, 4), tokens=64, depth=4, meta=None):
    made = tuple(
        BatchTimes(
            batch,
            0.010 * batch,
            ((1, 1e-4), (depth, 4e-4)),
            ((2, 0.011 * batch), (tokens, 0.02 * batch)),
        )
        for batch in batches
    )
    return Profile(made, (4, 100), 0.02, MODELS | {"device": "made up"} if meta is None else meta)


@pytest.fixture
def trace_file(tmp_path):
    path = tmp_path / "trace.npz"
    save_trace(small_trace(), path)
    return path


@pytest.fixture
def profile_file(tmp_path):
    path = tmp_path / "profile.json"
    save_profile(small_profile(), path)
    return path


@pytest.fixture(scope="session")
def found(tmp_path_factory):
    """Texts of a plan for batch 1, and of one for 1 and 4 whose trees Medusa can run."""
    folder = tmp_path_factory.mktemp("found")
    save_trace(small_trace(), folder / "trace.npz")
    save_profile(small_profile(), folder / "profile.json")
    words = ("search", "--trace", folder / "trace.npz", "--profile", folder / "profile.json", "--json")
    return done(*words, "--batch", "1").stdout, done(*words, "--batch", "1,4", "--max-nodes", "5").stdout


@pytest.fixture
def plan_file(tmp_path, found):
    path = tmp_path / "plan.json"
    path.write_text(found[0], "utf-8")
    return path


@pytest.fixture
def small_plan(tmp_path, found):
    path = tmp_path / "small.json"
    path.write_text(found[1], "utf-8")
    return path


def write_target(folder):
    """A Llama of two layers with random weights, and a tokenizer of bytes."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.35,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=256,
        pad_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>").save_pretrained(folder)


def write_drafter(folder, *, heads=HEADS):
    """Medusa heads with random weights."""
    torch.manual_seed(1)
    drafter = MedusaHeads(heads, HIDDEN)
    for weights in drafter.parameters():
        torch.nn.init.normal_(weights, std=0.2)
    save_drafter(folder, drafter, dtype="float32", meta={"target": "target"})


def write_prompts(path, texts=TEXTS):
    path.write_text("".join(json.dumps({"text": text, "domain": "letters"}) + "\n" for text in texts), "utf-8")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A folder with `target`, `drafter` and `prompts.jsonl`; not to be written to."""
    folder = tmp_path_factory.mktemp("tiny")
    write_target(folder / "target")
    write_drafter(folder / "drafter")
    write_prompts(folder / "prompts.jsonl")
    return folder


def inputs(tiny, **other):
    """`--target --drafter --prompts`, each replaced by `other` where given."""
    places = {"target": tiny / "target", "drafter": tiny / "drafter", "prompts": tiny / "prompts.jsonl"} | other
    return [word for name, place in places.items() for word in (f"--{name}", str(place))]


COLLECT = ("--new-tokens", "6", "--width", "4", "--batch", "4", "--force")


MEASURE = ("--new-tokens", "12", "--batch", "1", "--rounds", "2", "--steps", "2", "--max-nodes", "4", "--force")


CHECK = ("--new-tokens", "6", "--blocks", "2", "--force")


def collect(tiny, output, *more, **other):
    return run("trace", "collect", *inputs(tiny, **other), *COLLECT, "--output", output, *more)


def measure(tiny, output, *more, **other):
    return run("profile", *inputs(tiny, **other), *MEASURE, "--output", output, *more)


def validate(tiny, plan, *more, **other):
    return run("validate", *inputs(tiny, **other), *CHECK, "--plan", plan, *more)


@pytest.fixture(scope="session")
def made(tiny, tmp_path_factory):
    """`trace.npz` and `profile.json` of the tiny model, made by the commands themselves; not to be written to."""
    folder = tmp_path_factory.mktemp("made")
    first, second = collect(tiny, folder / "trace.npz"), measure(tiny, folder / "profile.json")
    assert (first.exit_code, second.exit_code) == (0, 0), first.stderr + second.stderr
    assert first.stdout == second.stdout == ""
    assert first.stderr.splitlines()[-1] == f"{8 * 6} anchors of 8 requests written to {folder / 'trace.npz'}"
    assert str(folder / "profile.json") in second.stderr.splitlines()[-1]
    return folder


def knowing(*lengths: int) -> Profile:
    """Step times, and prefill of prompts of these lengths."""
    times = tuple((tokens, 0.001 * tokens) for tokens in lengths)
    return replace(small_profile(batches=(1, 2)), prefill=Prefill(times, times))


def whole(tiny, made, folder, *more, profile=None) -> tuple[dict, str]:
    """Run `validate` on the trace with these step times: its record and its stderr; predictions go to `fixed.json`."""
    save_profile(profile or knowing(1, 64), folder / "profile.json")
    words = ("--trace", made / "trace.npz", "--profile", folder / "profile.json", "--batch", "1,2", *more)
    shown = done("validate", *inputs(tiny), *words, "--predictions", folder / "fixed.json", "--force", "--json")
    return read_json(shown.stdout), shown.stderr


RANDOM = ("--target", "toy", "--drafter", "medusa:3", "--random-weights", "--prompt-tokens", "5")


def config(text):
    return lambda folder: (folder / "config.json").write_text(text)


TREEOPT = str(Path(sys.executable).with_name("treeopt"))


def ran(*words, cwd):
    done = subprocess.run(
        words, capture_output=True, text=True, cwd=cwd, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done
