"""OpenVINO exports: what is refused, the job that the worker gets, and an interpreter that fails.

The export itself needs optimum-intel's environment: `tests/benchmarks/engine_acceptance.py` runs it.
"""

import json
import sys
from pathlib import Path

import pytest

from executor.checkpoints import save_drafter
from executor.checkpoints.convert import check_openvino
from executor.checkpoints.convert import main as convert
from executor.drafters.language_model.drafter import LanguageModel
from tests.helpers.drafters import random_drafter
from treeopt.errors import ExecutorError, UsageError


def interpreter(folder: Path, body: str) -> str:
    """A program in the place of the environment's Python."""
    file = folder / "python"
    file.write_text(f"#!{sys.executable}\nimport json, sys\n{body}\n")
    file.chmod(0o755)
    return str(file)


def test_the_worker_gets_the_layers_whose_outputs_are_read(tmp_path, target, capsys):
    """EAGLE-3 reads inputs 2, 3 and 4: the outputs of layers 1, 2 and 3, which OpenVINO numbers."""
    target.model.save_pretrained(tmp_path / "target")
    save_drafter(tmp_path / "own", random_drafter("eagle3", target), dtype="float32", meta={})
    copy = tmp_path / "job.json"
    python = interpreter(
        tmp_path,
        f"job = json.load(open(sys.argv[2])); config = json.load(open(job['source'] + '/config.json'))\n"
        f"open({str(copy)!r}, 'w').write(json.dumps(job | {{'worker': sys.argv[1], 'config': config}}))",
    )
    words = [str(tmp_path / name) for name in ("own", "target", "out")]
    assert convert([*words, "--layout", "openvino", "--dtype", "float32", "--engine-python", python]) == 0
    job = json.loads(copy.read_text())
    assert (job["layers"], job["dtype"]) == ([1, 2, 3], "fp32")
    assert Path(job["worker"]).name == "optimum_worker.py"
    assert (job["target"], job["output"]) == (str(tmp_path / "target"), str(tmp_path / "out"))
    assert job["config"]["treeopt_drafter"]["kind"] == "eagle3"
    assert "the file names the layers whose outputs it reads, [1, 2, 3]" in capsys.readouterr().err


def test_an_environment_that_fails_is_one_line(tmp_path, target, capsys):
    target.model.save_pretrained(tmp_path / "target")
    words = [str(tmp_path / "target"), str(tmp_path / "target"), str(tmp_path / "out")]
    words += ["--layout", "openvino", "--dtype", "float32", "--engine-python"]
    python = interpreter(tmp_path, "sys.exit('ModuleNotFoundError: No module named optimum')")
    for name, why in (
        (python, "optimum-intel could not export target: ModuleNotFoundError: No module named optimum"),
        (str(tmp_path / "nothing"), "No such file or directory"),
    ):
        assert convert([*words, name]) == 1
        assert why in capsys.readouterr().err
    assert convert(words[:-1]) == 2
    assert "openvino is exported by optimum-intel in its own environment: name its --engine-python" in (
        capsys.readouterr().err
    )


def test_what_openvino_cannot_run_is_refused(target):
    with pytest.raises(ExecutorError, match="openvino runs EAGLE-3, DFlash and language models, not MedusaHeads"):
        check_openvino(random_drafter("medusa", target), "python", "float32")
    with pytest.raises(ExecutorError, match=r"cannot express norm_before_residual, norm_output, norms before fc"):
        check_openvino(random_drafter("eagle3-variants", target), "python", "float32")
    with pytest.raises(ExecutorError, match=r"cannot express a Markov head or a confidence head, sample_from_anchor"):
        check_openvino(random_drafter("dspark", target), "python", "float32")
    with pytest.raises(
        ExecutorError, match=r"cannot express own embeddings or an own head .*, windows or causal layers"
    ):
        check_openvino(random_drafter("dflash-variants", target), "python", "float32")
    with pytest.raises(UsageError, match="openvino holds float32 or float16, got bfloat16: give --dtype"):
        check_openvino(LanguageModel(target), "python", "bfloat16")
