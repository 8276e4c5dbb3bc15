"""The settings of a what-if question: devices, models, sizes of numbers, and what is asked of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulate.device_memory import SHARE
from simulate.drafter_kinds import DRAFTERS
from simulate.model_sizes.hf_config import OWN_SWEEP
from simulate.model_sizes.model_shape import KEYS, SPREAD
from simulate.profiles.profile import Profile
from treeopt import defaults
from treeopt.defaults import WHATIF_CONTEXT
from treeopt.errors import UsageError
from treeopt.planning.search_settings import SearchSettings, deepest_tree, largest_tree, limiting_engine
from treeopt.settings import Settings, setting

Config = Path | str | Mapping[str, Any]  # a folder, a config.json, or its content

LINKS = (1e-6, 1e6)  # GB/s, and microseconds
LARGEST = 1e15  # weights of a model
SHEETS = (1e-12, 1e21)  # GB/s, and TFLOP/s


@dataclass(frozen=True, kw_only=True)
class WhatIfSettings(Settings):
    """The settings of `whatif`."""

    hardware: tuple[str, ...] = setting(
        help="Devices, such as h100,4xh100,l40s: names of data/hardware.json; 4x: four devices of a node share every "
        "layer; 8xh100:tp2ep8: pairs share the layers, each with its own sequences, and all eight the experts."
    )
    target: Config = setting(
        help="The target's folder, config.json or GGUF file, hf:org/name, a name of `treeopt models`, or a shape "
        "(1b, 8b, 14b, 70b): its sizes.",
    )
    sizes: Mapping[str, float] | None = setting(
        None,
        help="The target's sizes by hand, such as params=117e9,active=5.1e9,kv_bytes=73728: weights, those that a "
        "token needs, and K/V bytes of a token in bf16; for a config.json that is not understood. Also layers, hidden "
        "and vocab. Alone, spread=0.6: tokens' worth of experts that a further token of a sequence needs; default 0.6, "
        "fitted to published speedups; 1: independent routing.",
    )
    drafter: Config | None = setting(
        None, help="The drafter's folder or config.json, hf:org/name, or a shape; default sizes as the target's."
    )
    kind: str | None = setting(
        None,
        choices=DRAFTERS,
        otherwise=f"MLP speculators, Gemma 4's assistants and others have no price: {OWN_SWEEP}",
        help="Kind of drafter; default as its configuration states, else as recorded in the trace.",
    )
    batch: tuple[int, ...] = setting((1, 2, 4, 8, 16, 32, 64), least=1, help="Batch sizes; 1-64 doubles from 1 to 64.")
    context: tuple[int, ...] = setting(
        (WHATIF_CONTEXT,), least=0, form="context lengths", help="Tokens in the cache; 8k is 8192."
    )
    observed: tuple[str, ...] = setting(
        (),
        help="A step's time in your engine, such as batch=1,K=0:8.1ms (K=0: a plain step); give one with drafts too: "
        "the model is shifted to them.",
    )
    profile: Profile | Path | str | None = setting(None, help="Step times measured on another device.")
    measured_on: str | None = setting(None, help="The device that --profile was measured on.")
    data_sheet: tuple[float, ...] = setting(
        (),
        least=SHEETS[0],
        most=SHEETS[1],
        help="GB/s of memory and dense bf16 TFLOP/s of a custom device, such as 900,165; needs --like.",
    )
    link: tuple[float, ...] = setting(
        (),
        least=LINKS[0],
        most=LINKS[1],
        help="GB/s that each of several devices sends, and the minimum microseconds of an exchange, such as 20,25; for "
        "devices whose exchange is not known.",
    )
    memory: float | None = setting(
        None,
        above=0,
        most=1e9,
        help=f"Memory in GB that the engine may take of each device; default {SHARE:.0%} of the data sheet's, which is "
        "vLLM's gpu_memory_utilization.",
    )
    fit: bool = setting(
        False,
        help="Also search the largest batches that memory holds with and without speculation, and compare the "
        "throughput of each one's own best batch.",
    )
    like: str | None = setting(None, help="A known device whose constants to use for a device whose class has none.")
    weight_bytes: float | None = setting(
        None,
        above=0,
        help="Bytes per target weight; default as its quantisation states, else 2. An LM head counts at least 2.",
    )
    draft_bytes: float | None = setting(
        None, above=0, help="Bytes per drafter weight; default 2, or the target's if that is more."
    )
    kv_bytes: float | None = setting(
        None, above=0, help="Bytes per number in the K/V cache; default as the target's quantisation states, else 2."
    )
    prices: Mapping[str, float] | None = setting(
        None,
        option="--price",
        help="Price of one device per hour, such as h100=2.5,l40s=0.9; also prices tokens.",
    )
    max_tpot_s: tuple[float, ...] = setting(
        (),
        above=0,
        option="--max-tpot-ms",
        scale=1e-3,
        help="Name the configuration of most tokens per second that takes at most this much time per token; with "
        "--price the cheapest.",
    )
    engine: str | None = limiting_engine(" With its host time; vllm==0.10.2 takes an older version's.")
    max_nodes: int | None = largest_tree()
    max_depth: int | None = deepest_tree()
    seed: int = defaults.seed()

    def check(self) -> None:
        """Raise UsageError where a setting lacks the one that it belongs to, or numbers are not those that it takes."""
        if (self.profile is None) != (self.measured_on is None):
            raise UsageError("--profile and --measured-on need each other")
        if self.observed and (len(self.hardware) > 1 or self.profile is not None):
            raise UsageError("--observed is of one device: give one --hardware, and no --profile")
        for option, numbers, units in (
            ("--link", self.link, "GB/s and microseconds, such as 20,25"),
            ("--data-sheet", self.data_sheet, "GB/s and TFLOP/s, such as 900,165"),
        ):
            if len(numbers) not in (0, 2):
                raise UsageError(f"{option} takes two numbers, {units}")
        for name, size in (self.sizes or {}).items():
            most = 1 if name == SPREAD else LARGEST
            if name not in (*KEYS, SPREAD) or not 0 < size <= most:
                raise UsageError(f"--sizes takes numbers of {', '.join((*KEYS, SPREAD))}, not {name}={size:g}")

    @property
    def by_hand(self) -> Mapping[str, float]:
        """The target's sizes by hand; empty: its configuration states them."""
        return {name: size for name, size in (self.sizes or {}).items() if name != SPREAD}

    @property
    def limiting(self) -> str | None:
        """The name of the engine, without its version."""
        return self.engine and self.engine.partition("==")[0]

    @property
    def search(self) -> SearchSettings:
        """The settings of the search of each device and context."""
        limits: dict[str, Any] = {"max_nodes": self.max_nodes, "max_depth": self.max_depth}
        return SearchSettings(batch=self.batch, engine=self.limiting, seed=self.seed, compare={}, **limits)

    def recorded(self) -> dict[str, Any]:
        """Return the settings as the record holds them, without models and step times, which it names elsewhere."""
        engine, _, version = (self.engine or "").partition("==")
        names = "kind batch context prices observed measured_on data_sheet memory like sizes"
        names += " weight_bytes draft_bytes kv_bytes seed max_nodes max_depth"
        fields = {name: getattr(self, name) for name in names.split()}
        link = ",".join(f"{number:g}" for number in self.link) or None
        return fields | {"engine": engine or None, "engine_version": version or None, "link": link, "compare": {}}
