"""README and docs: their commands run, their output is what is printed, their links and figures hold."""

import contextlib
import importlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from importlib.util import find_spec
from math import fsum
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner

from executor.verification.acceptance_rules import make_rule
from executor.verification.temperature_top_k_top_p import Warp
from tests.benchmarks.bench_coverage import best_table, bias_table, table
from tests.helpers import gpu_tables
from tests.helpers.console_blocks import (
    BLOCK,
    NEEDS,
    PAGES,
    ROOT,
    SLOW,
    Block,
    agrees,
    blocks,
    check,
    check_options,
    commands,
    output_of,
    workplace,
)
from tests.helpers.slow_params import slow_unless
from treeopt.acceptance_rule_entries import RULES
from treeopt.cli import main

TEXTS = {str(page.relative_to(ROOT)): page.read_text("utf-8") for page in PAGES}
README = TEXTS["README.md"]
CODE_SPAN = re.compile(r"`[^`\n]+`")


def prose(text: str) -> str:
    """Return a page without code, comments and link targets."""
    text = re.sub(r"<!--.*?-->", "", BLOCK.sub("", text), flags=re.DOTALL)
    return re.sub(r"\]\([^)]*\)", "]", CODE_SPAN.sub("", text))


def outside_tables(text: str) -> str:
    return "\n".join(line for line in prose(text).splitlines() if not line.startswith("|"))


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of every line of every table."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


# --- commands and code


def run_page(text: str, *, slow: bool) -> None:
    """Run a page's blocks in order, in one folder; without `slow` those that are quick, else all."""
    with workplace() as folder:
        for block in blocks(text):
            run = block.mark not in NEEDS and (slow or block.mark != SLOW)
            if block.title:
                (folder / block.title).write_text(block.text, "utf-8")
            if block.language == "console":
                for command in commands(block):
                    check(command, run=run)
            elif block.language == "python" and run:
                (folder / "example.py").write_text(block.text, "utf-8")
                with contextlib.redirect_stdout(None):
                    runpy.run_path("example.py")


def marks(text: str) -> set[str]:
    return {block.mark for block in blocks(text) if block.language in ("console", "python")}


LONG = {"docs/guides/report.md", "docs/guides/decode.md", "docs/guides/whatif.md"}


@pytest.mark.parametrize(
    "page", slow_unless(lambda page: page not in LONG, [page for page, text in TEXTS.items() if marks(text)])
)
def test_commands_and_examples_run(page):
    run_page(TEXTS[page], slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page, text in TEXTS.items() if SLOW in marks(text)])
def test_slow_commands_run(page):
    run_page(TEXTS[page], slow=True)


@pytest.mark.parametrize("page", TEXTS)
def test_every_command_exists_and_stands_in_a_sentence_or_a_block_that_is_run(page):
    """Blocks have a known language, no other block holds a command, and a block is marked or runs."""
    for block in blocks(TEXTS[page]):
        assert block.language in ("console", "python", "text"), block
        if block.language in ("console", "python"):
            assert block.mark in ("", SLOW, *NEEDS), block
        elif page != "docs/reference/cli.md":
            assert not re.search(r"^\$? ?(treeopt|make|pip|python|torchrun) ", block.text, re.MULTILINE), block
    assert TEXTS[page].count("```") == 2 * len(blocks(TEXTS[page]))
    for words in re.findall(r"`treeopt ([a-z][^`]*)`", TEXTS[page]):
        check_options(words.split())
    for target in re.findall(r"`make ([a-z-]+)`", TEXTS[page]):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE), target


def test_the_first_two_commands_are_demo_and_test():
    first = [command.words for command in commands(blocks(README)[0])]
    assert first == [("make", "demo"), ("make", "test")]


def test_make_demo_is_the_demonstration():
    shown = commands(blocks(README)[1])[0].words
    assert f"demo: $(VENV)/.core  ## the main job, on the shipped trace and profile\n\t$(BIN)/{' '.join(shown)}\n" in (
        ROOT / "Makefile"
    ).read_text("utf-8")


def test_the_demonstration_prints_what_the_readme_shows(monkeypatch):
    monkeypatch.chdir(ROOT)
    (command,) = commands(blocks(README)[1])
    assert output_of(command) == list(command.shown)


