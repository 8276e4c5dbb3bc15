"""Data sheets of devices: bandwidth, FLOP/s and memory of a GPU as its vendor states them, and fitted constants."""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from treeopt.errors import CostError
from treeopt.storage.atomic_files import shipped
from treeopt.storage.user_files import read_text

Floats = NDArray[np.float64]
MOST = 8  # devices of a node; constants were fitted for 2, 4 and 8


@dataclass(frozen=True)
class Link:
    """The link between devices, with constants fitted to timings of vLLM's all-reduces in CUDA graphs.

    Attributes:
        bandwidth: B/s that a device sends, by its data sheet.
        latency_s: seconds of an exchange of almost no bytes.
        share: share of `bandwidth` that is reached, in (0, 1].
        second_s: additional seconds of the two-phase all-reduce (reduce parts, gather them) over the one-phase one
            (every device reads everything).
        source: where the figures come from.
    """

    bandwidth: float
    latency_s: float
    share: float
    second_s: float
    source: str

    def sum_s(self, size: ArrayLike, *, devices: int) -> Floats:
        """Return the seconds of an all-reduce of one array of `size` bytes per device; float64, of its shape.

        Each device reads the arrays of all others, or reduces its part and gathers the rest: whichever is quicker.

        >>> Link(1e9, 1e-6, 0.5, 2e-6, "x").sum_s([500, 50_000], devices=4).round(6).tolist()
        [4e-06, 0.000153]
        """
        sent = np.asarray(size, dtype=np.float64) / (self.share * self.bandwidth)
        one_phase = (devices - 1) * sent
        two_phases = self.second_s + 2 * (devices - 1) / devices * sent
        return np.asarray(self.latency_s + np.minimum(one_phase, two_phases))

    def gather_s(self, size: ArrayLike, *, devices: int) -> Floats:
        """Return the seconds of an all-gather of `size` bytes, of which each device has an equal part."""
        sent = np.asarray(size, dtype=np.float64) / (self.share * self.bandwidth)
        return np.asarray(self.latency_s + (devices - 1) / devices * sent)


SCHEMA = "treeopt.hardware/1"
FASTEST = 1e30  # largest B/s and FLOP/s that are accepted for a device


@dataclass(frozen=True)
class Fitted:
    """Constants of a device class, fitted to timings of single operators (see `notes` in data/hardware.json).

    Attributes:
        gemm_overhead_s: seconds of a matrix product beyond its bytes and its FLOP.
        bandwidth_share: share of `Hardware.bandwidth` that matrix products reach, in (0, 1].
        flops_share: share of `Hardware.flops` that matrix products reach, in (0, 1].
        kv_bandwidth_share: share of `Hardware.bandwidth` that decode attention reaches, in (0, 1], or None.
        weights_cached: weights came from the cache in the timings, not from memory, so the constants are too fast.

    Raises:
        CostError: names the first field that is wrong.

    >>> Fitted(gemm_overhead_s=4e-6, bandwidth_share=0.85, flops_share=0.9).kv_bandwidth_share is None
    True
    """

    gemm_overhead_s: float
    bandwidth_share: float
    flops_share: float
    kv_bandwidth_share: float | None = None
    weights_cached: bool = False

    def __post_init__(self) -> None:
        """Check every field."""
        if type(self.weights_cached) is not bool:
            raise CostError(f"weights_cached must be true or false, got {self.weights_cached!r}")
        _check_number("gemm_overhead_s", self.gemm_overhead_s, zero=True)
        _check_number("bandwidth_share", self.bandwidth_share, maximum=1.0)
        _check_number("flops_share", self.flops_share, maximum=1.0)
        if self.kv_bandwidth_share is not None:
            _check_number("kv_bandwidth_share", self.kv_bandwidth_share, maximum=1.0)


