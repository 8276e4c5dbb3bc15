"""The command line as people meet it: results on stdout, one line of why on stderr, no traceback, no half file."""

import errno
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from threading import Thread

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from executor.acceptance import Greedy
from executor.checkpoints import MEDUSA_FILE, save_drafter
from executor.decode import Decoder
from executor.drafters.medusa import MedusaHeads
from executor.parallel import leave
from executor.target import Target
from simulate.predictions import load_predictions
from simulate.prefill import Prefill
from simulate.profile import BatchTimes, Profile, load_profile, save_profile
from simulate.whole import Runs, whole_runs
from tests.strategies import drawn_trace
from treeopt.cli import COMMANDS, main
from treeopt.errors import ExecutorError
from treeopt.files import checksum
from treeopt.optimize import hold_out
from treeopt.planfile import load_plan, save_plan, to_json
from treeopt.trace import load_trace, save_trace
from treeopt.tree import Tree
from treeopt.walk import replay

HIDDEN, HEADS, VOCABULARY, CONTEXT = 32, 3, 320, 128
MODELS = {
    "target": {"name": "tiny", "weights": "0123456789abcdef", "dtype": "float32"},
    "drafter": {"kind": "medusa", "heads": HEADS, "weights": "fedcba9876543210"},
}
TEXTS = [f"{'ab cd ef gh '[: 4 + n]}{n}" for n in range(8)]


# --- running a command, and what a refusal looks like


def run(*words):
    """The command in this process; anything but an exit code is a traceback, and a warning is one too."""
    result = CliRunner().invoke(main, [str(word) for word in words])
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


# --- small inputs


@pytest.fixture(scope="module", autouse=True)
def _quick():
    """Provenance asks git, 0.1 s a command (those from a shell do so below); one thread serves a tiny model best."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("treeopt.provenance._commit", lambda: "none")
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


@pytest.fixture(scope="module")
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


def write_target(folder, *, context=CONTEXT, vocabulary=VOCABULARY):
    """A Llama of two layers with random weights, and a tokenizer of bytes."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.35,
        max_position_embeddings=context,
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


def write_drafter(folder, *, hidden=HIDDEN, heads=HEADS, fill=None):
    """Medusa heads with random weights, or all of one value."""
    torch.manual_seed(1)
    drafter = MedusaHeads(heads, hidden)
    for weights in drafter.parameters():
        torch.nn.init.normal_(weights, std=0.2) if fill is None else torch.nn.init.constant_(weights, fill)
    save_drafter(folder, drafter, dtype="float32", meta={"target": "target"})


def write_prompts(path, texts=TEXTS):
    path.write_text("".join(json.dumps({"text": text, "domain": "letters"}) + "\n" for text in texts), "utf-8")


@pytest.fixture(scope="module")
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


COLLECT = ("--new-tokens", "6", "--width", "4", "--batch", "4")
MEASURE = ("--new-tokens", "12", "--batch", "1", "--rounds", "2", "--steps", "2", "--max-nodes", "4")
CHECK = ("--new-tokens", "6", "--blocks", "2")


def collect(tiny, output, *more, **other):
    return run("trace", "collect", *inputs(tiny, **other), *COLLECT, "--output", output, *more)


def measure(tiny, output, *more, **other):
    return run("profile", *inputs(tiny, **other), *MEASURE, "--output", output, *more)


def validate(tiny, plan, *more, **other):
    return run("validate", *inputs(tiny, **other), *CHECK, "--plan", plan, *more)


# --- search


def test_search_prints_a_table(trace_file, profile_file):
    result = done("search", "--trace", trace_file, "--profile", profile_file, "--batch", "4,1")
    assert result.stderr == ""
    assert re.findall(r"(?m)^batch (\d+)", result.stdout) == ["4", "1"]
    for words in ("chosen tree", "no speculation", "best chain", "Proof: ", "4 requests held out", "seed 0"):
        assert words in result.stdout, words


def test_search_prints_json_alone_and_keeps_the_plan(trace_file, profile_file, tmp_path):
    words = ("search", "--trace", trace_file, "--batch", "1,4", "--json", "--output", tmp_path / "plan.json")
    result = done(*words)
    assert result.stderr == "profile: profile.json\n"
    record = read_json(result.stdout)
    assert [entry["batch"] for entry in record["entries"]] == [1, 4]
    plan = load_plan(tmp_path / "plan.json")
    assert to_json(plan) + "\n" == (tmp_path / "plan.json").read_text() == result.stdout
    assert plan.meta["trace"] == json.loads(json.dumps(small_trace().meta))
    assert plan.meta["cost"]["device"] == "made up"
    assert plan.meta["provenance"]["treeopt"]


@pytest.mark.parametrize(("rule", "trees"), [("leviathan", 0), ("specinfer", 2)])
def test_search_draws_what_a_rule_might_have_kept(rule, trees, profile_file, tmp_path):
    plain = small_trace()
    kept = np.full((*plain.rank.shape, plain.width), 0.9 / plain.width, dtype=np.float16)
    save_trace(replace(plain, meta={**plain.meta, "verification": rule}, kept=kept), tmp_path / "kept.npz")
    words = ("search", "--trace", tmp_path / "kept.npz", "--profile", profile_file, "--batch", "1", "--json")
    result = done(*words, "--max-nodes", "6")
    record = read_json(result.stdout)
    assert result.stderr.count("not judged: ") == 2 - trees
    assert record["meta"]["search"]["rules"] == [
        {"leviathan": "chains only (rule leviathan)", "specinfer": "contiguous ranks (rule specinfer)"}[rule]
    ]
    (entry,) = record["entries"]
    for choice in (entry["choice"], *entry["compared"]):
        paths = [] if choice["tree"] is None else choice["tree"]["paths"]
        for path in paths:
            assert path[-1] == 0 or (rule == "specinfer" and [*path[:-1], path[-1] - 1] in paths)


def test_search_says_how_many_requests_are_missing(trace_file, profile_file):
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1")
    (line,) = [line for line in done(*words, "--target-interval", "0.01").stdout.splitlines() if "tau is known" in line]
    assert re.fullmatch(r"batch 1: tau is known to [\d.]+%; \d+ more requests would make it 1.0%", line)
    record = read_json(done(*words, "--target-interval", "0.01", "--json").stdout)
    assert record["meta"]["missing"] == [line]
    assert "that is enough" in done(*words, "--target-interval", "9").stdout
    done(*words, "--target-interval", "1e-6")
    refused(run(*words, "--target-interval", "1e-308"), "must be at least 1e-06, got 1e-308", code=2)


def test_ranks_of_a_vector_are_taken_in_order(profile_file, tmp_path):
    meta = MODELS | {"imported": {"format": "sequoia-vector"}}
    trace = drawn_trace([[0.4, 0.02, 0.3, 0.05]], [40] * 40, depth=3, rng=np.random.default_rng(0))
    save_trace(replace(trace, meta=meta), tmp_path / "vector.npz")
    words = ("search", "--trace", tmp_path / "vector.npz", "--profile", profile_file, "--batch", "1", "--json")
    (entry,) = read_json(done(*words).stdout)["entries"]
    paths = entry["choice"]["tree"]["paths"]
    assert all(path[-1] == 0 or [*path[:-1], path[-1] - 1] in paths for path in paths)
    assert "contiguous ranks" in [price["rule"] for price in entry["prices"]]


def test_search_says_where_the_plan_went(trace_file, profile_file, tmp_path):
    path = tmp_path / "plan.json"
    result = done("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1", "--output", path)
    assert result.stderr == f"plan written to {path}\n"
    assert "chosen tree" in result.stdout


def test_the_same_seed_finds_the_same_plan(trace_file, profile_file):
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1", "--json")
    first, again, other = (read_json(done(*words, "--seed", seed).stdout) for seed in (3, 3, 4))
    assert first == again
    assert first["meta"]["search"]["seed"] == 3
    assert other["entries"] != first["entries"]


@pytest.mark.parametrize("method", ["renewal", "best-first", "hydra"])
def test_search_keeps_to_its_limits(trace_file, profile_file, method):
    limits = ("--max-nodes", "5", "--max-depth", "2", "--held-out", "0.25", "--context", "50")
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1", "--json")
    record = read_json(done(*words, *limits, "--method", method).stdout)
    paths = record["entries"][0]["choice"]["tree"]["paths"]
    assert 1 <= len(paths) <= 5
    assert max(map(len, paths)) <= 2
    found = record["meta"]["search"]
    assert (found["method"], found["requests_chosen_on"], found["requests_judged_on"]) == (method, 6, 2)


def test_search_says_at_which_context_steps_are_priced(trace_file, profile_file, tmp_path):
    words = (
        "search",
        "--trace",
        trace_file,
        "--profile",
        profile_file,
        "--batch",
        "1,4",
        "--output",
        tmp_path / "plan",
    )
    save_profile(replace(small_profile(), context=(4, 1000)), profile_file)
    assert "Steps are priced" not in done(*words).stdout  # one table a batch size: nothing was left to choose
    asked = done(*words, "--context", "90")
    assert "Steps are priced at 90 tokens a sequence in the cache.\n" in asked.stdout
    said = "step times were measured at mixed contexts of 4 to 1000 tokens, mean 502, and not told apart: at 90 they"
    assert f"Warning: {said}" in asked.stdout
    assert said in load_plan(tmp_path / "plan").warnings[-1]
    near, far = small_profile().batches, small_profile(tokens=40).batches
    told = [replace(t, context=c) for pair in zip(near, far, strict=True) for t, c in zip(pair, (64, 90), strict=True)]
    save_profile(replace(small_profile(), batches=tuple(told)), profile_file)
    for more, due, notes in (((), 64, "context: 64 tokens a sequence, the shortest"), (("--context", "90"), 90, "")):
        found = done(*words, "--max-nodes", "8", *more)
        assert f"Steps are priced at {due} tokens a sequence in the cache.\n" in found.stdout
        assert found.stderr.startswith(notes)
        assert load_plan(tmp_path / "plan").meta["search"]["context"] == due
        assert "mixed contexts" not in found.stdout


def test_search_takes_the_profile_of_its_models_beside_the_trace(trace_file, tmp_path):
    (tmp_path / "a.json").write_text("not a profile")
    (tmp_path / "b.json").write_text("[]")
    others = {**MODELS, "drafter": {**MODELS["drafter"], "weights": "another"}}
    save_profile(small_profile(meta=others), tmp_path / "c.json")
    save_profile(small_profile(), tmp_path / "d.json")
    result = done("search", "--trace", trace_file, "--batch", "1")
    assert result.stderr == "profile: d.json\n"


