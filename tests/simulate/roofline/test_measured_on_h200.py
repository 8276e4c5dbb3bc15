"""Data-sheet speedups against those of the loop with an 8B shape on an H200 (`make gpu`, data/gpu)."""

import json
from pathlib import Path

import numpy as np
import pytest

from executor.drafters.medusa import medusa_shape
from simulate.model_sizes.hf_config import shape_fields
from simulate.model_sizes.model_shape import Shape
from simulate.profiles.profile import load_profile
from simulate.roofline.data_sheets import find_hardware
from simulate.roofline.host_overhead import Overheads
from simulate.roofline.roofline_model import Roofline
from treeopt.cost_model import StepShape
from treeopt.tree import Tree

GPU = Path(__file__).resolve().parents[3] / "data" / "gpu"


@pytest.fixture(scope="module")
def errors() -> list[tuple[int, float, float]]:
    """Rows of each step, relative error of its predicted speedup, and the stated one."""
    shape = Shape.from_config(shape_fields("8b"))
    loop = Overheads.of("treeopt", kind="medusa")
    sheet = Roofline(shape, medusa_shape(shape, shared_head=True), find_hardware("H200"), overheads=loop)
    pieces = json.loads((GPU / "h200.json").read_text("utf-8"))["replayed_8b"]["pieces"]
    found = []
    for context in (400, 3984, 16272):
        for times in load_profile(GPU / f"h200-8b-{context}.profile.json").batches:
            plain_s = sheet.plain_s(batch=times.batch, context=round(times.context))
            cells = pieces.get(f"context {context}, batch {times.batch}", {"cells": []})["cells"]
            for cell in cells:
                tree, tau = Tree.from_paths(map(tuple, cell["tree"]["paths"])), cell["measured"]["tau"]["value"]
                step = StepShape.of(tree, batch=times.batch, context=round(times.context), committed=tau)
                speedup = tau * plain_s / float(sheet.step_s([step])[0])
                error = speedup / cell["measured"]["speedup"]["value"] - 1
                found.append((times.batch * step.tokens, error, sheet.error(step)))
    assert len(found) == 48
    return found


@pytest.mark.parametrize(("least", "most", "cells"), [(1, 64, 28), (65, 512, 15), (513, 4096, 5)])
def test_the_mean_error_is_small_in_each_range_of_rows(errors, least, most, cells):
    """The loop's overheads are fitted to an H100's steps, the products' rates to its kernels."""
    found = np.abs([error for rows, error, _ in errors if least <= rows <= most])
    assert len(found) == cells
    assert found.mean() < 0.06
    page = (GPU.parents[1] / "docs/results/gpu.md").read_text("utf-8")
    assert f"| {cells} | {100 * found.mean():.1f} % | {100 * found.max():.0f} % |" in page


def test_the_stated_error_holds_in_95_percent(errors):
    inside = [abs(error) <= stated for _, error, stated in errors]
    assert sum(inside) / len(inside) >= 0.95
    assert f"Of the 48 intervals {sum(inside)} hold" in (GPU.parents[1] / "docs/results/gpu.md").read_text("utf-8")
