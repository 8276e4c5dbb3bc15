"""The kernels compile for Hopper, without such a device, and their largest tiles fit its shared memory.

Compiled in a process of its own: here, kernels are made for Triton's interpreter.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from executor.decoding.batch_rows import MOST_COMMITTED
from executor.kernels.few_rows_linear import MOST_ROWS
from executor.kernels.tree_attention import tile_of

ROOT = Path(__file__).resolve().parent.parent.parent.parent

PROGRAM = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from executor.kernels import accepted_path, few_rows_linear, rotary_store, tree_attention

SHARED_MEMORY = 232448  # bytes of a block, at most


def compiled(kernel, arguments, constants, **options):
    '''Compile as the launcher would: pointers are aligned, and so are numbers that 16 divides.'''
    signature = {name: arguments.get(name, "constexpr") for name in kernel.arg_names}
    aligned = "inner", "columns", "key_stride", "value_stride", "inner_per_split"
    attributes = {
        (kernel.arg_names.index(name),): [["tt.divisibility", 16]]
        for name, kind in arguments.items()
        if kind.startswith("*") or name in aligned
    }
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, values, attributes)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    shared = made.metadata.shared
    assert shared <= SHARED_MEMORY, (kernel.__name__, constants, shared)
    text = made.asm["ptx"]
    assert text.index("griddepcontrol.launch_dependents") < text.index("griddepcontrol.wait"), kernel.__name__
    assert "st.global" not in text[: text.index("griddepcontrol.wait")], kernel.__name__
    print(kernel.__name__, shared, flush=True)


def attention(kind, width, rows, columns):
    names = "q", "keys", "values", "out"
    pointers = dict.fromkeys(names, kind) | {"lengths": "*i64", "ancestors": "*u8"}
    pointers |= {"partial": "*fp32", "weights": "*fp32"}
    numbers = "tokens", "count", "ancestor_stride", "key_stride", "value_stride"
    constants = {"HEADS": 8, "GROUP": 4, "WIDTH": width, "BLOCK_WIDTH": width, "BLOCK_ROWS": rows}
    constants |= {"BLOCK_COLUMNS": columns, "STAGES": tree_attention.STAGES, "WHOLE": False, "DEPENDENT": True}
    constants["PRECISION"] = "ieee" if kind == "*fp32" else "tf32"
    arguments = pointers | dict.fromkeys(numbers, "i32") | {"scale": "fp32"}
    compiled(tree_attention._split_kernel, arguments, constants, num_warps=8 if rows > columns else 4)


def row(gated):
    names = "x", "weight", "norm", "bias", "residual", "out"
    arguments = dict.fromkeys(names, "*bf16") | {"columns": "i32", "inner": "i32", "eps": "fp32"}
    options = dict(few_rows_linear.ROW_TILE)
    warps = options.pop("num_warps")
    constants = {"NORM": True, "BIAS": not gated, "RESIDUAL": not gated, "GATED": gated, "DEPENDENT": True}
    constants["BLOCK_COLUMNS"] = few_rows_linear.ROW_COLUMNS // (2 if gated else 1)
    compiled(few_rows_linear._row_kernel, arguments, constants | options, num_warps=warps)


def stream(rows, gated, splits):
    columns, inner = few_rows_linear.STREAM_COLUMNS, few_rows_linear.STREAM_INNER
    arguments = {"x": f"tensordesc<bf16[{rows}, {inner}]>", "weight": f"tensordesc<bf16[{columns}, {inner}]>"}
    names = "addresses", "bias", "residual", "out", "factors", "scaled"
    arguments |= dict.fromkeys(names, "*bf16") | {"arrived": "*i32", "eps": "fp32"}
    arguments |= {"squares": "*fp32", "out_squares": "*fp32", "sums_of_splits": "*fp32" if splits > 1 else "*bf16"}
    arguments |= dict.fromkeys(("rows", "columns", "inner", "inner_per_split", "parts"), "i32")
    stage = 2 * inner * (rows + columns * (2 if gated else 1))
    constants = {"RESIDUAL": not gated, "GATED": gated, "SPLITS": splits, "BLOCK_ROWS": rows, "BLOCK_COLUMNS": columns}
    constants |= {"BLOCK_PARTS": 64 if gated else 0, "BIAS": False, "FOLLOWED": not gated}
    constants |= {"BLOCK_INNER": inner, "STAGES": min(8, few_rows_linear.STREAM_BYTES // stage)}
    constants |= {"AHEAD": few_rows_linear.STREAM_AHEAD, "DEPENDENT": True}
    compiled(few_rows_linear._stream_kernel, arguments, constants, num_warps=4)


def small():
    rows = dict.fromkeys(("x", "out"), "*bf16") | {"inner": "i32"}
    normed = rows | {"weight": "*bf16", "eps": "fp32"}
    compiled(few_rows_linear._rms_norm_kernel, normed, {"BLOCK": 16384, "DEPENDENT": True}, num_warps=8)
    compiled(few_rows_linear._silu_gate_kernel, rows, {"BLOCK": few_rows_linear.BLOCK, "DEPENDENT": True}, num_warps=4)
    sums = {"partial": "*fp32", "weights": "*fp32", "out": "*bf16", "splits": "i32"}
    constants = {"WIDTH": 256, "BLOCK_WIDTH": 256, "BLOCK": tree_attention.MOST_SPLITS, "DEPENDENT": True}
    compiled(tree_attention._sum_kernel, sums, constants, num_warps=1)
    names = "projected", "q_norm", "k_norm", "q", "keys", "values"
    numbers = "tokens", "first_node", "capacity", "limit", "depth_stride"
    arguments = dict.fromkeys(names, "*bf16") | dict.fromkeys(("lengths", "depths"), "*i64")
    arguments |= dict.fromkeys((*numbers, "key_stride", "value_stride"), "i32")
    arguments |= {"frequencies": "*fp32", "scaling": "fp32", "eps": "fp32"}
    constants = {"HEADS": 32, "SHARED": 8, "WIDTH": 128, "BLOCK_HALF": 64, "NORM": True, "DEPENDENT": True}
    compiled(rotary_store._rotary_store_kernel, arguments, constants, num_warps=1)


def commit(entries):
    numbers = dict.fromkeys(("count", "steps", "tree_stride", "fed_stride"), "i32")
    constants = {"PRESENT": True, "BLOCK": entries, "BLOCK_STEPS": 16, "DEPENDENT": True}
    names = [name for name in accepted_path._commit_kernel.arg_names if name not in numbers | constants]
    arguments = dict.fromkeys(names, "*i64") | dict.fromkeys(("below", "present", "idle"), "*u8") | numbers
    compiled(accepted_path._commit_kernel, arguments, constants, num_warps=4)


def move():
    arguments = dict.fromkeys(("keys", "values"), "*bf16") | dict.fromkeys(("lengths", "path"), "*i64")
    arguments |= dict.fromkeys(("heads", "batch", "capacity", "steps"), "i32")
    constants = {"WIDTH": 128, "BLOCK_WIDTH": 128, "BLOCK_STEPS": 16, "DEPENDENT": True}
    compiled(accepted_path._move_kernel, arguments, constants, num_warps=4)


"""

CALLS = [
    "small()",
    "move()",
    f"commit({MOST_COMMITTED})",
    *(f"row({gated})" for gated in (False, True)),
    *(f"stream({rows}, {gated}, {splits})" for rows in (16, MOST_ROWS) for gated, splits in ((False, 2), (True, 1))),
]


def ran(call: str, tmp_path: Path) -> None:
    """Run one of the program's functions, with nothing compiled before."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + call], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_kernels_compile_for_hopper(call, tmp_path):
    """Each lets the next one start, waits for the one before, and stores nothing until then."""
    ran(call, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["*bf16", "*fp32"])
@pytest.mark.parametrize("width", [16, 32, 64, 128, 256])
def test_the_largest_tiles_of_attention_fit(width, kind, tmp_path):
    """Sizes as `attend_to_tree` chooses them for long texts and many nodes."""
    rows, columns = tile_of(1 << 16, width * (2 if kind == "*bf16" else 4), long=True)
    ran(f"attention({kind!r}, {width}, {rows}, {columns})", tmp_path)
