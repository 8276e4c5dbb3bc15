"""Records that a file holds twice: dumps, ranges, scrapes, chunks and log lines count once, or are refused."""

import json

import pytest

from tests.treeopt.traces.importers.readers.test_engine_outputs import METRICS, PRINTED
from treeopt.errors import TraceError
from treeopt.traces.importers.readers.engine_outputs import read_output

ENGINE_1 = [metric | {"labels": metric["labels"] | {"engine": "1"}} for metric in METRICS]


def chain(text):
    return read_output(text, {}).chain


# --- dumps of LLM.get_metrics()


@pytest.mark.parametrize(
    "text",
    [
        PRINTED + "\n" + PRINTED.replace("2000", "3000"),
        "\n".join(json.dumps(METRICS).replace("2000", drafts) for drafts in ("2000", "3000")),
        json.dumps({"before": METRICS, "after": json.loads(json.dumps(METRICS).replace("2000", "3000"))}),
    ],
)
def test_two_dumps_of_get_metrics_are_not_added(text):
    with pytest.raises(TraceError, match="it repeats `vllm:spec_decode_num_drafts_total` with another value: keep one"):
        chain(text)


def test_the_same_dump_counts_once_and_engines_are_added():
    assert chain(f"{PRINTED}\n{PRINTED}").steps == 2000
    assert chain(json.dumps([*METRICS, *METRICS])).steps == 2000
    assert chain(json.dumps([*METRICS, *ENGINE_1])).steps == 4000
