"""What every test needs: the checkout on the path, and one Hypothesis profile."""

import gc
import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

# `--import-mode=importlib` puts nothing on the path; `python -m pytest` does, plain `pytest` does not.
ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

# A terminal's width must not decide what a test sees: pages and snapshots name theirs.
os.environ.pop("COLUMNS", None)

# Tests interpret Triton's kernels, on CPU; read when Triton is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

from tests.helpers.slow_params import EXAMPLES  # noqa: E402

# No test is timed: a busy machine is not a failure. `make slow` tries more examples.
settings.register_profile(
    "treeopt", deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("treeopt")

# Collecting makes millions of objects that last: the garbage collector need not walk through them.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
