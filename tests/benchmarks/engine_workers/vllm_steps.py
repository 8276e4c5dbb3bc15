"""Decode prompts in vLLM step by step; run by the Python of vLLM's environment: `python vllm_steps.py JOB RESULT`.

JOB (JSON): target, speculative (vLLM's speculative_config), prompts (token ids), new_tokens, concurrency, length.
RESULT (JSON): version, metrics, requests: for each prompt `steps`, tokens emitted by each step, and `tokens`.
"""

import json
import os
import sys
from pathlib import Path

# Read by vLLM when it is imported: one process, one core, nothing sent anywhere.
QUIET = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "1",
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


def main() -> None:
    """Run the job."""
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    os.environ |= QUIET
    import vllm

    llm = vllm.LLM(
        model=job["target"],
        enforce_eager=True,
        max_model_len=job["length"],
        max_num_seqs=job["concurrency"],
        dtype="float32",
        speculative_config=job["speculative"],
        disable_log_stats=False,
        seed=0,
    )
    settings = vllm.SamplingParams(temperature=0.0, max_tokens=job["new_tokens"], ignore_eos=True)
    for number, prompt in enumerate(job["prompts"]):
        llm.llm_engine.add_request(str(number), {"prompt_token_ids": prompt}, settings)
    requests = [{"steps": [], "tokens": []} for _ in job["prompts"]]
    while llm.llm_engine.has_unfinished_requests():
        for output in llm.llm_engine.step():
            request, tokens = requests[int(output.request_id)], list(output.outputs[0].token_ids)
            if len(tokens) > len(request["tokens"]):
                request["steps"].append(len(tokens) - len(request["tokens"]))
                request["tokens"] = tokens
    result = {"version": vllm.__version__, "metrics": counters(llm.get_metrics()), "requests": requests}
    Path(sys.argv[2]).write_text(json.dumps(result), "utf-8")


def counters(metrics) -> dict:
    """Return vLLM's counters of speculation: a number, or a list by position."""
    found = {}
    for metric in metrics:
        if metric.name.startswith("vllm:spec_decode"):
            found[metric.name] = getattr(metric, "values", None) or metric.value
    return found


if __name__ == "__main__":
    main()
