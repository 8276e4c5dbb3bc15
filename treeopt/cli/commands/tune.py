"""`treeopt tune`: the best draft length of an engine, by measuring."""

from contextlib import suppress
from pathlib import Path

import click

from treeopt.api import tune_engine
from treeopt.api.tune_engine import Tuned, TuneSettings
from treeopt.cli.options import general, output_files, printing
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.settings_options import MODELS, options_of, setup_options
from treeopt.errors import UsageError
from treeopt.plans import save_plan
from treeopt.results.tuning import ENTRY
from treeopt.storage.user_files import write_text
from treeopt.storage.work_file import beside

SECTIONS = {
    "Engine": "setup_file target drafter engine",
    "Prompts": "prompts",
    "Question": "batch max_tpot_s",
    "Effort": "launches budget_s dry_run",
    "Output": "output",
}
EXAMPLES = examples(
    "treeopt tune --setup vllm.toml --prompts data/prompts/stdlib.jsonl --requests 64 --batch 1-8 --dry-run",
    "treeopt tune --setup vllm.toml --prompts data/prompts/stdlib.jsonl --requests 64 --batch 1-8 --output tuned",
)
RESULT = "tuning.json"


@click.command(cls=Command, sections=SECTIONS, epilog=EXAMPLES)
@options_of(TuneSettings, types=MODELS, without=("texts",))
@setup_options()
@click.option(
    "--output", type=general.FOLDER, help="Write plan, profile, trace, configuration and page to this folder."
)
@click.option("--dry-run", is_flag=True, help="Print what would be launched and measured, and start nothing.")
@general.as_json
@general.force
def tune(settings: TuneSettings, output: Path | None, *, dry_run: bool, as_json: bool, force: bool) -> None:
    """Launch an engine, measure its draft lengths until the fastest is known, and write its configuration.

    Each round measures plain decoding, the fastest length so far, and every undecided length, in random order on the
    same prompts. A length is decided when it is not 3 % faster, with 95 % confidence, or leads by at most 1 % on
    average. Measuring ends when all are, at --budget, or after 12 rounds. Engines that run one length per launch begin
    with plain decoding and the longest draft; each further launch goes to the length that is predicted to be the
    fastest.

    Finished settings stay in OUTPUT/tuning.json.work until the result is written: after an interruption the same
    command resumes there.
    """
    if dry_run:
        for line in tune_engine.dry_run(settings):
            click.echo(line)
        return
    if output is None:
        raise UsageError("tune needs --output, the folder of its results; or --dry-run")
    if output.exists() and not output.is_dir():
        raise UsageError(f"--output {output}: is a file: name a folder")
    output_files.check_output(output / RESULT if output.is_dir() else output, force=force)
    output.mkdir(exist_ok=True)
    work = beside(output / RESULT)
    try:
        tuned = tune_engine.tune(settings=settings, work=work, progress=printing.progress)
        files = _write(tuned, output)
    finally:
        with suppress(OSError):  # it holds something
            output.rmdir()
    work.unlink(missing_ok=True)
    if as_json:
        printing.print_json(tuned.record)
    else:
        printing.show(ENTRY, tuned.record)
    printing.say(f"written to {output}: {', '.join(files)}")
    for export in tuned.exports.values():
        if "\n" not in export.launch:  # no program
            printing.say(f"launch: {export.launch}")


def _write(tuned: Tuned, output: Path) -> list[str]:
    """Write the result's files, and return their names."""
    from simulate.profiles.profile import save_profile
    from treeopt.api.report_files import report_page
    from treeopt.report.html_page import as_html
    from treeopt.traces.trace_files import save_trace

    save_trace(tuned.trace, output / "trace.npz")
    save_profile(tuned.profile, output / "profile.json")
    save_plan(tuned.plan, output / "plan.json")
    ENTRY.save(tuned.record, output / RESULT)
    names = ["trace.npz", "profile.json", "plan.json", RESULT]
    for batch, export in tuned.exports.items():
        stem = "engine" if batch is None else f"engine-batch-{batch}"
        write_text(output / f"{stem}{export.suffix}", export.text + "\n")
        write_text(output / f"{stem}.launch", export.script + "\n")
        names += [f"{stem}{export.suffix}", f"{stem}.launch"]
    page = report_page([output / name for name in names[:4]], title="treeopt tune", plots=True)
    write_text(output / "page.html", as_html(page, static=False))
    return [*names, "page.html"]
