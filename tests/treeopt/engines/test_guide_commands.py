"""The first commands of the engines' guides, run as they are printed but for the number of requests: `make engines`."""

import os
import shlex
import subprocess
import sys

import pytest

from tests.helpers.engine_setups import ENGINES, ENVIRONMENT, ROOT

pytestmark = pytest.mark.engines
COMMANDS = ("python -m executor.checkpoints.convert", "treeopt trace collect", "treeopt profile", "treeopt tune")
FEW = {"treeopt trace collect": ["--requests", "8"], "treeopt profile": ["--rounds", "2", "--requests", "16"]}
NEEDS = {
    "engine_vllm": ("vllm",),
    "engine_sglang": ("sglang",),
    "engine_openvino": ("openvino", "openvino-export"),
    "tune": ("vllm",),
}


def first_commands(guide):
    """The first of each kind of command in a guide; conversions before it all."""
    text = (ROOT / "docs" / "guides" / f"{guide}.md").read_text("utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    found = {}
    for line in lines:
        kind = next((kind for kind in COMMANDS if line.startswith(f"{kind} ")), None)
        if kind is not None:
            found.setdefault(line if "convert" in line else kind, [kind, *shlex.split(line.removeprefix(kind))])
    return list(found.values())


@pytest.mark.parametrize("guide", NEEDS)
def test_they_run(guide, tmp_path):
    if missing := [name for name in NEEDS[guide] if not (ENGINES / name / ".ready").exists()]:
        pytest.skip(f"needs .engines/{missing[0]}")
    for name in ("data", ".engines"):
        (tmp_path / name).symlink_to(ROOT / name)
    text = (ROOT / "docs" / "guides" / f"{guide}.md").read_text("utf-8")
    if "```text" in text:
        (tmp_path / "vllm.toml").write_text(text.partition("```text\n")[2].partition("```")[0], "utf-8")
    threads = {name: value for name, value in ENVIRONMENT.items() if name != "VLLM_CPU_KVCACHE_SPACE"}
    environment = {**os.environ, **threads, "PYTHONPATH": str(ROOT)}
    for kind, *words in first_commands(guide):
        module = kind.removeprefix("python -m ").split()
        program = [sys.executable, "-m", *module]
        words += FEW.get(kind, []) + (["--budget", "5", "--requests", "32"] if kind == "treeopt tune" else [])
        run = subprocess.run(
            [*program, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, (kind, words, run.stderr[-2000:])
        assert "different" not in run.stderr
