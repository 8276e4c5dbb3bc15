"""EAGLE without a bias after `fc`, as in vLLM: the bias becomes part of the drafter's own embeddings, and is read back.

vLLM's EAGLE computes W [E'(x); f] and has no bias. With W = [W_e, W_f] and E'(x) = E(x) + d for every token x, where
W_e d = b, this is W [E(x); f] + b.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from executor.target.load_hf_model import dtype_name
from treeopt.errors import ExecutorError

# RMS error over RMS value. Rounding to bfloat16 alone makes 2**-8; above 4 of these acceptance may differ.
TOLERANCE = 2**-6
ROWS = 4096  # embeddings that the residual is computed of, at most


@torch.no_grad()
def shifted_embeddings(table: Tensor, fc: nn.Linear) -> Tensor:
    """Return the target's embeddings plus d in every row, (vocabulary, hidden), float32 or wider.

    Args:
        table: the target's embeddings.
        fc: the drafter's layer over pairs, with a bias, in the number type of the file.
    """
    shift = _shift(fc)
    return table.to("cpu", torch.promote_types(fc.weight.dtype, torch.float32)) + shift.to(torch.float32)


def _shift(fc: nn.Linear) -> Tensor:
    """Return d, float64 (hidden,): the d with the least error in W_e (E + d) once E + d is rounded.

    Rounding to nearest in a type with spacing eps adds noise of variance eps**2 / 12 times the squared value at most.
    So d minimises |W_e d - b|**2 + eps**2 / 12 * |W_e|_F**2 / hidden * |d|**2. Where W_e is nearly singular and the
    type coarse, the exact d is large and its rounding worse than a small residual.
    """
    weight, bias = _parts(fc)
    hidden = len(bias)
    penalty = torch.finfo(fc.weight.dtype).eps * weight.norm() / (12 * hidden) ** 0.5
    rows = torch.cat([weight, penalty * torch.eye(hidden, dtype=torch.float64)])
    right = torch.cat([bias, torch.zeros(hidden, dtype=torch.float64)])
    shift: Tensor = torch.linalg.lstsq(rows, right[:, None]).solution[:, 0]
    return shift


def _parts(fc: nn.Linear) -> tuple[Tensor, Tensor]:
    """Return W_e and b in float64."""
    assert fc.bias is not None
    return fc.weight.detach().cpu().double()[:, : fc.out_features], fc.bias.detach().cpu().double()


@torch.no_grad()
def check_residual(stored: Mapping[str, Tensor], name: str, table: Tensor, fc: nn.Linear) -> str:
    """Return a remark with the error that folding leaves in `fc`'s output.

    Args:
        stored: the tensors as they are written.
        name: of the embeddings among them.
        table: the target's embeddings.
        fc: the drafter's layer over pairs, with its bias.

    Raises:
        ExecutorError: the error is above `TOLERANCE`, because no d solves W_e d = b in this number type.
    """
    weight, bias = _parts(fc)
    places = torch.linspace(0, len(table) - 1, min(ROWS, len(table))).round().long()
    plain, shifted = (values.cpu()[places].double() for values in (table, stored[name]))
    due = plain @ weight.T + bias
    error = float((shifted @ weight.T - due).square().mean().sqrt() / due.square().mean().sqrt().clamp(min=1e-30))
    kind = dtype_name(stored[name].dtype)
    if error > TOLERANCE:
        raise ExecutorError(
            f"vllm has no bias after fc, and in {kind} this fc.bias cannot be folded into the embeddings: a relative "
            f"error of {error:.2g} remains, above {TOLERANCE:.2g}; write float32, or train without the bias"
        )
    return f"fc.bias is folded into the drafter's embeddings: relative error {error:.1g} after rounding to {kind}"


@torch.no_grad()
def unfolded_bias(values: Tensor, table: Tensor, weight: Tensor) -> Tensor | None:
    """Return the bias that was folded into embeddings; None if they are not the target's plus one row.

    Args:
        values: the checkpoint's embeddings, (vocabulary, hidden), in the number type of the file.
        table: the target's.
        weight: of `fc`, (hidden, 2 * hidden).
    """
    if values.shape != table.shape or values.shape[1] != len(weight):
        return None
    table = table.to(values.device)
    shift = (values.double() - table.double()).mean(0)
    spacing = max(torch.finfo(kind).eps for kind in (values.dtype, table.dtype))
    for rows, plain in zip(values.double().split(ROWS), table.double().split(ROWS), strict=True):
        if bool(((rows - plain - shift).abs() > spacing * (plain.abs() + shift.abs())).any()):
            return None
    return weight.double()[:, : len(weight)] @ shift
