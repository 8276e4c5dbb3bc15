"""Where a command's trace comes from: a recorded file, or a figure of acceptance."""

import shlex
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from treeopt.cli.options import general
from treeopt.cli.options.value_types import Text, items
from treeopt.errors import CostError, UsageError
from treeopt.registry import load
from treeopt.storage.provenance import from_figure
from treeopt.traces.trace import Trace

FIGURE = (
    "Acceptance in place of a trace: 0.75 (each token given the one before), 0.48@3 (accepted over drafted tokens, 3 "
    "drafted), 0.73,0.52,0.35 (shares of all steps by position), or a published curve."
)
LENGTH = "Accepted length in place of a trace: 3.2@5 is 3.2 tokens per step, bonus counted, of 5 draft tokens; "
LENGTH += "1.8,2.4,2.9: of 1, 2 and 3, as model cards list them."


CURVES = "treeopt.traces.importers.acceptance_curves:"
FIGURE_TYPE = Text(
    "figure",
    lambda text: load(f"{CURVES}acceptance")(text),
    Trace,
    complete=lambda text: items(load(f"{CURVES}published_acceptance")(), text),
)
LENGTH_TYPE = Text("length@K", lambda text: load(f"{CURVES}acceptance")(accepted_length=text), Trace)


def options_of_source(source: Path | Trace, meta: Any, profile: Path | None = None) -> str:
    """Return the options that name a source of acceptance and its step times, for the commands that are printed.

    Args:
        source: the file, or the trace of a figure.
        meta: the provenance of the trace.
        profile: the step times that were given; None: the command has to find them, or PROFILE is left to the user.
    """
    from simulate.profiles.profile import profile_of_trace

    figure = from_figure(meta)
    named = figure or f"--trace {shlex.quote(str(source))}"
    if profile is not None:
        return f"{named} --profile {shlex.quote(str(profile))}"
    try:
        profile_of_trace(meta, None if isinstance(source, Trace) else source)
    except CostError:
        return f"{named} --profile PROFILE"
    return named


def trace_source(kind: click.Path, text: str, *, times: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the decorator that gives a command `--trace`, `--acceptance` and `--accepted-length`.

    The command gets the file, or the trace that a figure stands for, as `trace_file`; where `times` are named also
    `--profile`, as `profile_file`.
    """
    found = f"{times}; default the profile of the trace's models, beside the trace or shipped."
    profile = click.option("--profile", "profile_file", type=general.FILE, help=found)

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def call(
            *, trace_file: Path | None, acceptance: Trace | None, accepted_length: Trace | None, **rest: Any
        ) -> Any:
            sources = [source for source in (trace_file, acceptance, accepted_length) if source is not None]
            if len(sources) != 1:
                why = "not several" if sources else "which say what the drafter gets right"
                raise UsageError(f"give one of --trace FILE, --acceptance 0.75 and --accepted-length 3.2@5, {why}")
            return command(trace_file=sources[0], **rest)

        for option in (
            *([profile] if times else []),
            click.option("--accepted-length", type=LENGTH_TYPE, help=LENGTH),
            click.option("--acceptance", type=FIGURE_TYPE, help=FIGURE),
            click.option("--trace", "trace_file", type=kind, help=text),
        ):
            call = option(call)
        return call

    return decorate
