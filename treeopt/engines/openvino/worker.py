"""OpenVINO GenAI for the step worker: needs the standard library, `openvino` and `openvino_genai`.

An order to load holds "model", "draft_model" (a folder or null), "device", and "properties", which both models are
compiled with. The answer's "eagle3" says whether the draft model is an EAGLE-3 head. The settings of an order to decode
are fields of `GenerationConfig`.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

Message = dict[str, Any]


class Adapter:
    """The engine's loaded pipelines, by name; with a draft model or prompt lookup, plain decoding needs its own."""

    def __init__(self) -> None:
        """Import the engine, without its telemetry, which would fork a process that outlives this one."""
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
        import openvino
        import openvino_genai

        self._openvino = openvino
        self._genai = openvino_genai
        self._loaded: dict[str, Any] = {}
        self._requests = 0  # ids are never used again
        self.versions = {"openvino_genai": openvino_genai.__version__, "openvino": openvino.__version__}

    def load(self, order: Message) -> Message:
        """Load a pipeline; one of the same name is dropped first."""
        self.drop(order["pipeline"])
        properties = dict(order["properties"])
        if order["draft_model"] is not None:  # without properties of its own, DFlash's runs in bf16 where that is fast
            properties["draft_model"] = self._genai.draft_model(
                order["draft_model"], order["device"], **order["properties"]
            )
        self._loaded[order["pipeline"]] = self._genai.ContinuousBatchingPipeline(
            order["model"], self._genai.SchedulerConfig(), order["device"], properties
        )
        if order["draft_model"] is None:
            return {"eagle3": False}
        drafter = self._openvino.Core().read_model(os.path.join(order["draft_model"], "openvino_model.xml"))
        return {"eagle3": bool(drafter.has_rt_info("eagle3_mode"))}

    def drop(self, pipeline: str) -> None:
        """Forget a pipeline."""
        self._loaded.pop(pipeline, None)

    def begin(self, pipeline: str, settings: Mapping[str, Any]) -> None:
        """Decode with a pipeline from here on."""
        self._pipeline, self._settings, self._handles = self._loaded[pipeline], settings, dict[int, Any]()

    def add(self, number: int, request: Message) -> None:
        """Begin a request."""
        shipped = self._pipeline.get_config()
        config = self._genai.GenerationConfig(
            max_new_tokens=request["new_tokens"],
            ignore_eos=request["ignore_stop"],
            do_sample=False,
            eos_token_id=shipped.eos_token_id,
            stop_token_ids=shipped.stop_token_ids,
            **self._settings,
        )
        config.validate()
        self._requests += 1
        tokens = self._openvino.Tensor([request["tokens"]])
        self._handles[number] = self._pipeline.add_request(self._requests, tokens, config)

    def step(self) -> list[tuple[int, list[int], bool]]:
        """Make a step; return each request that got tokens or ended."""
        self._pipeline.step()
        rows = []
        for number, handle in list(self._handles.items()):
            tokens: list[int] = []
            while handle.can_read():
                for output in handle.read().values():
                    tokens += output.generated_ids
            ended = handle.get_status() != self._genai.GenerationStatus.RUNNING
            if tokens or ended:
                rows.append((number, tokens, ended))
            if ended:
                del self._handles[number]
        return rows

    def cancel(self) -> None:
        """End the requests that are under way."""
        for handle in self._handles.values():
            handle.cancel()
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