def test_the_decoded_text_is_what_the_guide_shows(monkeypatch):
    """And the counts; rates are the machine's."""
    monkeypatch.chdir(ROOT)
    (command,) = commands(blocks(TEXTS["docs/guides/decode.md"])[0])
    memory, *text, figures, of_means, audit, of_margin = command.shown  # the last lines are wrapped at 110 columns
    audit = f"{audit} {of_margin.strip()}"
    result = CliRunner().invoke(main, list(command.words[1:]))
    assert result.exit_code == 0
    assert result.stdout.splitlines() == text
    printed = result.stderr.splitlines()
    assert (printed[0], printed[2]) == (memory, audit)
    assert printed[1].split("tokens/s")[0].rsplit(",", 1)[0] == figures.split("tokens/s")[0].rsplit(",", 1)[0]
    assert printed[1].endswith(of_means.strip())


def test_shown_output_is_compared_figure_by_figure():
    shown = ("tau 1.68, 12.5 tokens/s", "...", "end")
    assert agrees(shown, ["tau 1.68, 99.9 tokens/s", "a", "b", "end"])
    assert not agrees(shown, ["tau 1.69, 12.5 tokens/s", "a", "end"])
    assert not agrees(("a", "c"), ["a", "b", "c"])


def test_commands_and_options_that_do_not_exist_are_noticed():
    for line in ("treeopt serach --batch 4", "treeopt search --bach 4", "make dmeo", "pip install -e '.[exec]'", "ls"):
        (command,) = commands(Block("", "console", "", line + "\n", 0))
        with pytest.raises(AssertionError):
            check(command, run=False)


# --- pages that are generated, and lists of the code


def test_the_reference_of_the_command_line_is_up_to_date():
    """If this fails, run `make reference`."""
    generator = runpy.run_path(str(ROOT / "docs/generate_cli_reference.py"))
    assert generator["reference"](main) == TEXTS["docs/reference/cli.md"]


def test_the_reference_has_every_option():
    page = TEXTS["docs/reference/cli.md"]
    for name in ("search", "trace collect", "trace import", "whatif", "doctor"):
        section = page.split(f"\n## treeopt {name}\n")[1].split("\n## ")[0]
        command = main
        for word in name.split():
            command = command.get_command(None, word)
        for parameter in command.params:
            assert not parameter.opts[0].startswith("--") or parameter.opts[0] in section


def test_the_api_names_what_exists():
    page = TEXTS["docs/reference/api.md"]
    for module, members in re.findall(
        r"^::: ([\w.]+)\n(?:    options:\n      members: \[([^\]]*)\])?", page, re.MULTILINE
    ):
        for name in filter(None, members.split(", ")):
            assert hasattr(importlib.import_module(module), name), (module, name)
    assert set(sys.modules["treeopt"].__all__) <= set(re.findall(r"\w+", page))


def test_the_table_of_rules_is_the_code_s():
    page = TEXTS["docs/concepts/acceptance_rules.md"]
    rows = re.findall(r"^\| `([a-z-]+)`.*? \| (\*\*no\*\*|yes)", page, flags=re.MULTILINE)
    generator = torch.Generator()
    made = {name: make_rule(name, warp=None if name == "greedy" else Warp(), generator=generator) for name in RULES}
    assert {name: word == "yes" for name, word in rows} == {name: rule.lossless for name, rule in made.items()}


def test_the_table_of_commands_has_every_command():
    named = [row[0] for row in rows_of(README) if row[0].startswith("`treeopt ")]
    assert sorted(named) == sorted(f"`treeopt {name}`" for name in main.list_commands(None))


