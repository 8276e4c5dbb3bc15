"""A small run of vLLM in one process: made with the real engine, and repeated against its recording.

    python -m tests.benchmarks.vllm_worker_runs

records it again; it needs `.engines/vllm`.
"""

import json
import os
import tempfile
from pathlib import Path

from tests.benchmarks.openvino_runs import RECORDINGS, Text, asked, texts
from tests.benchmarks.server_runs import EAGLE3, TARGET, models
from tests.helpers.engine_setups import ENGINES, ENVIRONMENT, SETUPS
from tests.helpers.worker_exchanges import recorder
from treeopt.engines.driver import DriverSettings
from treeopt.engines.vllm.in_process import InProcess
from treeopt.storage.provenance import this_run

NAME = "vllm-worker-eagle3"
DRAFTS = ((3, 2), (1, 1), (2, 3))  # draft length, requests in flight
NOTE = f"{TARGET} and {EAGLE3} in layout eagle3-vllm, fp32"


def driver(python: Path) -> InProcess:
    """Return the driver; the current folder is that of the models."""
    return InProcess(
        DriverSettings(
            "vllm", TARGET, drafter=f"{EAGLE3}-vllm", method="eagle3", python=python, arguments=SETUPS["vllm"].arguments
        )
    )


def recorded(python: Path) -> list[list[Text]]:
    """Decode with three lengths in one launch; the last run is cancelled after a step."""
    with driver(python) as engine:
        engine.longest = 3
        done = [texts(engine, asked(), draft, concurrency) for draft, concurrency in DRAFTS]
        steps = engine.decode(asked(64), draft=2, concurrency=3)
        next(steps)
        steps.close()
        return done


def main() -> None:
    """Record the run."""
    os.environ |= ENVIRONMENT
    os.chdir(models())
    path = RECORDINGS / f"{NAME}.jsonl"
    provenance = {**this_run(), "models": NOTE, "prompts": "data/prompts/stdlib.jsonl, the first 24 tokens of 3"}
    path.write_text(json.dumps({"provenance": provenance}) + "\n", "utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        recorded(recorder(Path(scratch), path, ENGINES / SETUPS["vllm"].python))


if __name__ == "__main__":
    main()