@pytest.mark.parametrize("meta", [{}, {"target": "tiny", "drafter": "heads"}, {"target": None, "drafter": []}])
def test_no_profile_is_taken_for_one_of_models_without_hashes(tmp_path, meta, unchanged):
    """Two files that say nothing of their models do not therefore belong together."""
    save_trace(small_trace(meta={}), tmp_path / "trace.npz")
    save_profile(small_profile(meta=meta), tmp_path / "profile.json")
    unchanged()
    refused(run("search", "--trace", tmp_path / "trace.npz", "--batch", "1"), "no profile", "treeopt profile")


@pytest.mark.parametrize("part", ["target", "drafter"])
def test_search_warns_when_the_models_differ(trace_file, tmp_path, part):
    other = {**MODELS, part: {**MODELS[part], "weights": "another", "name": "Other", "kind": "eagle"}}
    save_profile(small_profile(meta=other), tmp_path / "other.json")
    result = done("search", "--trace", trace_file, "--profile", tmp_path / "other.json", "--batch", "1", "--json")
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("Warning: ")
    assert "tiny" in result.stderr
    assert ("Other" if part == "target" else "eagle") in result.stderr
    read_json(result.stdout)


def test_a_tree_that_the_profile_does_not_cover_is_not_compared(tmp_path):
    """Published trees have 63 nodes; a profile of 31 is enough for a search of 30."""
    save_trace(small_trace(depth=5, width=10), tmp_path / "trace.npz")
    save_profile(small_profile(tokens=32, depth=5), tmp_path / "profile.json")
    words = ("search", "--trace", tmp_path / "trace.npz", "--batch", "1", "--max-nodes", "31", "--json")
    (entry,) = read_json(done(*words).stdout)["entries"]
    compared = [choice["name"] for choice in entry["compared"]]
    assert compared == ["no speculation", "best chain", "EAGLE-1's tree"]
    assert list(entry["skipped"]) == ["Medusa's tree"]
    assert "64" in entry["skipped"]["Medusa's tree"]


def test_trees_beyond_any_profile_are_refused_by_option(trace_file, profile_file, tmp_path):
    """However many nodes are asked for, the pool that they are chosen from stays a tree."""
    words = ("search", "--trace", trace_file, "--batch", "1")
    for size in (200, 1000, 4096):
        refused(
            run(*words, "--profile", profile_file, "--max-nodes", size),
            "the profile measured tokens 2 to",
            "search: --max-nodes",
        )
    save_profile(small_profile(tokens=4097), tmp_path / "wide.json")
    found = read_json(done(*words, "--profile", tmp_path / "wide.json", "--max-nodes", "4096", "--json").stdout)
    assert found["meta"]["search"]["max_nodes"] == 4096
    refused(run(*words, "--max-nodes", "4097"), "4097", "1<=x<=4096", code=2)


def test_padding_is_of_policies(trace_file, profile_file, unchanged):
    unchanged()
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1", "--padding", "none")
    refused(run(*words), "--padding is of trees that are drawn anew: give --policy", code=2)


def test_one_request_held_out_has_no_interval(trace_file, profile_file, tmp_path):
    """It is refused, or said in JSON that other programs and treeopt itself can read."""
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1", "--held-out", "0.1", "--json")
    result = run(*words)
    if result.exit_code:
        refused(result, "0.1", "8", code=None)
    else:
        read_json(result.stdout)
        (tmp_path / "plan.json").write_text(result.stdout)
        assert to_json(load_plan(tmp_path / "plan.json")) + "\n" == result.stdout


def test_a_plan_names_no_absolute_path(trace_file, profile_file, tmp_path):
    """Provenance promises so; a word such as `--trace=/home/me/t.npz` holds one too."""
    words = ["search", f"--trace={trace_file}", "--profile", str(profile_file), "--batch=1", "--json"]
    ran = subprocess.run([TREEOPT, *words], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert str(tmp_path) not in ran.stdout
    assert "trace.npz" in read_json(ran.stdout)["meta"]["provenance"]["command"]


# --- search: traces that are none


def rewritten(path, **arrays):
    """The trace's file with arrays replaced, added or (None) taken out, past all checks."""
    with np.load(path) as archive:
        whole = dict(archive) | arrays
    np.savez_compressed(path, **{name: array for name, array in whole.items() if array is not None})


def header(path, **fields):
    with np.load(path) as archive:
        record = json.loads(archive["meta"].tobytes()) | fields
    rewritten(path, meta=np.frombuffer(json.dumps(record).encode(), dtype=np.uint8))


def ranks(value):
    found = np.array(small_trace().rank)
    found[1, 2] = value
    return found


def request(*, backwards):
    found = np.array(small_trace().request)
    found[backwards] = 0
    return found


def nan_accept(trace):
    values = np.zeros((trace.anchors, trace.depth, trace.width), np.float16)
    values[2, 1, 0] = np.nan
    return values


def truncate(path):
    path.write_bytes(path.read_bytes()[:-200])


def encrypt(path):
    """Set the `encrypted` bit of every member, in both places where it stands."""
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.find(mark)
        while at >= 0:
            content[at + offset] |= 1
            at = content.find(mark, at + 1)
    path.write_bytes(content)


def pickled_array(path):
    with path.open("wb") as file:
        np.savez(file, rank=np.array([{"a": 1}], dtype=object), allow_pickle=True)


BROKEN_TRACES = {
    "missing": (Path.unlink, "no such file"),
    "empty": (lambda path: path.write_bytes(b""), "not a complete .npz"),
    "truncated": (truncate, "not a complete .npz"),
    "text": (lambda path: path.write_text("rank,0"), "not a complete .npz"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps([1])), "not a complete .npz"),
    "encrypted": (encrypt, "encrypted"),
    "object array": (pickled_array, "pickled"),
    "version 2": (lambda path: header(path, schema="treeopt.trace/2"), "treeopt.trace/2"),
    "no version": (lambda path: header(path, schema=None), "schema"),
    "array missing": (lambda path: rewritten(path, rank=None), "`rank` is missing"),
    "array unknown": (lambda path: rewritten(path, extra=np.zeros(1)), "`extra`"),
    "NaN": (lambda path: rewritten(path, accept=nan_accept(small_trace())), "accept[2, 1, 0]"),
    "rank beyond width": (lambda path: rewritten(path, rank=ranks(4)), "rank[1, 2]"),
    "rank below": (lambda path: rewritten(path, rank=ranks(-3)), "rank[1, 2]"),
    "unsorted": (lambda path: rewritten(path, request=request(backwards=30)), "request[30]"),
    "float ranks": (lambda path: rewritten(path, rank=np.zeros((160, 3))), "`rank` must be int16"),
}


@pytest.mark.parametrize(("spoil", "word"), BROKEN_TRACES.values(), ids=BROKEN_TRACES)
def test_search_refuses_a_broken_trace(trace_file, profile_file, tmp_path, unchanged, spoil, word):
    spoil(trace_file)
    unchanged()
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1")
    refused(run(*words, "--output", tmp_path / "plan.json"), trace_file, word)
    refused(run(*words, "--json"), trace_file, word)
    refused(run("trace", "info", trace_file, "--json"), trace_file, word)


def test_search_refuses_too_few_requests(tmp_path, profile_file, unchanged):
    save_trace(small_trace(requests=3), tmp_path / "few.npz")
    unchanged()
    words = ("search", "--trace", tmp_path / "few.npz", "--profile", profile_file, "--batch", "1")
    refused(run(*words), "at least 4", "3")


@pytest.mark.parametrize(
    "meta",
    [
        {"target": "tiny", "drafter": "heads"},
        {"target": None, "drafter": []},
        {"target": {"name": "[/bold] [red]tiny"}, "drafter": {"kind": "[b]"}},
        {"verification": ["greedy"], "repeated_4grams": 0.5, "seed": None},
        {"repeated_4grams": {"written": "much"}},
    ],
    ids=["strings", "none", "markup", "numbers", "shares"],
)
def test_a_trace_may_say_anything_of_its_models(tmp_path, profile_file, meta):
    """`meta` is JSON of any shape; what is not understood is shown as unknown."""
    path = tmp_path / "trace.npz"
    save_trace(small_trace(meta=meta), path)
    found = done("trace", "info", path).stdout
    assert "160 anchors" in found
    assert str(meta.get("target", {}).get("name", "") if isinstance(meta.get("target"), dict) else "") in found
    assert "chosen tree" in done("search", "--trace", path, "--profile", profile_file, "--batch", "1").stdout


# --- search: settings and outputs


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--batch", "0"], ["batch", "0"]),
        (["--batch", "x"], ["batch", "'x'"]),
        (["--batch", "1.5"], ["batch", "'1.5'"]),
        (["--batch", ""], ["batch"]),
        (["--batch", "1,,2"], ["batch"]),
        (["--batch", "1,-2"], ["batch", "-2"]),
        ([], ["batch"]),
        (["--batch", "1", "--max-nodes", "0"], ["max-nodes", "0"]),
        (["--batch", "1", "--max-depth", "0"], ["max-depth", "0"]),
        (["--batch", "1", "--max-depth", "4"], ["max-depth", "4", "3"]),
        (["--batch", "1", "--held-out", "0"], ["held-out", "0"]),
        (["--batch", "1", "--held-out", "1"], ["held-out", "1"]),
        (["--batch", "1", "--held-out", "nan"], ["held-out", "nan"]),
        (["--batch", "1", "--seed", "-1"], ["seed", "-1"]),
        (["--batch", "1", "--context", "-1"], ["context", "-1"]),
        (["--batch", "1", "--method", "guess"], ["method", "guess", "renewal"]),
        (["--batch", "1", "--widht", "3"], ["--widht"]),
    ],
    ids=lambda value: " ".join(value) or "no batch" if isinstance(value, list) else None,
)
def test_settings_without_meaning_are_usage(trace_file, profile_file, unchanged, words, named):
    unchanged()
    refused(run("search", "--trace", trace_file, "--profile", profile_file, *words), *named, code=2)


@pytest.mark.parametrize(
    ("changes", "words", "named"),
    [
        ({"batches": (1, 2)}, ["--batch", "1,4"], ["batch 4", "1, 2"]),
        ({"tokens": 8}, ["--batch", "1", "--max-nodes", "8"], ["tokens 9", "2 to 8"]),
        ({"depth": 2}, ["--batch", "1", "--max-depth", "3"], ["depth 3", "1 to 2"]),
        ({}, ["--batch", "1", "--context", "101"], ["context 101", "4 to 100"]),
        ({}, ["--batch", "1", "--context", "3"], ["context 3", "4 to 100"]),
    ],
    ids=["batch", "tokens", "depth", "longer", "shorter"],
)
def test_what_was_not_profiled_is_refused(trace_file, tmp_path, unchanged, changes, words, named):
    path = tmp_path / "profile.json"
    save_profile(small_profile(**changes), path)
    unchanged()
    refused(run("search", "--trace", trace_file, "--profile", path, *words), *named)


