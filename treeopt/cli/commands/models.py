"""`treeopt models`: the models that `--target` knows by name, and their sizes."""

from typing import Any

import click

from simulate.model_sizes.hf_config import known_models
from simulate.model_sizes.model_shape import Shape
from treeopt.cli.options import general, printing
from treeopt.cli.options.help_sections import Command, examples
from treeopt.errors import CostError, UsageError

EXAMPLES = examples("treeopt models", "treeopt models qwen3 --json")


@click.command(cls=Command, epilog=EXAMPLES)
@click.argument("words", nargs=-1, metavar="[WORD]...")
@general.as_json
@general.verbose
def models(words: tuple[str, ...], as_json: bool) -> None:
    """List the models that `--target` of whatif knows by name, with their sizes.

    WORDs choose those whose names hold them all. `active` are the weights that one token needs, without the embedding
    that is only looked up; K/V bytes of a token are bf16's, of all layers; the state is a sequence's in recurrent
    layers. A model without a price names the field that is not understood.
    """
    rows = [_row(name) for name in known_models() if all(word.lower() in name.lower() for word in words)]
    if not rows:
        raise UsageError(f"no model's name holds {' and '.join(words)}: `treeopt models` lists all")
    record = {"models": rows}
    if as_json:
        printing.print_json(record)
    else:
        printing.show("models", record)


def _row(name: str) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(("billions", "active_billions", "kv_bytes", "state_mb"))
    try:
        shape = Shape.from_config(known_models()[name])
    except CostError as error:
        return {"name": name, **row, "refused": str(error).partition(":")[0]}
    sizes = (shape.parameters / 1e9, shape.step_parameters / 1e9, shape.kv_bytes, shape.state_bytes / 1e6)
    return {"name": name, **dict(zip(row, sizes, strict=True)), "refused": ""}
