"""`treeopt tune` against a full sweep: whether the chosen draft length is as fast as the best of all lengths.

Run as `python -m tests.benchmarks.tune_against_sweep CASE ...`; needs the engines below `.engines`. For each case it
runs `treeopt tune`; then it measures every length at every batch size in shuffled rounds, on other prompts; then the
chosen and the best length of the sweep again in alternation, on prompts that neither saw. A cell fails if the paired
95 % interval of the chosen over the best lies wholly below 0.97.
"""

import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import click
import numpy as np

from executor.profiling.tuned_settings import TunedRuns
from tests.benchmarks.engine_times import CASES, PROMPTS, SMOLLM2, Case, converted
from tests.helpers.engine_setups import ENGINES, ENVIRONMENT, ROOT, SETUPS
from treeopt.api.run_models import Models, Prompts, load_tokens
from treeopt.api.runners import EngineSetup, open_runner
from treeopt.api.tune_engine import TuneSettings, tune
from treeopt.planning.tuner import Setting, Tuner
from treeopt.storage.provenance import this_run
from treeopt.storage.user_files import shipped, write_text
from treeopt.storage.work_file import WorkFile

BATCHES, LONGEST = (1, 2, 4, 8), 6
NEW_TOKENS, OF_SMOLLM2 = 48, 24  # a token of which takes ten times as long
SHIPPED = shipped("models/stdlib-llama")
OWN: dict[str, Case] = {
    "eagle-vllm": Case("vllm", SHIPPED, "", shipped("models/stdlib-eagle"), "vllm", "eagle"),
    "lookup-vllm": Case("vllm", SHIPPED, "", "prompt-lookup:vllm:1-3", None, "ngram"),
    "lookup-llama.cpp": Case("llama.cpp", SHIPPED, "gguf", "prompt-lookup:llama.cpp:1-6", None, "ngram-simple"),
    "lookup-openvino": Case("openvino", SHIPPED, "openvino", "prompt-lookup:vllm:1-3", None, "prompt-lookup"),
}
EVERY = {**{name: case for name, case in CASES.items() if not case.trees}, **OWN}


class Given(Tuner):
    """A tuner that asks for given settings, in random order within each round."""

    def __init__(self, wanted: dict[int, Sequence[int]], *, rounds: int, first: int, seed: int) -> None:
        super().__init__(tuple(wanted), tuple({0, 1, *(d for some in wanted.values() for d in some)}), seed=seed)
        rng = np.random.default_rng(seed)
        for number in range(first, first + rounds):
            every = [Setting(batch, draft, number) for batch, some in wanted.items() for draft in some]
            for batch in rng.permutation(list(wanted)).tolist():
                of_batch = [setting for setting in every if setting.batch == batch]
                self._waiting += [of_batch[place] for place in rng.permutation(len(of_batch)).tolist()]

    def _begin(self) -> None:
        return


def settings_of_case(name: str, models: Path, *, budget_s: float, prompts: int) -> TuneSettings:
    """Return the settings of `treeopt tune` for a case."""
    case = EVERY[name]
    setup = SETUPS[case.engine]
    drafter = None if case.drafter_layout is None else converted(Path(case.drafter), case.drafter_layout, models, case)
    engine = EngineSetup(
        engine=case.engine,
        engine_python=ENGINES / setup.python,
        engine_args=setup.arguments,
        method=case.method,
        engine_target=str(converted(case.target, case.layout, models, case)),
        engine_drafter=None if drafter is None else str(drafter),
    )
    lookup = Path(str(case.drafter)) if case.drafter_layout is None else None
    source = Prompts(prompts=ROOT / PROMPTS, skip=300, requests=prompts, chat=case.target == SMOLLM2)
    return TuneSettings(
        models=Models(target=case.target, drafter=lookup),
        source=source,
        engine=engine,
        batch=BATCHES,
        max_depth=LONGEST,
        new_tokens=OF_SMOLLM2 if case.target == SMOLLM2 else NEW_TOKENS,
        budget_s=budget_s,
    )


def measured(settings: TuneSettings, tuners: Sequence[Tuner]) -> float:
    """Measure what several tuners ask for, in one start of the engine; return the seconds of the launches."""
    servers = LONGEST + 1 if settings.engine.engine == "llama.cpp" else None  # all stay, or shuffling would launch
    runner = open_runner(settings.models, settings.engine.changed(servers=servers))
    tokens, _ = load_tokens(settings.models, None, settings.source)
    runner.concurrency = max(BATCHES)
    runner.driver.longest = LONGEST
    with runner:
        began_s = time.monotonic()
        for draft in (0, LONGEST):
            TunedRuns(
                runner, Given({1: [draft]}, rounds=1, first=0, seed=0), tokens, 8, math.inf, WorkFile(None, {})
            ).measure(lambda settings: None)
        launched_s = time.monotonic() - began_s
        for tuner in tuners:
            TunedRuns(runner, tuner, tokens, settings.new_tokens, math.inf, WorkFile(None, {})).measure(
                lambda settings: None
            )
    return launched_s