def test_the_rooms_are_the_folders_in_their_order():
    """Kinds of drafters and engines, one folder each, are one line."""
    from tests.system.test_architecture import PACKAGES, is_kind, rooms

    listed = []
    for row in re.findall(r"^\| (`\w+/.*?`) \|", TEXTS["docs/development/architecture.md"], flags=re.MULTILINE):
        first, *others = re.findall(r"`([\w/.*]+)`", row)
        listed += [first, *(f"{first.rpartition('/')[0]}/{name}" for name in others)]
    due = [f"{name.rpartition('.')[0]}.*" if is_kind(name) else name for name in rooms() if name not in PACKAGES]
    assert [name.removesuffix(".py").replace("/", ".") for name in listed] == list(dict.fromkeys(due))
    for package in PACKAGES:
        folders = {str(path.parent.relative_to(ROOT)) for path in (ROOT / package).rglob("__init__.py")} - {package}
        named = {name for name in listed if name.startswith(f"{package}/") and not name.endswith((".py", "*"))}
        assert {name for name in folders if not is_kind(name.replace("/", "."))} == named


def test_the_tables_of_drafters_are_those_of_the_registry():
    generator = runpy.run_path(str(ROOT / "docs/generate_drafter_tables.py"))
    for page in generator["PAGES"]:
        assert generator["written"](page) == TEXTS[f"docs/{page}"]


def test_the_list_of_data_is_complete():
    """Every file of data stands in the table of data/README.md, by its name or by a pattern."""
    patterns = []
    for name in re.findall(r"`([\w./{},+-]+)`", "\n".join(row[0] for row in rows_of(TEXTS["data/README.md"]))):
        pattern = re.sub(r"\\{(.*?)\\}", lambda match: f"({match[1].replace(',', '|')})", re.escape(name))
        patterns.append(re.compile(pattern.replace("NAME", r"[\w.-]+") + r"(/.*)?"))
    files = [path.relative_to(ROOT / "data") for path in (ROOT / "data").rglob("*") if path.is_file()]
    assert [str(file) for file in files if not any(pattern.fullmatch(str(file)) for pattern in patterns)] == [
        "README.md"
    ]


# --- links


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", BLOCK.sub("", text), flags=re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title.strip().lower())) for title in titles}


@pytest.mark.parametrize("page", TEXTS)
def test_links_and_paths_in_code_spans_lead_somewhere(page):
    text = CODE_SPAN.sub("`code`", BLOCK.sub("", TEXTS[page]))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), f"{page}: {target}"
        if page.startswith("docs/"):
            assert (ROOT / "docs") in file.resolve().parents, f"{page}: {target} leaves the documentation"
        if anchor:
            assert anchor in anchors(file.read_text("utf-8")), f"{page}: {target}"
    for path in re.findall(r"`((?:data|docs|tests|treeopt|simulate|executor|notebooks)/[\w./-]+)`", TEXTS[page]):
        assert (ROOT / path).exists(), f"{page}: {path}"


def test_every_page_is_in_the_navigation():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    listed = re.findall(r"[\w/]+\.md", json.dumps(config["nav"]))
    assert sorted(f"docs/{page}" for page in listed) == sorted(page for page in TEXTS if page.startswith("docs/"))


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("zensical") or not find_spec("mkdocstrings"), reason="needs the extra docs")
def test_the_documentation_builds_without_warnings(tmp_path):
    config = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert "site_dir: build/docs\n" in config
    for name in ("docs", "treeopt", "simulate", "executor"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "mkdocs.yml").write_text(config, "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr
    assert "Decoder" in (tmp_path / "build/docs/reference/api.html").read_text("utf-8")


# --- lengths, words, figures


def test_the_readme_is_short():
    prose = re.sub(r"```.*?```|<[^>]+>|\]\([^)]*\)|^\|.*$", "", README, flags=re.DOTALL | re.MULTILINE)
    assert len(prose.split()) <= 800
    assert len(re.findall(r"\d+(?:[.,]\d+)*", outside_tables(README))) <= 60
    assert "**Two GPUs were measured**" in README


def test_the_changelog_has_one_screen_a_version():
    for version in re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)[1:]:
        assert len(version.splitlines()) <= 60


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