def test_sizes_that_nobody_gave_are_those_that_the_profile_covers(trace_file, tmp_path):
    """And the plan says what was left out; a profile wide enough leaves nothing out."""
    words = ("search", "--trace", trace_file, "--profile", tmp_path / "profile.json", "--batch", "1,2", "--json")
    for tokens, depth, nodes in ((8, 2, 7), (64, 3, 63)):
        save_profile(small_profile(batches=(1, 2), tokens=tokens, depth=depth), tmp_path / "profile.json")
        plan = read_json(done(*words).stdout)
        assert (plan["meta"]["search"]["max_nodes"], plan["meta"]["search"]["max_depth"]) == (nodes, depth)
        said = [warning for warning in plan["warnings"] if "not looked at" in warning]
        assert len(said) == (2 if nodes == 7 else 0)
        if said:
            assert "more than 7 nodes" in said[0]
            assert "more than 2 levels" in said[1]
            assert all("batch 1, 2" in warning for warning in said)


def test_no_profile_found(trace_file, unchanged):
    unchanged()
    refused(run("search", "--trace", trace_file, "--batch", "1"), "trace.npz", "no profile", "--profile")


def test_a_named_profile_must_be_one(trace_file, tmp_path, unchanged):
    (tmp_path / "profile.json").write_text("{}")
    unchanged()
    for name, word in (("profile.json", "schema"), ("none.json", "No such file")):
        result = run("search", "--trace", trace_file, "--batch", "1", "--profile", tmp_path / name)
        refused(result, str(tmp_path / name), word)


OUTPUTS = {
    "search": ("search", "--trace", "no.npz", "--batch", "1"),
    "collect": ("trace", "collect", "--target", "no", "--drafter", "no", "--prompts", "no"),
    "profile": ("profile", "--target", "no", "--drafter", "no", "--prompts", "no"),
    "validate": ("validate", "--target", "no", "--drafter", "no", "--prompts", "no", "--plan", "no"),
}


@pytest.mark.parametrize("words", OUTPUTS.values(), ids=OUTPUTS)
def test_an_output_that_cannot_be_written_is_refused_before_any_work(tmp_path, unchanged, monkeypatch, words):
    (tmp_path / "file").write_text("a file")
    unchanged()
    refused(run(*words, "--output", tmp_path / "none" / "o"), "output", str(tmp_path / "none"), code=2)
    refused(run(*words, "--output", tmp_path / "file" / "o"), "output", str(tmp_path / "file"), code=2)
    refused(run(*words, "--output", tmp_path), "output", str(tmp_path), "directory", code=2)

    # Root may write anywhere, so the system's refusal is played.
    def denied(*args, **kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    for made in ("TemporaryFile", "mkstemp", "NamedTemporaryFile"):
        monkeypatch.setattr(f"tempfile.{made}", denied)
    refused(run(*words, "--output", tmp_path / "o"), "output", str(tmp_path), "Permission denied", code=2)


def test_a_folder_that_is_no_trace_is_refused(tmp_path):
    for words in (("search", "--trace", tmp_path, "--batch", "1"), ("trace", "info", tmp_path)):
        refused(run(*words), "manifest.json", "No such file", str(tmp_path))


# --- export


def test_export_prints_the_engines_text_alone(small_plan):
    result = done("export", small_plan, "--format", "medusa", "--batch", "1")
    paths = read_json(result.stdout)
    chosen = load_plan(small_plan).entries[0].choice.tree
    assert paths == [list(path) for path in chosen.paths]
    assert chosen.id in result.stderr
    assert all(line.startswith(("note: ", "flags: ", "Warning: ")) for line in result.stderr.splitlines())
    warned = [line for line in result.stderr.splitlines() if line.startswith("Warning: ")]
    assert warned == [f"Warning: {warning}." for warning in load_plan(small_plan).warnings]
    assert warned  # of few requests
    whole = done("export", small_plan, "--format", "medusa", "--batch", "1", "--json")
    assert read_json(whole.stdout)["text"] + "\n" == result.stdout


def test_export_writes_a_file(small_plan, tmp_path):
    words = ("export", small_plan, "--format", "medusa", "--batch", "1")
    printed = done(*words).stdout
    result = done(*words, "--output", tmp_path / "choices.json")
    assert result.stdout == ""
    assert (tmp_path / "choices.json").read_text() == printed


def test_export_refuses(small_plan, tmp_path, unchanged):
    (tmp_path / "empty.json").write_text("")
    unchanged()
    words = ("--format", "medusa", "--batch", "1")
    refused(run("export", tmp_path / "none.json", *words), "none.json", "No such file")
    refused(run("export", tmp_path / "empty.json", *words), "empty.json", "JSON")
    refused(run("export", tmp_path, *words), str(tmp_path), "directory", code=None)
    refused(run("export", small_plan, "--format", "medusa"), "1, 4", code=2)
    refused(run("export", small_plan, "--format", "medusa", "--batch", "2"), "batch 2", "1, 4", code=2)
    refused(run("export", small_plan, "--format", "tensorrt"), "tensorrt", "medusa", code=2)
    refused(run("export", small_plan, *words, "--model", "m"), "--model", "medusa", code=2)
    refused(run("export", small_plan, *words, "--heads", "1"), "Medusa", "depth")
    refused(run("export", small_plan, *words, "--output", tmp_path / "none" / "o"), "none", code=2)
    refused(run("export", small_plan, *words, "--output", tmp_path), str(tmp_path), code=2)


def spoiled(plan, place, value):
    record = json.loads(plan.read_text())
    holder = record
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    return json.dumps(record)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("schema",), "treeopt.plan/1"),
        (("entries",), {}),
        (("entries", 1), 5),
        (("entries", 1), []),
        (("entries", 1), None),
        (("entries", 1, "batch"), "4"),
        (("entries", 1, "batch"), True),
        (("entries", 1, "choice"), 5),
        (("entries", 1, "choice", "tree"), [[0]]),
        (("entries", 1, "choice", "tree", "paths"), 5),
        (("entries", 1, "choice", "tree", "paths"), [["0"]]),
        (("entries", 1, "choice", "tree", "paths"), [[0.5]]),
        (("entries", 1, "choice", "tree", "id"), "another"),
        (("entries", 1, "choice", "step_s"), 0),
        (("entries", 1, "choice", "step_s"), 10**400),
        (("entries", 1, "choice", "tau"), 5),
        (("entries", 1, "choice", "tau", "value"), float("nan")),
        (("entries", 1, "compared"), 5),
        (("entries", 1, "compared"), [5]),
        (("entries", 1, "skipped"), []),
        (("entries", 1, "skipped"), 5),
        (("entries", 1, "proof"), 5),
        (("entries", 1, "proof"), {}),
        (("entries", 1, "gain_over_chain"), 5),
        (("meta",), []),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else repr(value)[:20],
)
def test_a_broken_plan_is_refused(small_plan, unchanged, place, value):
    small_plan.write_text(spoiled(small_plan, place, value))
    unchanged()
    where = "entries[1]" if len(place) > 1 else place[0]
    refused(run("export", small_plan, "--format", "medusa", "--batch", "1"), "small.json", where)


@pytest.mark.parametrize("meta", [{}, {"trace": 5, "search": 5, "cost": 5}, {"trace": {"drafter": 5, "target": 5}}])
def test_a_plan_may_say_anything_of_its_trace(plan_file, tiny, meta):
    plan_file.write_text(spoiled(plan_file, ("meta",), meta))
    assert read_json(done("export", plan_file, "--format", "medusa").stdout)
    assert "predicted" in validate(tiny, plan_file, "--requests", "4").stdout


# --- the tiny model: what works


@pytest.fixture(scope="module")
def made(tiny, tmp_path_factory):
    """`trace.npz` and `profile.json` of the tiny model, made by the commands themselves; not to be written to."""
    folder = tmp_path_factory.mktemp("made")
    first, second = collect(tiny, folder / "trace.npz"), measure(tiny, folder / "profile.json")
    assert (first.exit_code, second.exit_code) == (0, 0), first.stderr + second.stderr
    assert first.stdout == second.stdout == ""
    assert first.stderr.splitlines()[-1] == f"{8 * 6} anchors of 8 requests written to {folder / 'trace.npz'}"
    assert str(folder / "profile.json") in second.stderr.splitlines()[-1]
    return folder


def test_collect_records_what_was_asked_for(made, tiny, tmp_path):
    trace = load_trace(made / "trace.npz")
    assert (trace.requests, trace.anchors, trace.depth, trace.width) == (8, 48, HEADS, 4)
    assert trace.domain_names == ("letters",)
    assert trace.meta["target"]["name"] == "target"
    assert trace.meta["drafter"]["heads"] == HEADS
    words = ("--depth", "2", "--requests", "3", "--skip", "2", "--temperature", "0.7", "--dtype", "float64")
    assert collect(tiny, tmp_path / "trace.npz", *words).exit_code == 0
    other = load_trace(tmp_path / "trace.npz")
    assert (other.requests, other.depth, other.meta["temperature"]) == (3, 2, 0.7)
    assert other.meta["target"]["dtype"] == "float64"
    assert os.listdir(tmp_path) == ["trace.npz"]


def test_the_seed_decides_what_is_sampled(tiny, tmp_path):
    texts = []
    for seed in ("1", "1", "2"):
        assert collect(tiny, tmp_path / "t.npz", "--temperature", "1", "--seed", seed).exit_code == 0
        trace = load_trace(tmp_path / "t.npz")
        assert trace.meta["seed"] == int(seed)
        texts.append(trace.meta["text_sha256"])
    assert texts[0] == texts[1] != texts[2]


def test_collect_repeats_itself_whatever_the_batch(made, tiny, tmp_path):
    again = tmp_path / "trace.npz"
    assert collect(tiny, again, "--batch", "3").exit_code == 0
    first, second = load_trace(made / "trace.npz"), load_trace(again)
    np.testing.assert_array_equal(first.rank, second.rank)
    assert first.meta["text_sha256"] == second.meta["text_sha256"]


def test_info_shows_what_a_trace_holds(made):
    shown = done("trace", "info", made / "trace.npz").stdout
    assert "48 anchors of 8 requests (6 to 6 tokens after prompts of 5 to 12), depth 3, width 4" in shown
    record = read_json(done("trace", "info", made / "trace.npz", "--json").stdout)
    assert (record["anchors"], record["requests"]) == (48, 8)
    assert record["meta"]["target"]["name"] == "target"


