"""vLLM for the step worker: one engine in this process, stepped here, whose draft length changes between waves.

Read in vLLM 0.32 (vllm/v1/core/sched/scheduler.py and worker/gpu_model_runner.py): every step takes its draft length
from the scheduler's `dynamic_sd_lookup`, a list by the number of running requests, and drafters draft that many tokens.
Medusa and suffix decoding draft their full length alone. The scheduler's own output says what each step verified.

An order to load holds "arguments", words of `vllm serve`, and "length", the longest draft, or 0. The setting of an
order to decode is "length".
"""

import os
from collections.abc import Mapping
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # read when the engine is made

Message = dict[str, Any]


class Adapter:
    """The engine, once it is loaded."""

    def __init__(self) -> None:
        """Import the engine."""
        import vllm
        from vllm.platforms import current_platform

        self._vllm = vllm
        self._engine: Any = None
        self._requests = 0  # ids are never used again
        self.versions = {"version": vllm.__version__, "device": current_platform.device_type}

    def load(self, order: Message) -> Message:
        """Load the engine, of which a process holds one."""
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
        from vllm.utils.argparse_utils import FlexibleArgumentParser
        from vllm.v1.engine.llm_engine import LLMEngine

        parser = make_arg_parser(FlexibleArgumentParser())
        parser.error = _refuse
        arguments = parser.parse_args(order["arguments"])
        settings = AsyncEngineArgs.from_cli_args(arguments)
        if settings.distributed_executor_backend is None and settings.tensor_parallel_size == 1:
            settings.distributed_executor_backend = "uni"  # the default's idle workers take a core
        settings.disable_log_stats = True
        self._engine = LLMEngine.from_engine_args(settings)
        self._scheduler = self._engine.engine_core.engine_core.scheduler
        self._most = self._engine.vllm_config.scheduler_config.max_num_seqs
        if order["length"]:
            update = self._scheduler.update_from_output

            def seen(scheduled: Any, output: Any) -> Any:
                drafts = scheduled.scheduled_spec_decode_tokens
                self._drafted = {name: len(tokens) for name, tokens in drafts.items()}
                return update(scheduled, output)

            self._scheduler.update_from_output = seen
        return {"requests": self._most}

    def drop(self, pipeline: str) -> None:
        """Do nothing: an engine that failed ends with its process."""

    def begin(self, pipeline: str, settings: Mapping[str, Any]) -> None:
        """Decode with a draft length from here on."""
        self._numbers, self._drafted = dict[str, tuple[int, str]](), dict[str, int]()
        if self._scheduler.dynamic_sd_lookup is not None:
            self._scheduler.dynamic_sd_lookup = [settings["length"]] * (self._most + 1)

    def add(self, number: int, request: Message) -> None:
        """Begin a request."""
        sampling = self._vllm.SamplingParams(
            temperature=0,
            max_tokens=request["new_tokens"],
            ignore_eos=request["ignore_stop"],
            detokenize=False,
            output_kind=self._vllm.sampling_params.RequestOutputKind.DELTA,
        )
        self._requests += 1
        outer, prompt = str(self._requests), {"prompt_token_ids": request["tokens"]}
        self._numbers[outer] = number, self._engine.add_request(outer, prompt, sampling)

    def step(self) -> list[tuple[int, list[int], bool, int]]:
        """Make a step; return each request that got tokens or ended, with the tokens that were drafted for it."""
        outputs = self._engine.step()
        while not outputs and self._engine.has_unfinished_requests():
            outputs = self._engine.step()  # the first call of a pipeline of steps returns nothing
        rows = []
        for output in outputs:
            number, inner = self._numbers[output.request_id]
            tokens = list(output.outputs[0].token_ids)
            rows.append((number, tokens, output.finished, self._drafted.get(inner, 0)))
        return rows

    def cancel(self) -> None:
        """End the requests that are under way."""
        self._engine.abort_request([*self._numbers])
        while self._engine.has_unfinished_requests():
            self._engine.step()


def _refuse(message: str) -> None:
    raise ValueError(message)
