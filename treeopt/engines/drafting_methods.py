"""Drafting methods: how engines draft, by their own names, and the kinds of treeopt's drafters that each runs."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def _engine(name: str) -> Any:
    """Import the module of an engine."""
    return import_module(f"treeopt.engines.{name}")


llama_cpp = _engine("llama_cpp")
lmdeploy = _engine("lmdeploy")
medusa = _engine("medusa")
openvino = _engine("openvino")
sglang = _engine("sglang")
tensorrt_llm = _engine("tensorrt_llm")
transformers = _engine("transformers")
vllm = _engine("vllm")

Kinds = Mapping[str, frozenset[str]]

# Engine name, as in `--format` -> its methods with their kinds of drafters; Medusa's code takes no method.
METHODS: Mapping[str, Kinds] = {
    "llama.cpp": llama_cpp.METHODS,
    "lmdeploy": lmdeploy.METHODS,
    "openvino": openvino.METHODS,
    "sglang": sglang.ALGORITHMS,
    "tensorrt-llm": tensorrt_llm.METHODS,
    "transformers": transformers.METHODS,
    "vllm": vllm.METHODS,
}
WITHOUT_DEFAULT = frozenset({"sglang", "vllm"})  # exporters that do not take the method from the plan's drafter
OPTIONAL = frozenset({"sglang"})  # exporters that write what they know without a method


def fitting_methods(engine: str, kind: Any) -> tuple[str, ...]:
    """Return the methods of an engine that run a kind of drafter, the one of the same name first.

    >>> fitting_methods("vllm", "eagle"), fitting_methods("vllm", "medusa"), fitting_methods("vllm", "ngram")
    (('eagle', 'eagle3'), (), ())
    """
    named = kind if isinstance(kind, str) else None  # a file may hold anything
    fitting = [method for method, kinds in METHODS.get(engine, {}).items() if named in kinds]
    return tuple(sorted(fitting, key=lambda method: method.lower() != kind))


def method_for(engine: str | None, kind: Any) -> str | None:
    """Return the engine's first drafting method for a kind of drafter; None where it has none, or needs no name.

    >>> method_for("vllm", "language-model"), method_for("vllm", "medusa")
    ('draft_model', None)
    """
    return next(iter(fitting_methods(engine or "", kind)), None)


def engines_for(kind: Any) -> tuple[str, ...]:
    """Return the engines with an exporter that run a kind of drafter.

    >>> engines_for("medusa"), engines_for("eagle3")
    (('medusa',), ('llama.cpp', 'lmdeploy', 'openvino', 'sglang', 'tensorrt-llm', 'vllm'))
    """
    own = ("medusa",) if isinstance(kind, str) and kind in medusa.KINDS else ()
    return (*own, *(engine for engine in METHODS if fitting_methods(engine, kind)))


def needs_model(engine: str, method: str | None) -> bool:
    """Return whether the exporter asks for the drafter's checkpoint with this method.

    >>> needs_model("vllm", "eagle"), needs_model("vllm", "ngram"), needs_model("sglang", "EAGLE")
    (True, False, False)
    """
    return engine == "vllm" and method not in vllm.WITHOUT_MODEL
