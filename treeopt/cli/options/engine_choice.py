"""Options that name an inference engine to run in place of treeopt's own loop."""

from pathlib import Path
from typing import Any

import click

from treeopt.api.runners import EngineChoice
from treeopt.cli.options import general
from treeopt.cli.options.value_types import SECONDS, Whole

ENGINES = ("vllm", "llama.cpp", "openvino", "sglang", "openai")  # as treeopt.engines.driver_settings has them


class Address(click.ParamType):  # type: ignore[type-arg]
    """A server's address with the draft length that it runs, such as `3=http://127.0.0.1:8000`."""

    name = "k=url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, str]:
        """Return the draft length and the address."""
        if isinstance(value, tuple):
            return value
        length, equals, url = str(value).partition("=")
        if not equals or not (length.isascii() and length.isdigit()) or len(length) > 3:
            self.fail(f"{value!r} must be like 3=http://127.0.0.1:8000, the draft length and the address", param, ctx)
        return int(length), url


engine = general.bundle(
    "engine",
    EngineChoice,
    click.option("--engine", type=click.Choice(ENGINES), help="Run this engine in place of treeopt's own loop."),
    click.option(
        "--url",
        "urls",
        type=Address(),
        multiple=True,
        help="With --engine openai: a server that runs, with the draft length that it was started with (0: no "
        "speculation), such as 3=http://127.0.0.1:8000; may be given several times. OPENAI_API_KEY is sent along.",
    ),
    click.option(
        "--engine-python",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Interpreter of the environment that holds the engine.",
    ),
    click.option(
        "--engine-args",
        default="",
        help="Further arguments of the engine's launch, such as '--tensor-parallel-size 2 --max-model-len 4096'; for "
        "openvino properties of the device, such as 'KV_CACHE_PRECISION=f32'.",
    ),
    click.option("--method", help="How the engine drafts, in its own word: eagle3, draft-eagle3, EAGLE3, ngram, ..."),
    click.option(
        "--engine-target", help="The target as the engine reads it, a folder or GGUF file; default as --target."
    ),
    click.option(
        "--engine-drafter", help="The drafter as the engine reads it, a folder or GGUF file; default as --drafter."
    ),
    click.option(
        "--servers",
        type=Whole(min=1),
        default=1,
        show_default=True,
        help="Servers of the engine, one per draft length, that may be alive at a time.",
    ),
    click.option(
        "--engine-timeout",
        type=SECONDS,
        default=600.0,
        show_default=True,
        help="Longest time in seconds that the engine may take to start, and then to send anything.",
    ),
)
