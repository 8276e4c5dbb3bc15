"""Options that say how tokens are chosen: the verification rule, temperature, top-k and top-p."""

import click

from treeopt.api.token_sampling import RULES, Sampling
from treeopt.cli.options import general
from treeopt.cli.options.value_types import Real, Whole

sampling = general.bundle(
    "sampling",
    Sampling,
    click.option(
        "--rule",
        type=click.Choice(RULES),
        help="Verification rule; default greedy, or sample-and-match at a temperature above 0.",
    ),
    click.option(
        "--temperature",
        type=Real(min=0),
        default=0.0,
        show_default=True,
        help="Sampling temperature; 0: greedy.",
    ),
    click.option("--top-k", type=Whole(min=1), help="Sample from the K most likely tokens."),
    click.option(
        "--top-p",
        type=Real(0, 1, min_open=True),
        default=1.0,
        show_default=True,
        help="Sample from the smallest set of tokens whose probabilities sum to at least P.",
    ),
    general.seed,
)
