"""Progress counts work on a terminal, notes go to stderr, and --quiet hides both; --verbose prints details."""

import sys
from contextlib import contextmanager
from io import BytesIO
from time import sleep

import click
import pytest

from tests.helpers.command_line import done
from tests.helpers.printed_results import Terminal
from treeopt.api.messages import LOG
from treeopt.api.search_trace import search
from treeopt.cli import main, messages_on_stderr
from treeopt.cli.options import printing
from treeopt.cli.options.printing import hold_warnings, warn
from treeopt.errors import UsageError


@pytest.fixture
def worked(monkeypatch):
    """Returns what a terminal on stderr gets while four pieces of work are done; it is set in the test's own phase."""

    def seen(*, patience_s=0.0):
        screen = Terminal(BytesIO(), encoding="utf-8")
        monkeypatch.setattr(sys, "stderr", screen)
        monkeypatch.setattr(printing, "PATIENCE_S", patience_s)
        monkeypatch.setenv("TERM", "xterm")
        work()
        screen.flush()
        return screen.buffer.getvalue().decode()

    return seen


def work(total=4):
    with printing.progress("measuring", total) as advance:
        for pieces in (1, 1, 1):
            sleep(0.15)
            advance(pieces)
        sleep(0.2)


def test_progress_counts_pieces_with_the_time_left(worked):
    shown = worked()
    assert "measuring" in shown
    assert "3/4" in shown
    assert "0:0" in shown.rpartition("3/4")[2]  # hours, minutes, seconds


def test_work_that_is_done_soon_shows_no_bar(worked):
    assert worked(patience_s=60.0) == ""


def test_quiet_hides_the_bar(worked):
    with click.Context(main) as context:
        context.meta["treeopt.quiet"] = True
        assert worked() == ""


def test_a_file_gets_lines_of_long_work_and_none_with_quiet(capsys, monkeypatch):
    work()
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(printing, "LINES_S", 0.1)
    monkeypatch.setattr(printing, "RARELY_S", 0.1)
    work()
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[-1]) == ("", "measuring: 3 of 4")
    work(2)
    assert capsys.readouterr().err.splitlines()[-1] == "measuring: 3, 1 more than planned"
    with click.Context(main) as context:
        context.meta["treeopt.quiet"] = True
        work()
    assert capsys.readouterr() == ("", "")


def test_quiet_hides_notes_and_keeps_warnings(trace_file, profile_file, tmp_path):
    words = ("search", "--trace", trace_file, "--batch", "1", "--output", tmp_path / "plan.json")
    loud = done(*words)
    assert loud.stderr == f"profile: profile.json\nplan written to {tmp_path / 'plan.json'}\n"
    for flag in ("--quiet", "-q"):
        quiet = done(*words, flag)
        assert (quiet.stderr, quiet.stdout) == ("", loud.stdout)
    assert "Warning: " in quiet.stdout


def test_a_search_counts_two_pieces_for_each_batch_size(trace_file, profile_file):
    counted = []

    @contextmanager
    def progress(label, total):
        counted.append((label, total))
        yield counted.append

    search(trace_file, profile_file, batch=(1, 4), progress=progress)
    assert counted == [("searching", 4), 1, 1, 1, 1]


def test_held_warnings_come_once_and_before_an_error(capsys):
    @click.command()
    def fails():
        hold_warnings()
        LOG.warning("one")
        LOG.warning("one")
        warn(["two."])
        assert capsys.readouterr().err == ""
        raise UsageError("it fails")

    with messages_on_stderr(), pytest.raises(UsageError):
        fails.main([], standalone_mode=False)
    assert capsys.readouterr().err == "Warning: one.\nWarning: two.\n"
