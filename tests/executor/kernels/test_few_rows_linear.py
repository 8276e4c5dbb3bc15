"""Products of few rows, with what stands around them, against torch's."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from executor.kernels import few_rows_linear
from executor.kernels.few_rows_linear import MOST_ROWS, Around, linear, row_linear, stream_linear
from tests.helpers.interpreted_kernels import allowed, mend_products_of_bfloat16, poison_new_memory, relative_error

EPS = 1e-5


@pytest.fixture(autouse=True)
def _shared(monkeypatch):
    mend_products_of_bfloat16(monkeypatch)
    poison_new_memory(monkeypatch)


def expected(x: Tensor, weight: Tensor, around: Around) -> Tensor:
    """By torch, in float64."""
    x, weight = x.double(), weight.double()
    if around.norm is not None:
        x = F.rms_norm(x, x.shape[1:], around.norm[0].double(), around.norm[1])
    out = F.linear(x, weight, None if around.bias is None else around.bias.double())
    if around.gated:
        half = len(weight) // 2
        out = F.silu(out[:, :half]) * out[:, half:]
    return out if around.residual is None else out + around.residual


def drawn(rows: int, inner: int, columns: int, *options: str, dtype: torch.dtype = torch.float32):
    """An input, a weight, and what stands around their product."""
    torch.manual_seed(rows + inner)
    gated = "gated" in options
    around = Around(
        norm=(torch.rand(inner).to(dtype) + 0.5, EPS) if "norm" in options else None,
        bias=torch.randn(columns).to(dtype) if "bias" in options else None,
        residual=torch.randn(rows, columns).to(dtype) if "residual" in options else None,
        gated=gated,
    )
    weight = torch.randn(columns * (2 if gated else 1), inner) * inner**-0.5
    return torch.randn(rows, inner).to(dtype), weight.to(dtype), around


def check(found: Tensor, x: Tensor, weight: Tensor, around: Around) -> None:
    wanted = expected(x, weight, around)
    assert (found.shape, found.dtype) == (wanted.shape, x.dtype)
    assert relative_error(found, wanted) < allowed(x.dtype)


OPTIONS = [
    (),
    ("bias",),
    ("gated",),
    ("norm", "bias", "residual"),
    ("norm", "gated", "residual"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", OPTIONS, ids="+".join)
@pytest.mark.parametrize("rows", [1, 3, 9])
def test_linear_computes_what_torch_does(rows, options, dtype):
    x, weight, around = drawn(rows, 72, 21, *options, dtype=dtype)
    check(linear(x, weight, around), x, weight, around)


@pytest.mark.parametrize("inner", [8, 1024, 1032, 2056])
@pytest.mark.parametrize("options", [("norm", "residual"), ("norm", "gated")], ids="+".join)
def test_a_row_has_any_width(inner, options):
    """Also one below a block, and one beyond two."""
    x, weight, around = drawn(1, inner, 5, *options)
    check(row_linear(x, weight, around), x, weight, around)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [(), ("residual",), ("gated", "residual")], ids="+".join)
@pytest.mark.parametrize("rows", [2, MOST_ROWS])
def test_streams_compute_what_torch_does(rows, options, dtype):
    x, weight, around = drawn(rows, 136, 90, *options, dtype=dtype)
    check(stream_linear(x, weight, around)[0], x, weight, around)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("gated", [False, True])
def test_a_norm_is_folded_into_the_products_around_it(gated, splits, dtype, monkeypatch):
    """The first leaves squares of its parts; the second divides last."""
    monkeypatch.setattr(few_rows_linear, "WANTED", 2 * splits)
    x, weight, around = drawn(5, 136, 88, "residual", dtype=dtype)
    out, ready = stream_linear(x, weight, around, (torch.rand(88).to(dtype) + 0.5, EPS))
    check(out, x, weight, around)
    assert ready.squares.shape == (2, 5)
    second = drawn(5, 88, 70, *(["gated"] if gated else ["bias"]), dtype=dtype)[1:]
    found = stream_linear(out, second[0], replace(second[1], norm=ready))[0]
    check(found, out, second[0], replace(second[1], norm=ready.norm))


@pytest.mark.parametrize("splits", [1, 2, 3])
@pytest.mark.parametrize("inner", [64, 520])
def test_splits_are_added_and_their_counters_are_zero_again(splits, inner, monkeypatch):
    """64 numbers leave nothing to the second split."""
    monkeypatch.setattr(few_rows_linear, "WANTED", 2 * splits)  # 90 columns are two programs
    monkeypatch.setattr(few_rows_linear, "MOST_SPLITS", splits)
    x, weight, around = drawn(4, inner, 90, "residual")
    for _ in range(2):
        check(stream_linear(x, weight, around)[0], x, weight, around)
        assert not few_rows_linear._arrivals(x.device).any()


def test_gated_streams_are_not_split(monkeypatch):
    monkeypatch.setattr(few_rows_linear, "_arrivals", lambda device: torch.full((1,), 1 << 20, dtype=torch.int32))
    x, weight, around = drawn(4, 520, 20, "gated")
    check(stream_linear(x, weight, around)[0], x, weight, around)


# --- which kernel a product runs by


@pytest.fixture
def called(monkeypatch):
    """The kernels that were called, on a device said to have tensor maps and 6 multiprocessors."""
    calls = []
    monkeypatch.setattr(few_rows_linear, "_has_tensor_maps", lambda device: True)
    monkeypatch.setattr(few_rows_linear, "_multiprocessors", lambda device: 6)
    for name in ("row_linear", "stream_linear"):
        own = getattr(few_rows_linear, name)
        monkeypatch.setattr(few_rows_linear, name, lambda *args, n=name, own=own: calls.append(n) or own(*args))
    return calls


@pytest.mark.parametrize(
    ("rows", "options", "kernels"),
    [
        (1, ("norm", "gated"), ["row_linear"]),
        (1, ("norm", "bias"), ["row_linear"]),
        (2, ("norm", "residual"), ["stream_linear"]),
        (MOST_ROWS, ("gated",), ["stream_linear"]),
        (MOST_ROWS + 1, ("residual",), []),
        (MOST_ROWS + 1, ("gated", "residual"), []),
        (2, ("bias",), ["stream_linear"]),
    ],
)
def test_rows_and_options_choose_the_kernel(called, rows, options, kernels):
    x, weight, around = drawn(rows, 40, 70, *options, dtype=torch.bfloat16)
    check(linear(x, weight, around), x, weight, around)
    assert called == kernels


@pytest.mark.parametrize(
    ("inner", "columns", "dtype"),
    [(36, 70, torch.bfloat16), (40, 64, torch.bfloat16), (40, 70, torch.float32)],
    ids=["rows that no tensor map can read", "too few columns", "fp32"],
)
def test_libraries_multiply_what_cannot_be_streamed(called, inner, columns, dtype):
    x, weight, around = drawn(3, inner, columns, dtype=dtype)
    check(linear(x, weight, around), x, weight, around)
    assert called == []