@dataclass(frozen=True)
class Hardware:
    """A device as its data sheet describes it.

    Attributes:
        name: the name it is looked up by.
        generation: class of devices that may share fitted constants, such as "Hopper".
        flops: FLOP/s, dense bf16 with fp32 accumulation.
        bandwidth: B/s of device memory.
        l2_bytes: B of last-level cache on the chip.
        multiprocessors: streaming multiprocessors or compute units.
        source: where the figures come from.
        fitted: constants fitted to timings of this device, or None.
        note: figures that are uncertain ([U]) or were measured to differ.
        memory_bytes: B of device memory; None where it is not known.
        link: the link between devices of one node; None where it is not known.

    Raises:
        CostError: names the first field that is wrong.

    >>> Hardware("X", "X", flops=6e12, bandwidth=3e10, l2_bytes=1, multiprocessors=1, source="X").ridge_point
    200.0
    """

    name: str
    generation: str
    flops: float
    bandwidth: float
    l2_bytes: int
    multiprocessors: int
    source: str
    fitted: Fitted | None = None
    note: str = ""
    memory_bytes: int | None = None
    link: Link | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("name", "generation", "source", "note"):
            value = getattr(self, name)
            if not isinstance(value, str) or not (value.strip() or name == "note"):
                raise CostError(f"{name} must be a text that is not empty, got {value!r}")
        _check_rate("flops", self.flops)
        _check_rate("bandwidth", self.bandwidth)
        for name in ("l2_bytes", "multiprocessors"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise CostError(f"{name} must be a positive integer, got {value!r}")
        if self.memory_bytes is not None and (type(self.memory_bytes) is not int or self.memory_bytes < 1):
            raise CostError(f"memory_bytes must be a positive integer or None, got {self.memory_bytes!r}")
        if self.fitted is not None and not isinstance(self.fitted, Fitted):
            raise CostError(f"fitted must be Fitted or None, got {self.fitted!r}")
        if self.link is not None:
            if not isinstance(self.link, Link):
                raise CostError(f"link must be Link or None, got {self.link!r}")
            _check_link(self.link)

    @property
    def ridge_point(self) -> float:
        """FLOP/B; work with fewer operations per byte moved is bound by bandwidth, the rest by arithmetic."""
        return self.flops / self.bandwidth


def load_hardware(path: Path | str | None = None) -> dict[str, Hardware]:
    """Read devices by name, in the order of the file; without `path` those shipped with treeopt.

    Raises:
        CostError: names the file, the device and the field that is wrong.

    >>> load_hardware()["H200"].bandwidth
    4800000000000.0
    """
    path = shipped("hardware.json") if path is None else Path(path)
    try:
        content = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise CostError(f"{path}: must be a readable JSON file: {error}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        schema = content.get("schema") if isinstance(content, dict) else content
        raise CostError(f"{path}: schema must be {SCHEMA!r}, got {schema!r:.80}")
    entries = content.get("devices")
    if not isinstance(entries, list) or not entries:
        raise CostError(f"{path}: devices must be a list that is not empty, got {entries!r:.80}")
    devices: dict[str, Hardware] = {}
    for number, entry in enumerate(entries):
        label = f"devices[{number}]"
        try:
            label += f" ({entry['name']!s:.60})" if isinstance(entry, dict) and "name" in entry else ""
            device = _hardware(entry)
            if device.name.casefold() in map(str.casefold, devices):
                raise CostError("name must be unique; upper and lower case count as the same")
        except CostError as error:
            raise CostError(f"{path}: {label}: {error}") from error
        devices[device.name] = device
    return devices


def find_hardware(name: str, *, path: Path | str | None = None) -> Hardware:
    """Return the device called `name`, or the only one whose name begins with these words; case does not matter.

    Args:
        name: as in the file, such as "H100 SXM", or its first words, such as "h100"; "l4" does not match L40S.
        path: a file like data/hardware.json; None: that file.

    Raises:
        CostError: no device matches, or several do; lists the candidates.

    >>> find_hardware("h100").multiprocessors
    132
    """
    devices = load_hardware(path)
    wanted = name.strip().casefold()
    for device_name, device in devices.items():
        if device_name.casefold() == wanted:
            return device
    matches = [known for known in devices if wanted and re.match(rf"{re.escape(wanted)}\b", known.casefold())]
    if len(matches) == 1:
        return devices[matches[0]]
    raise CostError(
        f"hardware must be one of {', '.join(matches or devices)}; got {name!r}; another device needs its "
        "--bandwidth, --flops and --like"
    )


def own_hardware(
    name: str,
    *,
    bandwidth: float,
    flops: float,
    like: Hardware,
    same_class: bool = False,
    memory_bytes: int | None = None,
) -> Hardware:
    """Return a device with the user's own figures; cache and multiprocessors, which no cost depends on, as of `like`.

    Args:
        name: its name.
        bandwidth: B/s of device memory.
        flops: FLOP/s, dense bf16 with fp32 accumulation.
        like: the most similar device.
        same_class: it belongs to that device's class, so that the fitted constants count as its own class's.
        memory_bytes: B of device memory; None where it does not matter.

    Raises:
        CostError: names the figure that is wrong.

    >>> own_hardware("mine", bandwidth=1e12, flops=1e14, like=find_hardware("h100")).generation
    'like Hopper'
    """
    generation = like.generation if same_class else f"like {like.generation}"
    source = f"given by the user; l2_bytes and multiprocessors of {like.name}"
    return Hardware(
        name, generation, flops, bandwidth, like.l2_bytes, like.multiprocessors, source, memory_bytes=memory_bytes
    )


def _hardware(entry: object) -> Hardware:
    """Return the device that an entry of the file describes."""
    values = _fields(entry, Hardware)
    kinds: dict[str, type[Fitted] | type[Link]] = {"fitted": Fitted, "link": Link}
    for name, kind in kinds.items():
        if values.get(name) is not None:
            try:
                values[name] = kind(**_fields(values[name], kind))
            except CostError as error:
                raise CostError(f"{name}: {error}") from error
    return Hardware(**values)


def _fields(entry: object, kind: type[Hardware] | type[Fitted] | type[Link]) -> dict[str, Any]:
    """Return the entry as keyword arguments of `kind`.

    Raises:
        CostError: a key is not a field, or a required field is missing.
    """
    if not isinstance(entry, Mapping):
        raise CostError(f"must be an object, got {entry!r:.80}")
    known = [field.name for field in fields(kind)]
    for key in entry:
        if key not in known:
            raise CostError(f"{key:.60} must be one of {', '.join(known)}")
    missing = [name for name in known if name not in entry and not hasattr(kind, name)]
    if missing:
        raise CostError(f"{missing[0]} must be given")
    return dict(entry)


def _check_link(link: Link) -> None:
    """Raise CostError unless every field is plausible for a link."""
    if not isinstance(link.source, str) or not link.source.strip():
        raise CostError(f"link: source must be a text that is not empty, got {link.source!r}")
    _check_rate("link: bandwidth", link.bandwidth)
    _check_number("link: share", link.share, maximum=1.0)
    for name in ("latency_s", "second_s"):
        _check_number(f"link: {name}", getattr(link, name), zero=True, maximum=1.0)


def _check_rate(name: str, value: float) -> None:
    """Raise CostError unless `value` is a plausible rate per second; sums of larger ones overflow."""
    if not _is_number(value) or not 1 <= value <= FASTEST:
        raise CostError(f"{name} must be a finite number from 1 to {FASTEST:g}, got {value!r:.40}")


def _check_number(name: str, value: float, *, zero: bool = False, maximum: float = sys.float_info.max) -> None:
    """Raise CostError unless `value` is a finite number above 0 (`zero`: 0 or more) and at most `maximum`."""
    if not _is_number(value) or not (0 <= value <= maximum) or (value == 0 and not zero):
        floor = "0 or more" if zero else "above 0"
        ceiling = f" and at most {maximum:g}" if maximum < sys.float_info.max else ""
        raise CostError(f"{name} must be a finite number {floor}{ceiling}, got {value!r:.40}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


SAME_CLASS_ERROR = 0.10  # products: H100's constants err by 7 % (H200) and 9 % (B200) in the median
FEW_ROWS = 64  # rows up to which kernels behave as the constants say
ACROSS_CLASS_ERROR = 0.25  # by 20 to 22 % on A100; other simulators report 13 to 16 % end to end
SOME_ROWS, SOME_ROWS_ERROR, MANY_ROWS_ERROR = 512, 0.5, 0.8  # of more than FEW_ROWS; see `stated_error`
EXPERTS_ERROR = 0.35  # uniform-expert bytes on 105 SpecBundle speedups of Qwen3-30B and 235B: mean 16 and 23 %, max 35
_KV_FROM = {"Blackwell": "Hopper"}  # class without its own K/V share of bandwidth -> class whose share is used


def fitted_for(device: Hardware, like: Hardware | None) -> Fitted:
    """Return the constants of the device, else of its class, else of `like`; the K/V share is always set.

    Raises:
        CostError: says which constants are missing.

    >>> fitted_for(load_hardware()["B200"], None).kv_bandwidth_share
    0.83
    """
    fitted = device.fitted or _fitted_in(device.generation) or (like.fitted if like else None)
    if fitted is None:
        raise CostError(
            f"{device.name}: no constants are known for devices of class {device.generation}, only for "
            f"{', '.join(_classes())}; say which device it is like (--like)"
        )
    if fitted.kv_bandwidth_share is None:
        other = like.fitted if like else _fitted_in(_KV_FROM.get(device.generation, ""))
        if other is None or other.kv_bandwidth_share is None:
            raise CostError(f"{device.name}: kv_bandwidth_share is not known; say which device it is like (--like)")
        fitted = replace(fitted, kv_bandwidth_share=other.kv_bandwidth_share)
    return fitted


def constants_of(device: Hardware, like: Hardware | None) -> Fitted | None:
    """Return the constants that a device is priced by; None if none are known."""
    try:
        return fitted_for(device, like)
    except CostError:
        return None


def stated_error(
    device: Hardware, like: Hardware | None, rows: int, *, experts: bool = False, devices: int = 1
) -> float:
    """Return the stated error of forwards of `rows` rows, 95 %, as a share.

    * 10 %: the constants are those of the device or its class.
    * 25 %: a constant comes from another class, or from timings whose weights were cached.
    * 50 %: 65 to 512 rows; there kernels change in ways that no data sheet shows. Measured Llama-2-7B layers (Vidur)
      take at 72 and 136 rows 1.29 and 1.52 times one row on H100, 1.23 and 1.89 on A100; predictions are up to 24 %
      below. Speedups of the loop with an 8B shape on an H200 are predicted 19 % off in the mean of 15, at most 48 %.
    * 80 %: more than 512 rows. Speedups there are predicted 59 to 76 % too high (5 of the same loop). With up to 64
      rows they are 4.5 % off in the mean of 28, at most 20 %.
    * 25 %: several devices; only two of their whole steps were compared. Llama-3.3-70B's in fp8 on two H100 (NVIDIA NIM
      1.8.0) are predicted 10 and 12 % too short.
    * 35 %: the model has experts.
    """
    fitted = device.fitted or _fitted_in(device.generation)
    if fitted is None and like is not None and like.generation == device.generation:
        fitted = like.fitted
    sure = fitted is not None and fitted.kv_bandwidth_share is not None and not fitted.weights_cached and devices == 1
    of_rows = SAME_CLASS_ERROR if rows <= FEW_ROWS else SOME_ROWS_ERROR if rows <= SOME_ROWS else MANY_ROWS_ERROR
    return max(of_rows, 0.0 if sure else ACROSS_CLASS_ERROR, EXPERTS_ERROR if experts else 0.0)


def _fitted_in(generation: str) -> Fitted | None:
    """Return the constants of the first shipped device of a class that has any."""
    devices = load_hardware().values()
    return next((entry.fitted for entry in devices if entry.generation == generation and entry.fitted), None)


def _classes() -> list[str]:
    """Return the classes of devices that have fitted constants."""
    return list(dict.fromkeys(entry.generation for entry in load_hardware().values() if entry.fitted))