def test_a_profile_covers_what_was_asked_for(made):
    profile = load_profile(made / "profile.json")
    (times,) = profile.batches
    assert (times.batch, times.draft[-1][0], times.rest[0][0], times.rest[-1][0]) == (1, HEADS, 2, 5)
    tokens = [len(text.encode()) for text in TEXTS]
    assert profile.context == (min(tokens), max(tokens) + 12)


def test_the_whole_way(made, tiny, tmp_path):
    """Recorded, measured, searched, validated: every file names the same models, so nothing is warned of."""
    for name in ("trace.npz", "profile.json"):
        shutil.copy(made / name, tmp_path)
    found = done(
        *("search", "--trace", tmp_path / "trace.npz", "--batch", "1", "--max-nodes", "4"),
        *("--output", tmp_path / "plan.json"),
    )
    assert found.stderr.splitlines()[0] == "profile: profile.json"
    assert "Warning" not in found.stderr
    shown = validate(tiny, tmp_path / "plan.json")
    assert shown.exit_code == 0
    assert "predicted" in shown.stdout
    assert "Warning" not in shown.stderr
    # These are the very prompts that the trace was made of; nothing may say otherwise.
    assert "does not hold" not in shown.stdout
    output = tmp_path / "validation.json"
    told = validate(tiny, tmp_path / "plan.json", "--json", "--output", output)
    assert told.exit_code == 0
    record = read_json(told.stdout)
    assert record == read_json(output.read_text())
    assert record["schema"] == "treeopt.validation/2"
    (entry,) = load_plan(tmp_path / "plan.json").entries
    fixed = load_predictions(tmp_path / "validation.predictions.json")
    assert fixed.plan.entries == (entry,)
    assert record["meta"]["predictions"]["sha256"] == fixed.sha256
    assert fixed.meta["plan"] == checksum(tmp_path / "plan.json")
    assert record["cells"][0]["batch"] == 1
    assert record["cells"][0]["tree"]["id"] in {c.tree.id for c in (entry.choice, *entry.compared) if c.tree}
    assert record["max_error"] == max(abs(cell["error"]) for cell in record["cells"])


def test_validate_makes_its_own_plan_of_a_trace(made, tiny, tmp_path):
    """As `treeopt search` would, with limits that the profile covers."""
    save_profile(small_profile(batches=(1, 2)), tmp_path / "profile.json")
    words = ("--trace", made / "trace.npz", "--profile", tmp_path / "profile.json", "--batch", "1,2", "--json")
    result = done("validate", *inputs(tiny), *CHECK, *words)
    assert {cell["batch"] for cell in read_json(result.stdout)["cells"]} == {1, 2}


def knowing(*lengths: int, batches=(1, 2)) -> Profile:
    """Step times, and prefill of prompts of these lengths."""
    times = tuple((tokens, 0.001 * tokens) for tokens in lengths)
    return replace(small_profile(batches=batches), prefill=Prefill(times, times))


def whole(tiny, made, folder, *more, profile=None) -> tuple[dict, str]:
    """What `validate` says, and tells, of the trace with these step times; predictions go to `fixed.json`."""
    save_profile(profile or knowing(1, 64), folder / "profile.json")
    words = ("--trace", made / "trace.npz", "--profile", folder / "profile.json", "--batch", "1,2", *more)
    shown = done("validate", *inputs(tiny), *words, "--predictions", folder / "fixed.json", "--json")
    return read_json(shown.stdout), shown.stderr


def test_validate_predicts_whole_runs(made, tiny, tmp_path):
    """As the library does, of the requests that trees were not chosen on."""
    record, told = whole(tiny, made, tmp_path, *CHECK)
    assert "whole runs" not in told
    fixed = load_predictions(tmp_path / "fixed.json")
    cells = {(cell["batch"], cell["tree"]["id"]): cell["end_to_end_predicted"] for cell in record["cells"]}
    assert cells == {place: asdict(due) for place, due in fixed.whole.items()}
    assert record["end_to_end"]["cells"] == len(cells) >= 2
    trace = load_trace(made / "trace.npz")
    runs = Runs({1: (2, 2, 2, 2), 2: (4, 4)}, tuple(trace.prompt_tokens.tolist()), 6)
    assert fixed.meta["runs"] == runs.record
    assert fixed.whole == whole_runs(
        fixed.plan, hold_out(trace, seed=0)[1], load_profile(tmp_path / "profile.json"), runs
    )
    table = done("validate", *inputs(tiny), *CHECK, "--predictions", tmp_path / "fixed.json").stdout
    assert "Error of whole runs, prefill and draining included: mean" in table
    assert "end to end" in table


@pytest.mark.parametrize(
    ("more", "profile", "told"),
    [
        (("--new-tokens", "5"), None, "the trace's requests are of up to 6 tokens, those to be decoded of 5"),
        (("--new-tokens", "6"), knowing(40, 64), "prefill was measured for 40 tokens and more"),
        (("--new-tokens", "6"), small_profile(batches=(1, 2)), "the profile does not know what prompts take"),
    ],
)
def test_validate_says_why_whole_runs_are_not_predicted(made, tiny, tmp_path, more, profile, told):
    record, said = whole(tiny, made, tmp_path, *more, "--blocks", "2", profile=profile)
    assert record["end_to_end"] is None
    assert f"whole runs are not predicted: {told}" in said
    assert load_predictions(tmp_path / "fixed.json").meta["runs"] is None


def test_a_few_prompts_may_be_shorter_than_profiled(made, tiny, tmp_path):
    lengths = sorted(load_trace(made / "trace.npz").prompt_tokens.tolist())
    assert lengths[0] < lengths[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("treeopt.cli.predicting.FEW", 1 / len(lengths))
        record, said = whole(tiny, made, tmp_path, *CHECK, profile=knowing(lengths[1], 64))
    assert f"1 prompts are taken to be as long as the shortest profiled, {lengths[1]} tokens" in said
    assert record["end_to_end"]["cells"] >= 2


def test_whole_runs_are_compared_with_their_own_predictions_only(made, tiny, tmp_path):
    record, _ = whole(tiny, made, tmp_path, *CHECK)
    assert record["end_to_end"]["cells"] >= 2
    words = ("--predictions", tmp_path / "fixed.json", "--json")
    same = done("validate", *inputs(tiny), *CHECK, *words)
    assert read_json(same.stdout)["end_to_end"]["cells"] >= 2
    assert "whole runs" not in same.stderr
    turned = tmp_path / "turned.jsonl"
    turned.write_text("".join(reversed((tiny / "prompts.jsonl").read_text().splitlines(keepends=True))))
    for prompts, new_tokens in ((tiny / "prompts.jsonl", "4"), (turned, "6")):
        how = ("--new-tokens", new_tokens, "--blocks", "2")
        other = done("validate", *inputs(tiny, prompts=prompts), *how, *words)
        assert read_json(other.stdout)["end_to_end"] is None
        assert "whole runs are not compared: other prompts, blocks or numbers of tokens" in other.stderr


def test_validate_measures_trees_of_given_sizes(made, tiny, tmp_path):
    """What trace or profile do not cover is named and left out."""
    save_profile(small_profile(batches=(1, 2)), tmp_path / "profile.json")
    words = ("--trace", made / "trace.npz", "--profile", tmp_path / "profile.json", "--batch", "1,2", "--json")
    shapes = ("--shapes", "chain:1,chain:2,chain:99,best:4")
    record = read_json(done("validate", *inputs(tiny), *CHECK, *words, *shapes).stdout)
    for batch in (1, 2):
        names = {name for c in record["cells"] if c["batch"] == batch for name in c["name"].split(", ")}
        assert {"chain of 1", "chain of 2", "best tree of 4"} <= names
        assert list(record["meta"]["skipped"][str(batch)]) == ["chain of 99"]
    cells = {tree["id"]: (c, c["closed_forms"]) for c in record["cells"] if (tree := c["tree"]) and c["batch"] == 1}
    assert all(forms["leviathan"] > 0 and forms["coral"] > 0 for _, forms in cells.values())
    refused(run("validate", *inputs(tiny), *CHECK, *words[:-1], "--shapes", "tree:4"), "chain:N", "tree:4", code=2)


def test_validate_leaves_out_what_a_small_profile_does_not_cover(made, tiny, tmp_path):
    """As `profile --max-nodes 3 --max-depth 2` leaves it: the usual sizes and the trace's depth are beyond it."""
    save_profile(small_profile(batches=(1, 2), tokens=4, depth=2), tmp_path / "profile.json")
    words = ("--trace", made / "trace.npz", "--profile", tmp_path / "profile.json", "--batch", "1,2", "--json")
    result = done("validate", *inputs(tiny), *CHECK, *words)
    record = read_json(result.stdout)
    trees = [Tree.from_paths(tuple(map(tuple, cell["tree"]["paths"]))) for cell in record["cells"]]
    assert trees
    assert all(tree.nodes <= 3 and tree.depth <= 2 for tree in trees)
    usual = "chain of 4, best tree of 7, best tree of 15, best tree of 31, best tree of 63"
    for batch in (1, 2):
        assert f"batch {batch}: not measured, trace or profile do not cover them: {usual}" in result.stderr
        assert ", ".join(record["meta"]["skipped"][str(batch)]) == usual


def test_validate_says_how_to_go_on_where_no_tree_is_covered(made, tiny, tmp_path, unchanged):
    """A profile of one size that is no tree's smallest."""
    times = BatchTimes(1, 0.010, ((1, 1e-4), (3, 4e-4)), ((3, 0.011), (4, 0.012)))
    save_profile(Profile((times,), (4, 100), 0.02, MODELS), tmp_path / "profile.json")
    unchanged()
    words = ("--trace", made / "trace.npz", "--profile", tmp_path / "profile.json", "--batch", "1")
    refused(
        run("validate", *inputs(tiny), *CHECK, *words),
        *("cover no tree at batch 1", "treeopt search --output plan.json", "--plan plan.json"),
    )


RANDOM = ("--target", "toy", "--drafter", "medusa:3", "--random-weights", "--prompt-tokens", "5")


def replaying(trace, profile, *more):
    """A validation of random weights that keep what 8 requests of a trace keep."""
    words = (*RANDOM, "--profile", profile, "--acceptance", f"replay:{trace}", "--blocks", "2", "--json")
    return run("validate", *words, "--trace", trace, "--batch", "1,2", *more)


@pytest.fixture
def sources(tmp_path):
    """A trace of 16 requests and a profile that covers the usual small trees."""
    rng = np.random.default_rng(0)
    trace = drawn_trace([[0.5, 0.2, 0.1, 0.05]], [12] * 16, depth=3, rng=rng)
    save_trace(trace, tmp_path / "t.npz")
    save_profile(small_profile(batches=(1, 2), depth=3), tmp_path / "p.json")
    return trace, tmp_path / "t.npz", tmp_path / "p.json"


def test_random_weights_replay_a_trace(sources, tmp_path):
    """tau is the replay's of just those requests, and no prediction has seen them."""
    trace, path, profile = sources
    result = replaying(path, profile, "--requests", "8", "--skip", "4", "--output", tmp_path / "v.json")
    assert result.exit_code == 0, result.stderr
    record = read_json(result.stdout)
    part = trace.select(np.arange(4, 12))
    for cell in record["cells"]:
        tree = Tree.from_paths(tuple(map(tuple, cell["tree"]["paths"])))
        assert cell["measured"]["tau"]["value"] == pytest.approx(replay(tree, part).tau)
    meta = record["meta"]
    assert (meta["acceptance"], meta["prompts"], meta["prompt_tokens"]) == ("replay", 8, [5, 5])
    assert meta["target"]["name"] == "random-toy"
    assert meta["predictions"]["replayed"] == checksum(path)
    assert meta["predictions"]["replayed_requests"] == [4, 8]
    search = load_predictions(tmp_path / "v.predictions.json").plan.meta["search"]
    assert search["requests_chosen_on"] + search["requests_judged_on"] == 16 - 8


def test_a_replay_does_the_work_of_a_rule(sources, tmp_path, monkeypatch):
    """What steps keep is the trace's, what they compute is the rule's."""
    trace, path, profile = sources

    def unwanted(*_: object) -> None:
        raise AssertionError("judged greedily")

    monkeypatch.setattr(Greedy, "accept", unwanted)
    result = replaying(path, profile, "--requests", "8", "--temperature", "1", "--rule", "point-mass")
    assert result.exit_code == 0, result.stderr
    record = read_json(result.stdout)
    assert (record["meta"]["verification"], record["meta"]["temperature"]) == ("point-mass", 1.0)
    part = trace.select(np.arange(8))
    for cell in record["cells"]:
        tree = Tree.from_paths(tuple(map(tuple, cell["tree"]["paths"])))
        assert cell["measured"]["tau"]["value"] == pytest.approx(replay(tree, part).tau)


def test_predictions_are_read_again_unless_they_were_changed(sources, tmp_path):
    _, path, profile = sources
    fixed = tmp_path / "fixed.json"
    first = replaying(path, profile, "--requests", "8", "--predictions", fixed)
    assert first.exit_code == 0, first.stderr
    assert "predictions" in first.stderr
    words = (*RANDOM, "--blocks", "2", "--requests", "8", "--predictions", fixed)
    kept = fixed.read_bytes()
    again = done("validate", *words, "--acceptance", f"replay:{path}", "--json")
    assert fixed.read_bytes() == kept
    one, other = (read_json(result.stdout) for result in (first, again))
    assert one["meta"]["predictions"] == other["meta"]["predictions"]
    assert [c["predicted"] for c in one["cells"]] == [c["predicted"] for c in other["cells"]]
    assert [c["closed_forms"] for c in one["cells"]] == [c["closed_forms"] for c in other["cells"]]
    refused(run("validate", *words), "fixed.json", "replay of a trace", "live", code=2)
    seen = run("validate", *words, "--acceptance", f"replay:{path}", "--skip", "1")
    refused(seen, "fixed.json", "--skip 0 --requests 8", code=2)
    fixed.write_text(fixed.read_text().replace('"seed": 0', '"seed": 1', 1))
    refused(run("validate", *words, "--acceptance", f"replay:{path}"), "fixed.json", "was changed")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--requests", "17"], ["17 requests wanted after skipping 0", "16"]),
        (["--requests", "8", "--skip", "9"], ["8 requests wanted after skipping 9", "16"]),
        ([], ["--requests", "same trace"]),
        (["--requests", "8", "--acceptance", "replay"], ["--acceptance", "replay:TRACE.npz"]),
        (["--requests", "8", "--dtype", "auto"], ["--random-weights", "--dtype"]),
        (["--requests", "8", "--drafter", "heads"], ["medusa:K", "heads"]),
        (["--requests", "8", "--prompts", "p.jsonl"], ["--prompts", "--prompt-tokens"]),
    ],
)
def test_replays_are_refused(sources, unchanged, more, words):
    _, path, profile = sources
    unchanged()
    refused(replaying(path, profile, *more), *words, code=2)