@pytest.mark.parametrize("page", ["README.md", "docs/results/predicted_vs_measured.md"])
def test_the_table_of_validations_is_the_files(page):
    rows = [row for row in rows_of(TEXTS[page]) if row[0].startswith("`data/validations/")]
    files = sorted(path for path in (ROOT / "data/validations").glob("*.json") if ".predictions" not in path.name)
    assert sorted(row[0].strip("`") for row in rows) == [str(path.relative_to(ROOT)) for path in files]
    for row in rows:
        record = json.loads((ROOT / row[0].strip("`")).read_text("utf-8"))
        held, cells = record["coverage"]["covered"]["cells"], len(record["cells"])
        errors, at_one = ([c["error"] for c in record["cells"] if c["batch"] in batch] for batch in (range(99), {1}))
        assert row[2:] == [
            str(cells),
            percent(record["mean_error"]),
            percent(record["max_error"]),
            f"{100 * fsum(errors) / cells:+.1f} %",
            f"{sum(error > 0 for error in at_one)} of {len(at_one)}",
            f"{held} of {cells}",
        ]


def interval(estimate: dict[str, float]) -> str:
    return "{value:.2f} [{low:.2f}, {high:.2f}]".format(**estimate)


@pytest.mark.parametrize("name", ["medusa-cpu", "random-100m-cpu"])
def test_the_table_of_cells_is_the_file(name):
    rows = rows_of(TEXTS["docs/results/predicted_vs_measured.md"])
    for cell in json.loads((ROOT / f"data/validations/{name}.json").read_text("utf-8"))["cells"]:
        predicted, measured, forms = cell["predicted"], cell["measured"], cell["closed_forms"]
        assert [
            str(cell["batch"]),
            cell["name"],
            str(len(cell["tree"]["paths"])),
            f"{predicted['tau']['value']:.2f} / {interval(measured['tau'])}",
            f"{1e3 * predicted['step_s']:.2f} / {1e3 * measured['step_s']:.2f}",
            interval(predicted["speedup"]),
            interval(measured["speedup"]),
            f"{100 * cell['error']:+.1f}%",
            f"{interval(cell['end_to_end_predicted'])} / {cell['end_to_end']:.2f}",
            f"{forms['leviathan']:.2f} / {forms['coral']:.2f}",
        ] in rows


def test_the_tables_of_drafters_are_the_file():
    rows = rows_of(TEXTS["docs/results/drafters.md"])
    record = json.loads((ROOT / "data/benchmarks/drafters-cpu.json").read_text("utf-8"))
    listed = {row[0]: row for row in rows if row[0] in record["drafters"]}
    assert list(listed) == list(record["drafters"])
    for name, drafter in record["drafters"].items():
        assert listed[name][2:5] == [interval(drafter[key]) for key in ("tau_chain", "tau_tree_25", "tau_tree_63")]
    claims = [(interval(claim), f"**{claim['verdict']}**") for claim in record["claims"]]
    assert [(row[2], row[3]) for row in rows if row[-1] in ("**held**", "**not held**")] == claims


def test_the_tables_of_coverage_are_the_file_and_keep_the_promise():
    """Intervals hold tau in 92 % of samples, or a warning says that they cannot be trusted."""
    record = json.loads((ROOT / "data/benchmarks/coverage.json").read_text("utf-8"))
    lines = TEXTS["docs/results/coverage.md"].splitlines()
    assert [line for line in (*table(record), *bias_table(record), *best_table(record)) if line not in lines] == []
    assert len(record["coverage"]) >= 6
    for sizes in record["coverage"].values():
        assert min(of["covered_or_warned"] for of in sizes.values()) >= 0.92


@pytest.mark.parametrize("table", gpu_tables.TABLES)
def test_the_tables_of_the_gpu_are_the_file(table):
    rows = rows_of(TEXTS["docs/results/gpu.md"])
    assert [row for row in gpu_tables.TABLES[table]() if row not in rows] == []


def test_examples_are_what_the_guides_say_they_are():
    """The counters are those of a chain of 5 on the shipped SmolLM2 trace."""
    from treeopt import Tree, load_trace, replay_tree

    counts = replay_tree(Tree.chain(5), load_trace(ROOT / "data/traces/smollm2-eagle-t0.npz"))
    accepted = counts.accepted_counts[::-1].cumsum()[::-1][1:]
    text = Path(ROOT / "docs/examples/vllm_metrics.txt").read_text("utf-8")
    assert [float(value) for value in re.findall(r'position="\d"} (.*)', text)] == accepted.tolist()
    assert float(re.search(r"num_drafts_total\{.*\} (.*)", text)[1]) == counts.steps.sum()
