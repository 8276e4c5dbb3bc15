"""Options that name the models and prompts of a run."""

from collections.abc import Callable
from typing import Any

import click

from treeopt.api.run_models import DTYPES, QUANTIZED, Models
from treeopt.api.run_prompts import LEFT_OUT, Prompts
from treeopt.cli.options import general
from treeopt.cli.options.completed_names import Model
from treeopt.cli.options.value_types import Tokens, Whole
from treeopt.defaults import NEW_TOKENS

MODEL = Model()

device = click.option(
    "--device",
    default="auto",
    show_default=True,
    help="Where to run: cpu, cuda, cuda:1, ...; auto: cuda where there is one, else cpu.",
)
_RANDOM = click.option(
    "--random-weights",
    is_flag=True,
    help="Draw the weights: --target is then a folder with a config.json, or a shape (toy, 100m, 1b, 8b, 14b, "
    "70b, which "
    "are always drawn); --drafter is medusa:K (K heads), layers:N (the target's first N layers) or eagle.",
)


def _models(*more: Callable[[Any], Any], drafter: bool) -> Callable[[Any], Any]:
    return general.bundle(
        "models",
        Models,
        click.option("--target", type=MODEL, required=True, help="Folder of the target, a Hugging Face model."),
        click.option(
            "--drafter",
            type=MODEL,
            required=drafter,
            help="Folder of the drafter, or prompt-lookup, or an engine's, such as prompt-lookup:vllm:2-4.",
        ),
        click.option(
            "--assume-same-tokens",
            is_flag=True,
            help="With a language model as the drafter: do not compare its tokens with the target's.",
        ),
        *more,
        device,
        click.option(
            "--dtype",
            type=click.Choice(DTYPES),
            default="auto",
            show_default=True,
            help="Number type of the computation and of the cache; saved: the type that the target was saved in; auto: "
            "float32 on a CPU, saved elsewhere (bfloat16 with --random-weights).",
        ),
        click.option(
            "--quantize",
            type=click.Choice(QUANTIZED),
            help="Quantise the target's linear layers to 8 or 4 bits.",
        ),
        click.option(
            "--tensor-parallel", is_flag=True, help="Share the target among the processes that torchrun started."
        ),
        click.option("--threads", type=Whole(min=1), help="CPU threads, at most 4 per core; default torch's choice."),
    )


models, models_without_drafter = _models(drafter=True), _models(drafter=False)
models_or_shapes = _models(_RANDOM, drafter=False)

_PROMPTS = (
    "Records with `text`, or with conversations (`messages`, `conversations`, `turns`), which are answered: JSON "
    "lines, a JSON list, parquet, arrow, or a folder of them."
)


class Parts(click.ParamType):  # type: ignore[type-arg]
    """Names of parts of records, between commas."""

    name = "parts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[str]:
        """Return the names."""
        if isinstance(value, frozenset):
            return value
        names = frozenset(name.strip() for name in str(value).split(",") if name.strip())
        if unknown := sorted(names - set(LEFT_OUT)):
            self.fail(f"{unknown[0]!r} is none of {', '.join(LEFT_OUT)}", param, ctx)
        return names


leave_out = click.option(
    "--leave-out",
    type=Parts(),
    default="",
    metavar="PARTS",
    help="Parts of records that are left out, between commas: tools, thoughts, system; or unreadable, which skips "
    "records that cannot be read or that the chat template refuses. Default: nothing.",
)
_choice = (
    click.option("--requests", type=Whole(min=1), help="Number of prompts to take; default all."),
    click.option(
        "--skip",
        type=Whole(min=0),
        default=0,
        show_default=True,
        help="Number of prompts to leave out first.",
    ),
    click.option("--chat", is_flag=True, help="Put texts through the target's chat template, as a user's turn."),
    leave_out,
)
prompts = general.bundle(
    "prompts",
    Prompts,
    click.option("--prompts", "prompts_file", type=general.FOLDER, required=True, help=_PROMPTS),
    *_choice,
)
prompts_or_random = general.bundle(
    "prompts",
    Prompts,
    click.option("--prompts", "prompts_file", type=general.FOLDER, help=_PROMPTS),
    click.option(
        "--prompt-tokens",
        type=Tokens(min=2),
        help="In place of --prompts: length of random prompts in tokens.",
    ),
    *_choice,
)
prompts_or_texts = general.bundle(
    "prompts",
    Prompts,
    click.option("--prompt", "texts", multiple=True, help="A text to continue; may be given several times."),
    click.option("--prompts", "prompts_file", type=general.FOLDER, help=_PROMPTS),
    *_choice,
)
new_tokens = click.option(
    "--new-tokens",
    type=Tokens(min=1),
    default=NEW_TOKENS,
    show_default=True,
    help="Tokens to write after each prompt.",
)
