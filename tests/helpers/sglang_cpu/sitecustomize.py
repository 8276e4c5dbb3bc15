"""Stand-in for torchvision, which SGLang imports for models with images: whatever is asked of it is a mock."""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from unittest.mock import MagicMock


class _NoVision(MetaPathFinder, Loader):
    """Finds torchvision and all below it."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == "torchvision" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return MagicMock(name=spec.name, __name__=spec.name, __path__=[], __spec__=spec, __version__="0")

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.append(_NoVision())
