"""What decodes in `collect`, `profile` and `validate`: treeopt's own loop with its models, or an inference engine."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.api.messages import note
from treeopt.api.run_models import Models, Sampling, engine_tokenizer, load_models, quiet_libraries
from treeopt.engines import ENGINES
from treeopt.errors import TreeoptError, UsageError
from treeopt.settings import Settings, setting
from treeopt.storage.hub_models import folder_name
from treeopt.tree import Tree

if TYPE_CHECKING:
    from executor.drafters.base.drafter import Drafter
    from executor.runners.runner import Runner, Shape
    from executor.target.target_model import Target
    from treeopt.engines.driver import Driver


@dataclass(frozen=True, kw_only=True)
class EngineSetup(Settings):
    """An engine in words, as options name it; without one, treeopt's own loop decodes."""

    engine: str | None = setting(None, choices=ENGINES.driven, help="Run this engine in place of treeopt's own loop.")
    urls: tuple[tuple[int, str], ...] = setting(
        (),
        option="--url",
        help="With --engine openai: a server that runs, with the draft length that it was started with (0: no "
        "speculation), such as 3=http://127.0.0.1:8000; may be given several times; servers of one "
        "length share the requests. OPENAI_API_KEY is sent along.",
    )
    engine_python: Path | None = setting(None, help="Interpreter of the environment that holds the engine.")
    engine_args: str = setting(
        "",
        help="Further arguments of the engine's launch, such as '--tensor-parallel-size 2 --max-model-len 4096'; for "
        "openvino properties of the device, such as 'KV_CACHE_PRECISION=f32'.",
    )
    method: str | None = setting(
        None,
        help="How the engine drafts, in its own word: eagle3, draft-eagle3, EAGLE3, ngram, ...; default what runs the "
        "drafter's kind, where its configuration states one.",
    )
    engine_target: str | None = setting(
        None, help="The target as the engine reads it, a folder or GGUF file; default as --target."
    )
    engine_drafter: str | None = setting(
        None, help="The drafter as the engine reads it, a folder or GGUF file; default as --drafter."
    )
    servers: int | None = setting(
        None,
        least=1,
        help="Servers of the engine, one per draft length, that may be alive at a time; default 1. vLLM on a CPU runs "
        "all lengths in one process unless this is given.",
    )
    engine_timeout: float = setting(
        600.0,
        least=0,
        most=1e9,
        help="Longest time in seconds that the engine may take to start, and then to send anything.",
    )

    def refuse(self, options: Mapping[str, Any]) -> None:
        """Refuse options that were given and only treeopt's own loop takes.

        Raises:
            UsageError: names them.
        """
        given = ", ".join(option for option, value in options.items() if value)
        if self.engine is not None and given:
            raise UsageError(f"--engine does not take {given}: omit {given}, or --engine")

    def driver(self, models: Models, *, concurrency: int) -> "Driver":
        """Return the driver for these models; nothing is started yet.

        Raises:
            UsageError: the engine cannot be named so, or its method does not run the drafter.
            EngineError: it is not there.
        """
        from simulate.drafter_kinds import kind_of_drafter, kind_of_name, known_kind
        from treeopt.engines.driver import DriverSettings

        assert self.engine is not None
        tokenizer = engine_tokenizer(models.target)
        count = None if tokenizer is None else lambda text: len(tokenizer.encode(text, add_special_tokens=False))
        drafter = None if models.drafter is None else str(models.drafter)
        lookup = drafter if drafter is not None and kind_of_name(drafter) is not None else None
        kind, engine, method = None, ENGINES[self.engine], self.method or ""
        method = next((name for name in engine.methods if name.lower() == method.lower()), method)
        with suppress(TreeoptError):  # a file that the engine alone reads
            kind = kind_of_drafter(self.engine_drafter or drafter or {})
        fitting = engine.fitting(kind)
        if kind and method not in fitting and (method in engine.methods or (fitting and known_kind(method))):
            way = f"give {' or '.join(fitting)}" if fitting else "leave it out, or give another drafter"
            raise UsageError(f"--method {method} does not run a drafter of kind {kind}: {way}")
        named = fitting[0] if fitting and lookup is None and not self.urls else None
        return engine.start(
            DriverSettings(
                self.engine,
                self.engine_target or str(models.target),
                self.engine_drafter or (drafter if lookup is None else None),
                method or named,
                {length: " ".join(url for n, url in self.urls if n == length) for length, _ in self.urls} or None,
                self.engine_python,
                self.engine_args,
                self.servers,
                self.engine_timeout,
                concurrency,
                count,
                lookup,
            )
        )


def open_runner(
    models: Models, engine: EngineSetup, *, sampling: Sampling | None = None, graphs: str = "off", asks: bool = False
) -> "Runner":
    """Return what decodes: the engine, which is started when the runner is entered, or the loop with its models loaded.

    `asks`: policies that ask the host will run, so that `graphs` of `auto` are not used.

    Raises:
        UsageError: settings that the engine does not take, or models without a drafter.
        ExecutorError: models that cannot be loaded, or do not fit each other.
    """
    quiet_libraries()
    sampling = sampling or Sampling()
    if engine.engine is not None:
        from executor.runners.engine_runner import EngineRunner

        engine.refuse(
            {
                "--graphs": graphs == "on",
                "--temperature": sampling.temperature,
                "--random-weights": models.random_weights,
            }
        )
        from treeopt.engines.driver import model_record

        # Names and hashes of the models, which an engine loads itself.
        record: dict[str, Any] = {"target": {"name": folder_name(models.target)}}
        record["engine_target"] = model_record(engine.engine_target or models.target)
        if (drafter := engine.engine_drafter or models.drafter) is not None:
            record["engine_drafter"] = model_record(drafter)
        return EngineRunner(lambda concurrency: engine.driver(models, concurrency=concurrency), models=record)
    if models.drafter is None:
        raise UsageError("give --drafter, which drafts; or --engine, which may load its own")
    from simulate.model_sizes.hf_config import shape_name

    if shape_name(models.target) is not None:  # such as `8b`, which has no weights of its own
        models = replace(models, random_weights=True)
    target, loaded = load_models(models)
    from executor.runners.loop_runner import LoopRunner

    used = graphs_used(graphs, target, loaded, None if asks else Tree.chain(min(2, loaded.max_depth)))
    return LoopRunner(target, loaded, rule=sampling.rule_for(target), graphs=used)


def graphs_used(choice: str, target: "Target", drafter: "Drafter | None", shape: "Shape | None") -> bool:
    """Return whether steps of a shape (None: some policies ask the host) are replayed from CUDA graphs.

    Where `auto` does not use them on CUDA, a note says why.
    """
    from executor.decoding.decoder import graphs_refusal

    if choice != "auto" or target.device.type != "cuda":
        return choice == "on"
    reason = "some policies ask the host" if shape is None else graphs_refusal(target, drafter, shape)
    note([] if reason is None else [f"CUDA graphs are not used: {reason}"])
    return reason is None
