"""Decode prompts in OpenVINO GenAI step by step, one at a time, by its Python: `python openvino_steps.py JOB RESULT`.

JOB (JSON): target, draft (folders), settings (fields of GenerationConfig), prompts (token ids), new_tokens.
RESULT (JSON): version, requests: for each prompt `steps`, tokens emitted by each step, and `tokens`.
"""

import json
import sys
from pathlib import Path


def main() -> None:
    """Run the job."""
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    sys.modules["openvino_telemetry"] = None  # would fork a process that outlives this one
    import openvino
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 1
    properties = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "INFERENCE_NUM_THREADS": 1}
    draft = {"draft_model": genai.draft_model(job["draft"], "CPU", **properties)}
    pipeline = genai.ContinuousBatchingPipeline(job["target"], scheduler, "CPU", properties | draft)
    requests = []
    for number, prompt in enumerate(job["prompts"]):
        config = genai.GenerationConfig(
            max_new_tokens=job["new_tokens"], ignore_eos=True, do_sample=False, **job["settings"]
        )
        handle = pipeline.add_request(number, openvino.Tensor([prompt]), config)
        request = {"steps": [], "tokens": []}
        while pipeline.has_non_finished_requests():
            pipeline.step()
            tokens = []
            while handle.can_read():
                for output in handle.read().values():
                    tokens += output.generated_ids
            if tokens:
                request["steps"].append(len(tokens))
                request["tokens"] += tokens
        requests.append(request)
    result = {"version": genai.__version__, "requests": requests}
    Path(sys.argv[2]).write_text(json.dumps(result), "utf-8")


if __name__ == "__main__":
    main()