def test_ranks_of_a_rule_that_draws_are_not_replayed(sources):
    trace, path, profile = sources
    save_trace(replace(trace, meta={**trace.meta, "verification": "leviathan"}), path)
    refused(replaying(path, profile, "--requests", "8"), str(path), "rule leviathan draws", code=2)


def test_a_replay_needs_the_step_times_of_its_own_models(sources):
    _, path, _ = sources
    words = ("--trace", path, "--acceptance", f"replay:{path}", "--requests", "8")
    refused(run("validate", *RANDOM, *words), "--profile", code=2)


def test_random_prompts_beyond_the_context_are_refused_before_they_are_drawn(tmp_path):
    words = ("--prompt-tokens", "9" * 12, *MEASURE, "--requests", "3", "--output", tmp_path / "profile.json")
    refused(run("profile", *RANDOM, *words), "999999999999 tokens exceed the model's context of 40960")


def test_random_weights_are_profiled(tmp_path):
    words = (*MEASURE, "--requests", "3", "--output", tmp_path / "profile.json")
    result = run("profile", *RANDOM, *words)
    assert result.exit_code == 0, result.stderr
    profile = load_profile(tmp_path / "profile.json")
    assert profile.meta["target"]["name"] == "random-toy"
    assert profile.context == (5, 17)


def test_sampled_step_times_are_measured_and_preferred_for_sampled_traces(tiny, tmp_path):
    """A trace at temperature 1: with greedy step times only, a warning; beside sampled ones, these."""
    told = {"verification": "sample-and-match", "temperature": 1.0, "top_k": 40}
    sampled = ("--temperature", "1", "--top-k", "40")
    assert collect(tiny, tmp_path / "trace.npz", *sampled).exit_code == 0
    assert measure(tiny, tmp_path / "a-greedy.json").exit_code == 0
    words = ("search", "--trace", tmp_path / "trace.npz", "--batch", "1", "--max-nodes", "4")
    warning = "step times were measured with greedy and the trace was recorded with sample-and-match at temperature 1"
    found = done(*words)
    assert found.stderr == "profile: a-greedy.json\n"
    assert f"Warning: {warning}, top-k 40" in " ".join(found.stdout.split())
    assert measure(tiny, tmp_path / "b-sampled.json", *sampled).exit_code == 0
    profile = load_profile(tmp_path / "b-sampled.json")
    assert told.items() <= profile.meta.items()
    assert (profile.meta["seed"], load_profile(tmp_path / "a-greedy.json").meta["verification"]) == (0, "greedy")
    found = done(*words)
    assert found.stderr == "profile: b-sampled.json\n"
    assert warning not in " ".join(found.stdout.split())


def test_a_rule_of_chains_measures_chains(tiny, tmp_path):
    result = measure(tiny, tmp_path / "p.json", "--temperature", "0.8", "--rule", "leviathan")
    assert result.exit_code == 0, result.stderr
    profile = load_profile(tmp_path / "p.json")
    (times,) = profile.batches
    assert [tokens for tokens, _ in times.rest] == [2, 3, 4]
    assert profile.meta["left_out"] == []


def test_profiles_need_one_source_of_prompts(tiny, tmp_path):
    words = ("--target", tiny / "target", "--drafter", tiny / "drafter", "--output", tmp_path / "p.json")
    refused(run("profile", *words), "--prompts", "--prompt-tokens", code=2)


@pytest.mark.parametrize("same", [True, False])
def test_a_plan_of_the_texts_that_are_replayed_is_warned_of(sources, tmp_path, same):
    trace, path, profile = sources
    save_trace(replace(trace, meta={"text_sha256": "ab"}), path)
    words = ("--profile", profile, "--batch", "1", "--max-nodes", "4", "--output", tmp_path / "plan.json")
    done("search", "--trace", path, *words)
    save_trace(replace(trace, meta={"text_sha256": "ab" if same else "cd"}), path)
    words = ("--plan", tmp_path / "plan.json", "--acceptance", f"replay:{path}", "--requests", "4", "--blocks", "2")
    result = run("validate", *RANDOM, *words)
    assert result.exit_code == 0, result.stderr
    assert ("Warning: the plan was chosen on the texts that are replayed" in result.stderr) == same


@pytest.mark.parametrize(("label", "told"), [(8.0, False), (90.0, True)])
def test_a_plan_of_another_context_is_warned_of(sources, tmp_path, label, told):
    trace, path, profile = sources
    small = small_profile(batches=(1,), depth=3)
    save_profile(replace(small, batches=(replace(small.batches[0], context=label),)), profile)
    done("search", "--trace", path, "--profile", profile, "--batch", "1", "--output", tmp_path / "plan.json")
    save_trace(trace, tmp_path / "other.npz")
    words = ("--acceptance", f"replay:{tmp_path / 'other.npz'}", "--requests", "4", "--blocks", "2")
    for more in (("--plan", tmp_path / "plan.json", "--predictions", tmp_path / "fixed.json"), ()):
        again = more or ("--predictions", tmp_path / "fixed.json")
        result = run("validate", *RANDOM, *words, *again)
        assert result.exit_code == 0, result.stderr
        assert ("Warning: the plan's steps are priced at 90 tokens a sequence" in result.stderr) == told


def test_validate_warns_of_a_plan_of_another_rule(plan_file, tiny, tmp_path):
    """It decodes greedily."""
    for told, warned in ((("greedy", 0.0), False), (("sample-and-match", 1.0), True)):
        plan = load_plan(plan_file)
        trace = plan.meta["trace"] | dict(zip(("verification", "temperature"), told, strict=True))
        save_plan(replace(plan, meta={**plan.meta, "trace": trace}), tmp_path / "plan.json")
        said = validate(tiny, tmp_path / "plan.json").stderr
        assert ("with verification sample-and-match, this is with greedy" in said) == warned
        assert ("with temperature 1.0, this is with 0.0" in said) == warned


def test_validate_decodes_by_the_rule_of_the_plan_s_trace(plan_file, tiny, tmp_path):
    plan, told = load_plan(plan_file), {"verification": "sample-and-match", "temperature": 0.7, "top_p": 0.9}
    save_plan(replace(plan, meta={**plan.meta, "trace": plan.meta["trace"] | told}), tmp_path / "plan.json")
    asked = ("--temperature", "0.7", "--top-p", "0.9", "--output", tmp_path / "v.json")
    said = validate(tiny, tmp_path / "plan.json", *asked)
    assert said.exit_code == 0, said.stderr
    assert "this is with" not in said.stderr
    assert "new tokens each by sample-and-match at temperature 0.7, top-p 0.9, in" in said.stdout
    record = json.loads((tmp_path / "v.json").read_text("utf-8"))
    assert {name: record["meta"][name] for name in told} == told
    other = validate(tiny, tmp_path / "plan.json", "--temperature", "0.7")
    assert "recorded with top_p 0.9, this is with 1.0" in other.stderr