def server_launch(settings: TuneSettings) -> float:
    """Return the seconds until a server of one length has answered; 0 where the engine has none."""
    if settings.engine.engine == "openvino":
        return 0.0
    runner = open_runner(settings.models, settings.engine.changed(servers=1))
    tokens, _ = load_tokens(settings.models, None, settings.source)
    runner.concurrency = max(BATCHES)
    began_s = time.monotonic()
    with runner:
        TunedRuns(
            runner, Given({1: [LONGEST]}, rounds=1, first=0, seed=0), tokens, 8, math.inf, WorkFile(None, {})
        ).measure(lambda settings: None)
        return time.monotonic() - began_s


def case_record(name: str, models: Path, *, rounds: int, again: int, budget_s: float) -> dict[str, Any]:
    """Return the figures of a case."""
    load_before, began_s = os.getloadavg(), time.monotonic()
    settings = settings_of_case(name, models, budget_s=budget_s, prompts=1000)
    tuned = tune(settings=settings)
    tune_s = time.monotonic() - began_s
    chosen = {cell["batch"]: cell["drafted"] for cell in tuned.record["cells"] if cell["state"] == "chosen"}
    sweep = Given(dict.fromkeys(BATCHES, range(LONGEST + 1)), rounds=rounds, first=14, seed=1)
    began_s = time.monotonic()
    launched_s = measured(settings, [sweep])
    sweep_s = time.monotonic() - began_s - launched_s
    rates = {batch: {d: sweep._over(batch, d, 0) for d in range(LONGEST + 1)} for batch in BATCHES}
    best = {batch: max(some, key=lambda d: some[d].value) for batch, some in rates.items()}
    differ = {batch: (chosen[batch], best[batch]) for batch in BATCHES if chosen[batch] != best[batch]}
    pairs = {batch: sorted({0, *pair}) for batch, pair in differ.items()}
    check = Given(pairs, rounds=again, first=22, seed=2) if differ else None
    if check is not None:
        measured(settings, [check])
    cells = []
    for batch in BATCHES:
        ratio = {"value": 1.0, "low": 1.0, "high": 1.0}
        if check is not None and batch in differ:
            check.drafts = sorted(differ[batch])  # one comparison
            ratio = asdict(check._over(batch, *differ[batch]))
        of_batch = [cell for cell in tuned.record["cells"] if cell["batch"] == batch]
        cells.append(
            {
                "batch": batch,
                "chosen": chosen[batch],
                "near": [cell["drafted"] for cell in of_batch if cell["state"] == "near"],
                "undecided": [cell["drafted"] for cell in of_batch if cell["state"] == "undecided"],
                "best": best[batch],
                "chosen_over_best": ratio,
                "fails": ratio["high"] < 0.97,
                "blind": blind(rates[batch]),
                "speedups_tuned": {cell["drafted"]: cell["speedup"] for cell in of_batch},
                "speedups_swept": {draft: asdict(estimate) for draft, estimate in rates[batch].items()},
            }
        )
    launch_s, server_s = launched_s / 2, server_launch(settings)
    return {
        "case": name,
        "tune_s": round(tune_s, 1),
        "launches": tuned.record["meta"]["launches"],
        "settings": tuned.record["meta"]["settings"],
        "launch_s": round(launch_s, 1),
        "sweep_measuring_s": round(sweep_s, 1),
        "sweep_of_launches_s": round(launch_s * (LONGEST + 1) + sweep_s, 1),
        "server_launch_s": round(server_s, 1),
        "sweep_of_servers_s": round(server_s * (LONGEST + 1) + sweep_s, 1),
        "rounds": rounds,
        "rounds_again": again,
        "load": [load_before, os.getloadavg()],
        "cells": cells,
        "provenance": this_run(),
    }


def blind(rates: dict[int, Any]) -> float:
    """Return the share that a search of three launches loses on average: plain decoding and two random lengths."""
    best = max(rate.value for rate in rates.values())
    tried = list(combinations([draft for draft in rates if draft], 2))
    return 1 - sum(max(1.0, *(rates[draft].value for draft in pair)) for pair in tried) / len(tried) / best


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(EVERY)), required=True)
@click.option("--rounds", default=5, show_default=True, help="Rounds of the sweep.")
@click.option("--again", default=8, show_default=True, help="Rounds of the chosen length against the sweep's best.")
@click.option("--budget", default=300.0, show_default=True, help="Seconds of `treeopt tune`.")
@click.option("--models", type=click.Path(path_type=Path), default=ENGINES / "models", help="Converted models.")
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / "data" / "engines" / "tune.json")
def main(names: Sequence[str], rounds: int, again: int, budget: float, models: Path, output: Path) -> None:
    """Compare `treeopt tune` with a sweep in the engines of NAMES; results are added to the output."""
    os.environ |= ENVIRONMENT
    for name in names:
        record = case_record(name, models.absolute(), rounds=rounds, again=again, budget_s=budget)
        known = json.loads(output.read_text("utf-8")) if output.exists() else []
        known = [other for other in known if other["case"] != name] + [record]
        write_text(output, json.dumps(known, indent=1) + "\n")
        click.echo(json.dumps({key: value for key, value in record.items() if key not in ("provenance",)}))


if __name__ == "__main__":
    main()
