"""`treeopt train`: train a drafter for a target by a published recipe, with changes by name."""

import click

from treeopt.api import train_drafter
from treeopt.api.train_drafter import TrainSettings
from treeopt.cli.options import general, output_files, printing
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.settings_options import MODELS, options_of

SECTIONS = {
    "Models": "target drafter recipe",
    "Texts": "data length",
    "Training": "steps epochs batch learning_rate",
    "Output": "output resume as_json",
}
EXAMPLES = examples(
    "treeopt train --target data/models/stdlib-llama --recipe medusa1 --data data/prompts/stdlib.jsonl "
    "--length 32 --batch 2 --steps 2 --held-out 0.001 --output medusa",
    "treeopt train --target data/models/stdlib-llama --recipe eagle --data data/prompts/stdlib.jsonl "
    "--set depths=1 --length 32 --batch 2 --steps 2 --held-out 0.001 --output eagle",
)


@click.command(cls=Command, sections=SECTIONS, epilog=EXAMPLES)
@options_of(TrainSettings, types=MODELS, without=("random_weights", "assume_same_tokens", "tensor_parallel"))
@general.as_json
def train(settings: TrainSettings, as_json: bool) -> None:
    """Train a drafter for a target; --drafter names one to start from instead of an untrained one.

    Several processes, started by torchrun or accelerate, share the rows.
    """
    output = settings.output
    if train_drafter.is_first() and not output.is_file():
        output_files.check_output(output / "x" if output.is_dir() else output)
    record = train_drafter.train(settings=settings, progress=printing.progress)
    if not train_drafter.is_first():
        return
    if as_json:
        printing.print_json(record)
        return
    printing.show("training", record)