@pytest.mark.parametrize("part", ["target", "drafter"])
def test_validate_warns_when_the_models_differ(plan_file, tiny, part):
    """The plan's own models are made up, so both differ; each is named."""
    result = validate(tiny, plan_file)
    assert result.exit_code == 0
    warnings = [line for line in result.stderr.splitlines() if line.startswith("Warning: ")]
    assert any(part in line for line in warnings), result.stderr


def test_a_drafter_that_was_made_for_another_target_is_warned_of(tiny, tmp_path):
    """By name, which is all that it says of it: random weights of the same shapes, or a target that lies below it."""
    shutil.copytree(tiny / "target", tmp_path / "other")
    shutil.copytree(tiny / "drafter", tmp_path / "drafter")
    shutil.copytree(tiny / "target", tmp_path / "drafter" / "own")
    for target, warned in (("other", True), ("drafter/own", False)):
        for drafter in (tmp_path / "drafter", tmp_path / "drafter" / MEDUSA_FILE):
            result = collect(tiny, tmp_path / "trace.npz", target=tmp_path / target, drafter=drafter)
            assert result.exit_code == 0, result.stderr
            lines = [line for line in result.stderr.splitlines() if line.startswith("Warning: ")]
            assert lines == [f"Warning: {drafter} was made for the target target, this one is other"] * warned
    assert "Warning" not in collect(tiny, tmp_path / "trace.npz").stderr


def test_half_precision_on_a_processor_without_its_products_is_warned_of(tiny, monkeypatch):
    monkeypatch.setattr("torch.ops.mkldnn._is_mkldnn_bf16_supported", lambda: False)
    words = ("decode", *inputs(tiny), "--new-tokens", 2, "--dtype")
    assert "Warning" not in done(*words, "float32").stderr
    warning = "Warning: this processor has no bfloat16 products: float32 takes half the time and less\n"
    assert warning in done(*words, "bfloat16").stderr


def test_a_request_that_fits_the_context_is_decoded(tiny, tmp_path):
    """Room for it may be kept in larger pieces, the model's context is what counts."""
    shutil.copytree(tiny / "target", tmp_path / "target")
    config = json.loads((tmp_path / "target" / "config.json").read_text())
    longest = max(len(text) for text in TEXTS)
    (tmp_path / "target" / "config.json").write_text(json.dumps(config | {"max_position_embeddings": longest + 6}))
    result = collect(tiny, tmp_path / "trace.npz", target=tmp_path / "target")
    assert result.exit_code == 0, result.stderr


# --- the tiny model: what is refused


def copy_of(tiny, tmp_path, part, change):
    """A folder like the tiny target or drafter, but for a change."""
    folder = tmp_path / part
    shutil.copytree(tiny / part, folder)
    change(folder)
    return folder


def config(text):
    return lambda folder: (folder / "config.json").write_text(text)


def weights(change, name="model.safetensors"):
    """Change the tensors of a folder: `change` returns the new ones."""

    def changed(folder):
        save_file(change(load_file(folder / name)), folder / name, metadata={"format": "pt"})

    return changed


def cut(name):
    def shorter(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return shorter


def without(tensors, key):
    assert key in tensors
    return {name: tensor for name, tensor in tensors.items() if name != key}


def emptied(folder):
    shutil.rmtree(folder)
    folder.mkdir()


def no_tokenizer(folder):
    for path in folder.glob("tokenizer*"):
        path.unlink()


FIRST = "model.layers.0.self_attn.q_proj.weight"
BAD_TARGETS = {
    "missing": (shutil.rmtree, "no model folder"),
    "empty": (emptied, "config.json"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json"),
    "config of nothing": (config("{}"), "model"),
    "config cut": (config('{"model_type": '), "JSON"),
    "config a list": (config("[]"), "config.json"),
    "not a language model": (config('{"model_type": "vit"}'), "vit"),
    "unknown model": (config('{"model_type": "no-such-model"}'), "no-such-model"),
    "refused model": (config('{"model_type": "bloom"}'), "bloom"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
    "weights cut": (cut("model.safetensors"), "load"),
    "weights pickled": (
        lambda folder: (folder / "model.safetensors").write_bytes(pickle.dumps({"a": 1})),
        "load",
    ),
    "weights of another width": (weights(lambda t: t | {FIRST: torch.zeros(16, 32)}), FIRST),
    "weights of one layer gone": (weights(lambda t: without(t, FIRST)), FIRST),
    "no tokenizer": (no_tokenizer, "tokenizer"),
    "tokenizer cut": (cut("tokenizer.json"), "tokenizer"),
}


@pytest.mark.parametrize("bad", BAD_TARGETS.values(), ids=BAD_TARGETS)
def test_a_target_that_is_none_is_refused(tiny, tmp_path, unchanged, bad):
    change, word = bad
    (tmp_path / "keep").write_text("so that there is a file")
    folder = copy_of(tiny, tmp_path, "target", change)
    unchanged()
    refused(collect(tiny, tmp_path / "trace.npz", target=folder), str(folder), word)


def test_code_in_a_model_folder_is_not_run(tiny, tmp_path, unchanged):
    """Nor does anything ask for it: a question on stdout is no result, and stdin may say yes to all."""
    folder = copy_of(tiny, tmp_path, "target", config('{"model_type": "own", "auto_map": {"AutoConfig": "own.C"}}'))
    (folder / "own.py").write_text(f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).write_text('ran')")
    unchanged()
    words = ("trace", "collect", *inputs(tiny, target=folder), *COLLECT, "--output", str(tmp_path / "trace.npz"))
    refused(CliRunner().invoke(main, words, input="y\ny\ny\n"), str(folder))


HEAD = "1.0.linear.weight"
head_weights = {"name": MEDUSA_FILE}
BAD_DRAFTERS = {
    "missing": (shutil.rmtree, MEDUSA_FILE),
    "empty": (emptied, MEDUSA_FILE),
    "cut": (cut(MEDUSA_FILE), "safetensors"),
    "pickled": (lambda folder: (folder / MEDUSA_FILE).write_bytes(pickle.dumps({"a": 1})), "safetensors"),
    "no tensors": (weights(lambda t: {}, **head_weights), "Medusa"),
    "extra key": (weights(lambda t: t | {"head.weight": t[HEAD].clone()}, **head_weights), "head.weight"),
    "a key gone": (weights(lambda t: without(t, HEAD), **head_weights), HEAD),
    "a bias gone": (weights(lambda t: without(t, "2.0.linear.bias"), **head_weights), "2.0.linear.bias"),
    "a transposed head": (weights(lambda t: t | {HEAD: torch.zeros(32, 16)}, **head_weights), HEAD),
    "integers": (weights(lambda t: t | {HEAD: torch.ones(32, 32, dtype=torch.int64)}, **head_weights), HEAD),
}


@pytest.mark.parametrize("bad", BAD_DRAFTERS.values(), ids=BAD_DRAFTERS)
def test_a_drafter_that_is_none_is_refused(tiny, tmp_path, unchanged, bad):
    change, word = bad
    (tmp_path / "keep").write_text("so that there is a file")
    folder = copy_of(tiny, tmp_path, "drafter", change)
    unchanged()
    refused(collect(tiny, tmp_path / "trace.npz", drafter=folder), str(folder), word)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    ("part", "name", "key"), [("target", "model.safetensors", FIRST), ("drafter", MEDUSA_FILE, HEAD)]
)
def test_weights_that_are_no_numbers_are_refused(tiny, tmp_path, unchanged, part, name, key, value):
    """NaN scores compare with nothing, so that every true token would seem to stand first: a perfect drafter."""
    change = weights(lambda tensors: tensors | {key: torch.full((32, 32), value)}, name)
    folder = copy_of(tiny, tmp_path, part, change)
    unchanged()
    message = refused(collect(tiny, tmp_path / "trace.npz", **{part: folder}), part)
    assert re.search("NaN|nan|finite|inf", message), message


def test_heads_of_another_width_are_refused(tiny, tmp_path, unchanged):
    write_drafter(tmp_path / "narrow", hidden=16)
    unchanged()
    result = collect(tiny, tmp_path / "trace.npz", drafter=tmp_path / "narrow")
    refused(result, MEDUSA_FILE, "0.0.linear", "(32", "(16")


def test_a_tokenizer_of_another_model_is_refused(tiny, tmp_path, unchanged):
    """Its ids reach beyond the model's vocabulary."""
    write_target(tmp_path / "target", vocabulary=40)
    unchanged()
    result = collect(tiny, tmp_path / "trace.npz", target=tmp_path / "target")
    refused(result, str(tmp_path / "target"), "vocabulary", "40", code=None)


PROMPTS = {
    "missing": (None, [], 1, "No such file"),
    "empty": (b"", [], 1, "no prompts"),
    "blank": (b"\n\n", [], 1, "no prompts"),
    "not JSON": (b'{"text": "abc"}\nabc\n', [], 1, "line 2"),
    "a list": (b'["abc"]\n', [], 1, "line 1"),
    "a number": (b"5\n", [], 1, "line 1"),
    "no text": (b'{"text": "abc"}\n\n{"txt": "abc"}\n', [], 1, "line 3"),
    "text a number": (b'{"text": 5}\n', [], 1, "line 1"),
    "text empty": (b'{"text": ""}\n', [], 1, "line 1"),
    "text of one token": (b'{"text": "abc"}\n{"text": "a"}\n', [], 2, "token"),
    "half a character": (b'{"text": "ab\\ud800c"}\n', [], 1, "line 1"),
    "domain a number": (b'{"text": "abc", "domain": 3}\n', [], 1, "line 1"),
    "other bytes": (b"\xff\xfe", [], 1, "prompts.jsonl"),
    "too few": (b'{"text": "abc"}\n' * 5, ["--requests", "6"], 2, "6 prompts"),
    "too few after skip": (b'{"text": "abc"}\n' * 5, ["--requests", "3", "--skip", "3"], 2, "skipping 3"),
    "all skipped": (b'{"text": "abc"}\n' * 5, ["--skip", "5"], 2, "skipping 5"),
}


@pytest.mark.parametrize(("content", "more", "code", "word"), PROMPTS.values(), ids=PROMPTS)
def test_prompts_that_are_none_are_refused(tiny, tmp_path, unchanged, content, more, code, word):
    (tmp_path / "keep").write_text("so that there is a file")
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_bytes(content)
    unchanged()
    result = collect(tiny, tmp_path / "trace.npz", *more, prompts=path)
    message = refused(result, word, code=code)
    assert str(path) in message


def test_prompts_may_hold_any_character(tiny, tmp_path):
    """Line and paragraph separators are characters of a JSON string, not ends of its line."""
    texts = ["ab\u2028cd", "ab\u2029cd", "ab\x85cd", "ab\x0bcd", "ab\r\ncd\x1c", "\U0001f333 \u00e9"]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts), "utf-8")
    result = collect(tiny, tmp_path / "trace.npz", prompts=path)
    assert result.exit_code == 0, result.stderr
    assert load_trace(tmp_path / "trace.npz").requests == len(texts)


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["--depth", "4"], 1, ["depth", "1..3", "4"]),
        (["--depth", "0"], 2, ["depth", "0"]),
        (["--width", "321"], 1, ["width", "320", "321"]),
        (["--width", "0"], 2, ["width", "0"]),
        (["--dtype", "float8"], None, ["dtype", "float32", "float8"]),
        (["--device", "gpu"], None, ["device", "gpu"]),
        (["--device", ""], None, ["device"]),
        (["--device", "cuda:99"], None, ["device", "cuda:99"]),
        (["--device", "meta"], None, ["device", "meta"]),
        (["--temperature", "-1"], 2, ["temperature", "-1"]),
        (["--temperature", "nan"], 2, ["temperature", "nan"]),
        (["--temperature", "inf"], 2, ["temperature", "inf"]),
        (["--new-tokens", "0"], 2, ["new-tokens", "0"]),
        (["--new-tokens", "500"], 1, ["context", str(CONTEXT)]),
        (["--batch", "0"], 2, ["batch", "0"]),
        (["--requests", "0"], 2, ["requests", "0"]),
        (["--threads", "0"], 2, ["threads", "0"]),
        (["--threads", "100000000"], 2, [f"threads must be in 1..{4 * os.cpu_count()}", "cores", "100000000"]),
        (["--seed", "99999999999999999999"], None, ["seed"]),
    ],
    ids=lambda value: "=".join(value) if isinstance(value, list) and value[0].startswith("--") else None,
)
def test_collect_refuses_settings(tiny, tmp_path, unchanged, more, code, words):
    (tmp_path / "keep").write_text("so that there is a file")
    unchanged()
    result = collect(tiny, tmp_path / "trace.npz", *more)
    refused(result, *words, code=code)


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["--batch", "0"], 2, ["batch", "0"]),
        (["--batch", "9"], 2, ["batch 9", "8"]),
        (["--batch", "4-2"], 2, ["batch", "4-2"]),
        (["--context", "1"], 2, ["contexts", "1"]),
        (["--context", "many"], 2, ["context", "many"]),
        (["--budget", "0"], 2, ["budget", "0"]),
        (["--max-nodes", "64"], 2, ["max-nodes", "64"]),
        (["--rounds", "1"], 2, ["rounds", "1"]),
        (["--steps", "0"], 2, ["steps", "0"]),
        (["--rule", "sequoia"], 2, ["--rule", "--temperature"]),
        (["--rule", "sequoia", "--temperature", "1", "--policies"], 2, ["sequoia", "draws its candidates"]),
        (["--new-tokens", "500"], 1, ["context", str(CONTEXT)]),
        (["--new-tokens", "1", "--requests", "1"], 2, ["new-tokens"]),
    ],
    ids=lambda value: "=".join(value) if isinstance(value, list) and value[0].startswith("--") else None,
)
def test_profile_refuses_settings(tiny, tmp_path, unchanged, more, code, words):
    (tmp_path / "keep").write_text("so that there is a file")
    unchanged()
    refused(measure(tiny, tmp_path / "profile.json", *more), *words, code=code)


