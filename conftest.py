"""Which files pytest skips where an optional package is not installed that they import."""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent
KERNELS = (  # torch brings Triton on CUDA only
    ROOT / "executor" / "kernels",
    ROOT / "tests" / "executor" / "kernels",
    ROOT / "tests" / "executor" / "target" / "test_fused_verification.py",
    ROOT / "tests" / "helpers" / "interpreted_kernels.py",
)


class Unimportable(pytest.File):
    """A file whose tests and examples cannot run here."""

    def collect(self) -> Iterable[pytest.Item]:
        """Skip it, and name the reason."""
        pytest.skip("Triton is not installed", allow_module_level=True)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector):
    """Import no file that needs Triton where there is none."""
    found = yield
    if found and find_spec("triton") is None and any(file_path.is_relative_to(path) for path in KERNELS):
        return [Unimportable.from_parent(parent, path=file_path)]
    return found
