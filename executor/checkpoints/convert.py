"""Convert a drafter to another layout: `python -m executor.checkpoints.convert SOURCE TARGET OUTPUT --layout L`.

The target is loaded, since checkpoints are checked against it, and some layouts hold copies of its tensors.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from executor.checkpoints import load_drafter, save_drafter
from executor.checkpoints.tensors.find_tensor_files import open_checkpoint
from executor.target.load_hf_model import DTYPES, dtype_name, load_target, prepare
from treeopt.errors import ExecutorError, TreeoptError


def rewrite(source: Path, target: Path, output: Path, *, layout: str | None = None, dtype: str = "auto") -> list[str]:
    """Read the drafter in `source` for the model in the folder `target`, and write it to `output`.

    Args:
        source: a folder or file in any layout.
        target: folder of a Hugging Face checkpoint.
        output: another folder.
        layout: see `save_drafter`.
        dtype: number type of the output; `auto` is the type of the target's checkpoint.

    Returns:
        What was written, and remarks on it; a line each.

    Raises:
        ExecutorError: target or drafter cannot be loaded, or `output` is read from.
        UsageError: not a layout of this drafter.
    """
    if output.resolve() in (source.resolve(), source.resolve().parent, target.resolve()):
        raise ExecutorError(f"{output}: this folder is read from; write to another one")
    model = load_target(target, dtype=dtype)
    drafter = load_drafter(source, model)
    stored = open_checkpoint(source)
    facts = {} if stored is None else stored.facts
    meta = {"target": model.name} | facts | {"converted_from": source.name}
    number = dtype_name(model.dtype)
    remark = save_drafter(output, drafter, dtype=number, meta=meta, layout=layout, target=model)
    stored_as = f"{number}, the type of the target's checkpoint (--dtype)" if dtype == "auto" else number
    return [f"{output}: {drafter.kind}, {layout or 'own layout'}, in {stored_as}", *filter(None, [remark])]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m executor.checkpoints.convert", description="Convert a drafter.")
    parser.add_argument("source", type=Path, help="folder or file of the drafter")
    parser.add_argument("target", type=Path, help="folder of its target")
    parser.add_argument("output", type=Path, help="folder to write")
    parser.add_argument("--layout", help="layout to write, such as medusa-v1 or eagle3-vllm; default: treeopt's own")
    parser.add_argument(
        "--dtype", default="auto", choices=["auto", *DTYPES], help="number type to write; default: the target's"
    )
    options = parser.parse_args(arguments)
    try:
        prepare("cpu")
        lines = rewrite(options.source, options.target, options.output, layout=options.layout, dtype=options.dtype)
    except (TreeoptError, OSError) as error:
        print(f"Error: {' '.join(str(error).split())}", file=sys.stderr)
        return getattr(error, "exit_code", 1)
    print("\n".join(lines), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