def test_an_interrupted_profile_goes_on(tiny, tmp_path, monkeypatch):
    """At several contexts and batch sizes; the file of finished blocks is gone when the profile is there."""
    output, verify, calls = tmp_path / "profile.json", Target.verify, []
    more = ("--batch", "1-2", "--context", "8,16", "--max-nodes", "3")

    def fail(*args, **kwargs):
        calls.append(1)
        if len(calls) > 120:  # of which prompts took some
            raise KeyboardInterrupt
        return verify(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Target, "verify", fail)
        result = measure(tiny, output, *more)
    assert (result.exit_code, result.stderr.strip()) == (1, "Error: interrupted")
    work = tmp_path / "profile.json.work"
    assert len(work.read_text("utf-8").splitlines()) > 3
    refused(measure(tiny, output, *more, "--seed", "1"), "seed 0, now 1", "remove it", code=2)
    result = measure(tiny, output, *more)
    assert result.exit_code == 0, result.stderr
    assert "going on: " in result.stderr
    assert not work.exists()
    profile = load_profile(output)
    assert [times.batch for times in profile.batches] == [1, 1, 2, 2]
    assert profile.context[0] == 8
    assert (profile.meta["rounds"], profile.meta["steps"], profile.meta["left_out"]) == (2, 2, [])
    assert profile.meta["budget_s"] == 300


def test_a_profile_without_time_is_refused(tiny, tmp_path, unchanged):
    (tmp_path / "keep").write_text("so that there is a file")
    unchanged()
    refused(measure(tiny, tmp_path / "profile.json", "--budget", "1e-3"), "the least that makes a profile", code=2)


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_smallest_trees_can_be_profiled(tiny, tmp_path, nodes):
    result = measure(tiny, tmp_path / "profile.json", "--max-nodes", nodes)
    assert result.exit_code == 0, result.stderr
    assert "only 0 sizes could be left out, too few for a 95 % interval: the error of others is taken" in result.stderr
    assert load_profile(tmp_path / "profile.json").batches[0].rest[-1][0] == nodes + 1


@pytest.fixture
def deep_plan(tmp_path):
    """A chain of five, as only a drafter of five heads can draft."""
    trace = drawn_trace([[0.95]], [20] * 6, depth=5, rng=np.random.default_rng(0))
    save_trace(replace(trace, meta=MODELS), tmp_path / "deep.npz")
    save_profile(small_profile(depth=5), tmp_path / "profile.json")
    path = tmp_path / "deep.json"
    done("search", "--trace", tmp_path / "deep.npz", "--batch", "1", "--output", path)
    assert load_plan(path).entries[0].choice.tree.depth > HEADS
    return path


def test_validate_refuses_a_tree_deeper_than_the_heads(tiny, deep_plan, tmp_path, unchanged):
    unchanged()
    result = validate(tiny, deep_plan, "--output", tmp_path / "validation.json")
    assert result.stdout == ""
    assert result.exit_code == 1
    for word in ("at batch 1: ", "depth", str(load_plan(deep_plan).entries[0].choice.tree.depth), str(HEADS)):
        assert word in error_of(result)


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["--blocks", "1"], 2, ["blocks", "1"]),
        (["--blocks", "5"], 2, ["5 blocks", "10 prompts", "8"]),
        (["--requests", "3"], 2, ["2 blocks", "4 prompts", "3"]),
        (["--new-tokens", "500"], 1, ["context", str(CONTEXT)]),
        (["--batch", "4"], 2, ["--batch", "give --trace"]),
        (["--profile", "no.json"], 2, ["--profile", "give --trace"]),
        (["--trace", "no.npz"], 2, ["--plan", "--trace"]),
        (["--rule", "typical"], 2, ["--rule", "--temperature"]),
    ],
    ids=lambda value: "=".join(value) if isinstance(value, list) and value[0].startswith("--") else None,
)
def test_validate_refuses_settings(tiny, plan_file, tmp_path, unchanged, more, code, words):
    """An option that another one overrules is refused rather than dropped."""
    unchanged()
    result = validate(tiny, plan_file, "--output", tmp_path / "validation.json", *more)
    assert (result.stdout, result.exit_code) == ("", code)
    for word in words:
        assert word in error_of(result)


def test_validate_needs_a_plan_or_a_trace(tiny):
    refused(run("validate", *inputs(tiny), *CHECK), "--plan", "--trace", code=2)


def test_a_plan_without_trees_has_nothing_to_validate(tiny, plan_file, unchanged):
    record = json.loads(plan_file.read_text())
    (entry,) = record["entries"]
    plain = next(choice for choice in entry["compared"] if choice["tree"] is None)
    entry |= {"choice": plain, "compared": [], "gain_over_chain": None}
    plan_file.write_text(json.dumps(record))
    unchanged()
    result = validate(tiny, plan_file)
    assert result.exit_code in (1, 2)
    assert "tree" in error_of(result)


# --- crashes in the middle


@pytest.fixture
def writers(tiny, made, plan_file, trace_file, profile_file, tmp_path):
    """Every command that writes a file: name -> words."""
    output = tmp_path / "output"
    output.write_text("old")
    ends = ("--output", output)
    return {
        "search": ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1", *ends),
        "export": ("export", plan_file, "--format", "medusa", "--heads", "9", "--nearest", "chain", *ends),
        "collect": ("trace", "collect", *inputs(tiny), *COLLECT, *ends),
        "profile": ("profile", *inputs(tiny), *MEASURE, *ends),
        "validate": ("validate", *inputs(tiny), *CHECK, "--plan", plan_file, *ends),
    }


WRITERS = ["search", "export", "collect", "profile", "validate"]
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize(
    ("failure", "word"),
    [(KeyboardInterrupt(), "interrupted"), (ExecutorError("out of luck"), "out of luck"), (FULL, "No space left")],
    ids=["interrupted", "refused", "disk full"],
)
def test_a_write_that_fails_keeps_the_old_file(writers, tmp_path, unchanged, monkeypatch, name, failure, word):
    unchanged()
    calls = []

    def fail(handle):
        calls.append(handle)
        raise failure

    monkeypatch.setattr(os, "fsync", fail)
    result = run(*writers[name])
    assert len(calls) == 1
    assert result.exit_code in (1, 2)
    assert word in error_of(result)
    if failure is FULL:
        assert str(tmp_path / "output") in error_of(result)


@pytest.mark.parametrize("name", ["collect", "profile"])
@pytest.mark.parametrize("failure", [KeyboardInterrupt(), ExecutorError("out of luck")], ids=["interrupted", "refused"])
def test_a_model_that_fails_in_the_middle_leaves_nothing(writers, unchanged, monkeypatch, name, failure):
    unchanged()
    result = failed_in_the_middle(writers[name], monkeypatch, failure)
    assert ("interrupted" if isinstance(failure, KeyboardInterrupt) else "out of luck") in error_of(result)


def test_a_validation_that_fails_in_the_middle_leaves_its_predictions(writers, tmp_path, monkeypatch):
    """They were fixed before; the old output stays."""
    result = failed_in_the_middle(writers["validate"], monkeypatch, ExecutorError("out of luck"))
    assert result.stderr.splitlines()[-1] == "Error: out of luck"
    assert (tmp_path / "output").read_text() == "old"
    assert load_predictions(tmp_path / "output.predictions.json").plan.entries


def failed_in_the_middle(words, monkeypatch, failure):
    """A command during whose fourth forward something fails."""
    calls, verify = [], Target.verify

    def fail(*args, **kwargs):
        calls.append(1)
        if len(calls) > 3:
            raise failure
        return verify(*args, **kwargs)

    monkeypatch.setattr(Target, "verify", fail)
    result = run(*words)
    assert len(calls) == 4
    assert result.exit_code == 1
    assert result.stdout == ""
    return result


def test_prompts_and_settings_are_checked_before_the_model_decodes(tiny, tmp_path, monkeypatch):
    def decode(*args, **kwargs):
        raise AssertionError("decoded")

    monkeypatch.setattr(Decoder, "steps", decode)
    (tmp_path / "short.jsonl").write_text('{"text": "abc"}\n{"text": "a"}\n')
    refused(collect(tiny, tmp_path / "o", prompts=tmp_path / "short.jsonl"), "token", code=2)
    refused(collect(tiny, tmp_path / "o", "--depth", "9"), "depth")
    refused(measure(tiny, tmp_path / "o", "--batch", "1,99"), "99", code=2)


# --- help, version, an interpreter of one's own

TREEOPT = str(Path(sys.executable).with_name("treeopt"))


def commands():
    """Every command with its words."""
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        if isinstance(command, click.Group):
            yield from (((name, inner), command.commands[inner]) for inner in command.commands)
        else:
            yield (name,), command


def test_help_lists_every_command():
    for word in ("--help", "-h"):
        shown = done(word).stdout
        for name in COMMANDS:
            assert re.search(rf"^  {name} +\S", shown, re.MULTILINE), name
    for name in COMMANDS:
        assert done(name, "--help").stdout.startswith("Usage:")


@pytest.mark.parametrize(
    ("words", "command"), list(commands()), ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_help_says_what_every_option_does(words, command):
    shown = done(*words, "--help").stdout
    assert command.help.splitlines()[0][:40] in shown
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert max(parameter.opts, key=len) in shown
            assert parameter.help, parameter.name


def test_an_unknown_command_is_usage():
    refused(run("serach"), "serach", code=2)


def ran(*words, cwd):
    done = subprocess.run(
        words, capture_output=True, text=True, cwd=cwd, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_the_version_is_the_packages(tmp_path):
    shown = ran(TREEOPT, "--version", cwd=tmp_path)
    assert re.fullmatch(r"treeopt, version \d+\.\d+\.\d+\S*\n", shown.stdout)
    assert (shown.returncode, shown.stderr) == (0, "")


def test_searching_from_a_shell(trace_file, profile_file, tmp_path):
    words = ("search", "--trace", "trace.npz", "--batch", "1", "--json", "--output", "plan.json")
    shown = ran(TREEOPT, *words, cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "profile: profile.json\n")
    assert read_json(shown.stdout)["meta"]["provenance"]["command"] == f"treeopt {' '.join(words)}"
    assert to_json(load_plan(tmp_path / "plan.json")) + "\n" == shown.stdout


def test_failing_from_a_shell(tmp_path):
    shown = ran(TREEOPT, "search", "--trace", "none.npz", "--batch", "1", cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "none.npz: no such file" in one_line(shown.stderr)


def test_without_torch_the_way_to_install_it_is_shown(trace_file, profile_file, plan_file, tmp_path):
    """And what needs no torch still runs."""
    code = """
import sys
sys.modules["torch"] = None
from treeopt.cli import main
models = ["--target", ".", "--drafter", ".", "--prompts", "prompts.jsonl"]
commands = [
    ["trace", "collect", *models, "--output", "o"],
    ["profile", *models, "--output", "o"],
    ["validate", *models, "--plan", "plan.json"],
    ["trace", "info", "trace.npz", "--json"],
    ["search", "--trace", "trace.npz", "--batch", "1", "--json"],
    ["export", "plan.json", "--format", "medusa", "--heads", "9", "--nearest", "chain"],
]
codes = []
for words in commands:
    try:
        main(words)
    except SystemExit as end:
        codes.append(end.code)
sys.exit(" ".join(map(str, codes)))
"""
    shown = ran(sys.executable, "-c", code, cwd=tmp_path)
    lines = shown.stderr.splitlines()
    assert lines[:3] == ["Error: this command needs torch: pip install 'treeopt[executor]'"] * 3
    assert lines[-1] == "1 1 1 0 0 0"


def test_a_command_leaves_its_group_of_processes(trace_file, profile_file):
    """PyTorch may abort a process that ends within one."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        done("search", "--trace", trace_file, "--profile", profile_file, "--batch", 1)
        assert not torch.distributed.is_initialized()
    finally:
        leave()


# --- where results go


def test_what_is_no_file_is_written_to_and_stays(trace_file, profile_file, tmp_path):
    """A pipe takes the plan; a link leads to its file; neither is replaced."""
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1", "--output")
    os.mkfifo(tmp_path / "pipe")
    read: list[str] = []
    reader = Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    done(*words, tmp_path / "pipe")
    reader.join(30)
    assert json.loads(read[0])["schema"].startswith("treeopt.plan/")
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "there").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "there" / "plan.json")
    for _ in range(2):  # nothing is there yet; then it is
        done(*words, tmp_path / "link.json")
        assert (tmp_path / "link.json").is_symlink()
        read_json((tmp_path / "there" / "plan.json").read_text())
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_what_is_read_is_not_written_over(trace_file, profile_file, tmp_path, unchanged):
    (tmp_path / "again.npz").hardlink_to(trace_file)
    unchanged()
    words = ("search", "--trace", trace_file, "--profile", profile_file, "--batch", "1", "--output")
    for path, name in ((trace_file, "trace"), (tmp_path / "again.npz", "trace"), (profile_file, "profile")):
        refused(run(*words, path), f"--output {path}: is read as {name}", code=2)
    refused(run("trace", "merge", trace_file, "--output", trace_file), "is read as", code=2)


def test_a_plan_is_not_written_over_by_its_export(plan_file, unchanged):
    unchanged()
    words = ("export", plan_file, "--format", "medusa", "--output", plan_file)
    refused(run(*words), "is read as plan", code=2)


def test_predictions_and_a_replayed_trace_are_not_written_over(tiny, trace_file, profile_file, tmp_path, unchanged):
    (tmp_path / "predictions.json").write_text("{}")
    unchanged()
    models = ("--target", tiny / "target", "--drafter", tiny / "drafter", "--prompts", tiny / "prompts.jsonl")
    words = ("validate", *models, "--predictions", tmp_path / "predictions.json", "--output")
    refused(run(*words, tmp_path / "predictions.json"), "is read as predictions", code=2)
    words = ("validate", *models, "--trace", trace_file, "--profile", profile_file, "--output", trace_file)
    refused(run(*words), "is read as trace", code=2)
    again = tmp_path / "again.npz"
    shutil.copy(trace_file, again)
    replayed = (*words[:-4], "--profile", profile_file, "--acceptance", f"replay:{again}", "--output", again)
    refused(run(*replayed), "is read as acceptance", code=2)
    again.unlink()


def test_what_lies_in_a_folder_that_is_read_is_not_written_over(trace_file, tmp_path):
    """Nor is a file that is reached by way of a folder that is not there."""
    (tmp_path / "model").mkdir()
    config = tmp_path / "model" / "config.json"
    config.write_text("{}")
    words = ("whatif", "--trace", trace_file, "--hardware", "h100", "--target", tmp_path / "model", "--output")
    refused(run(*words, config), "is read as target", code=2)
    refused(run(*words, tmp_path / "none" / ".." / trace_file.name), "is read as trace", code=2)
    assert config.read_text() == "{}"


def test_a_split_may_be_written_again(trace_file, tmp_path):
    words = ("trace", "split", trace_file, "--output", tmp_path / "a.npz", "--rest", tmp_path / "b.npz")
    for _ in range(2):
        done(*words)
    refused(run(*words[:-1], trace_file), f"--rest {trace_file}: is read as trace", code=2)


# --- files whose fields are of the wrong kind


CONFIGURATIONS = (
    ("config.json", {"hidden_size": "x"}, "transformers cannot take its config.json"),
    ("config.json", {"rope_parameters": 5}, "transformers cannot take its config.json"),
    ("generation_config.json", {"eos_token_id": "x"}, "eos_token_id of generation_config.json must be ids"),
    ("generation_config.json", [], "transformers cannot load this model"),
    ("tokenizer.json", [], "transformers cannot load a tokenizer"),
    ("tokenizer_config.json", [], "transformers cannot load a tokenizer"),
)


@pytest.mark.parametrize(("file", "content", "why"), CONFIGURATIONS)
def test_a_models_files_of_the_wrong_kind_are_refused(tiny, tmp_path, file, content, why):
    shutil.copytree(tiny / "target", tmp_path / "target")
    path = tmp_path / "target" / file
    if isinstance(content, dict):
        content = (json.loads(path.read_text()) if path.exists() else {}) | content
    path.write_text(json.dumps(content))
    refused(run("decode", "--target", tmp_path / "target", "--prompt", "abc"), why)
    if file == "config.json":
        words = ("--drafter", "medusa:2", "--random-weights", "--prompt-tokens", "4", "--output", tmp_path / "p.json")
        refused(run("profile", "--target", tmp_path / "target", *words), why)


def test_a_deep_configuration_is_refused(trace_file, tmp_path):
    (tmp_path / "config.json").write_text('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")
    words = ("whatif", "--trace", trace_file, "--hardware", "h100", "--kind", "medusa")
    assert "config.json" in error_of(run(*words, "--target", tmp_path))


@pytest.mark.parametrize(
    "meta", [{"assumed": 5}, {"assumed": [["x"]]}, {"repeated_prompts": "x"}, {"temperature": "hot"}]
)
def test_what_a_trace_says_of_itself_may_be_anything(trace_file, profile_file, tmp_path, meta):
    trace = load_trace(trace_file)
    for name, part in zip("ab", trace.split(share=0.5, rng=np.random.default_rng(0)), strict=True):
        save_trace(replace(part, meta={**trace.meta, **meta}), tmp_path / f"{name}.npz")
    done("trace", "merge", tmp_path / "a.npz", tmp_path / "b.npz", "--output", tmp_path / "c.npz")
    done("search", "--trace", tmp_path / "c.npz", "--profile", profile_file, "--batch", "1")
