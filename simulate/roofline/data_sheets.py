"""Data sheets of devices: bandwidth, FLOP/s and memory of a GPU as its vendor states them, and fitted constants."""

import math
import re
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike, NDArray

from treeopt.errors import CostError
from treeopt.storage.json_records import RecordError, check_schema
from treeopt.storage.typed_records import Count, read_record
from treeopt.storage.user_files import shipped_json

Floats = NDArray[np.float64]
MOST = 8  # devices of a node; constants were fitted for 2, 4 and 8
Rate = Annotated[float, Meta(ge=1, le=1e30)]  # per second; sums of larger ones overflow
Share = Annotated[float, Meta(gt=0, le=1)]
Seconds = Annotated[float, Meta(ge=0, le=1)]
Text = Annotated[str, Meta(pattern=r"\S")]


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

    bandwidth: Rate
    latency_s: Seconds
    share: Share
    second_s: Seconds
    source: Text

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
        """Return the seconds of an all-gather of `size` bytes, of which each device has an equal part.

        An all-to-all, in which each device sends `size` bytes in equal parts to all, takes as long.
        """
        sent = np.asarray(size, dtype=np.float64) / (self.share * self.bandwidth)
        return np.asarray(self.latency_s + (devices - 1) / devices * sent)


SCHEMA = "treeopt.hardware/1"


@dataclass(frozen=True)
class Fitted:
    """Constants of a device class, fitted to timings of single operators (see `notes` in data/hardware.json).

    Attributes:
        gemm_overhead_s: seconds of a matrix product beyond its bytes and its FLOP.
        bandwidth_share: share of `Hardware.bandwidth` that matrix products reach, in (0, 1].
        flops_share: share of `Hardware.flops` that matrix products reach, in (0, 1].
        kv_bandwidth_share: share of `Hardware.bandwidth` that decode attention reaches, in (0, 1], or None.
        weights_cached: weights came from the cache in the timings, not from memory, so the constants are too fast.

    >>> Fitted(gemm_overhead_s=4e-6, bandwidth_share=0.85, flops_share=0.9).kv_bandwidth_share is None
    True
    """

    gemm_overhead_s: Annotated[float, Meta(ge=0, le=1e100)]
    bandwidth_share: Share
    flops_share: Share
    kv_bandwidth_share: Share | None = None
    weights_cached: bool = False


@dataclass(frozen=True)
class Hardware:
    """A device as its data sheet describes it.

    Attributes:
        name: the name it is looked up by.
        generation: class of devices that may share fitted constants, such as "Hopper".
        flops: FLOP/s, dense bf16 with fp32 accumulation.
        bandwidth: B/s of device memory.
        l2_bytes: B of last-level cache on the chip; None where it is not known.
        multiprocessors: streaming multiprocessors, compute units or GPU cores; None where it is not known.
        source: where the figures come from.
        fitted: constants fitted to timings of this device, or None.
        note: figures that are uncertain ([U]) or were measured to differ.
        memory_bytes: B of device memory; None where it is not known.
        link: the link between devices of one node; None where it is not known.
    """

    name: Text
    generation: Text
    flops: Rate
    bandwidth: Rate
    l2_bytes: Count | None
    multiprocessors: Count | None
    source: Text
    fitted: Fitted | None = None
    note: str = ""
    memory_bytes: Count | None = None
    link: Link | None = None


@cache
def load_hardware() -> dict[str, Hardware]:
    """Return the shipped devices by name, in the order of data/hardware.json.

    >>> load_hardware()["H200"].bandwidth
    4800000000000.0
    """
    content = check_schema(shipped_json("hardware.json"), SCHEMA)
    return {device.name: device for device in read_record(content["devices"], tuple[Hardware, ...])}


def find_hardware(name: str) -> Hardware:
    """Return the device called `name`, or the only one whose name begins or ends with these words.

    Args:
        name: as in the file, such as "H100 SXM", or its first or last words: "h100", "rtx5090", "5090", "m4-max". Case,
            hyphens and the vendor do not matter; "l4" does not match L40S.

    Raises:
        CostError: no device matches, or several do; lists the candidates.

    >>> find_hardware("h100").multiprocessors, find_hardware("m4-max").name
    (132, 'M4 Max')
    """
    devices = load_hardware()
    wanted = _names(name)[0]
    matches = [known for known in devices if _names(known)[0] == wanted]
    matches = matches or [known for known in devices if wanted in _names(known)]
    if len(matches) == 1:
        return devices[matches[0]]
    raise CostError(
        f"hardware must be one of {', '.join(matches or devices)}; got {name!r}; another device needs its "
        "--data-sheet and --like"
    )


_VENDORS = ("nvidia", "geforce", "amd", "instinct", "apple")


def _names(name: str) -> list[str]:
    """Return a name as one word of small letters, its first words, and its last ones if they have four letters.

    >>> _names("RTX PRO 6000")
    ['rtxpro6000', 'rtxpro', 'rtx', 'pro6000', '6000']
    """
    words = [word for word in re.split(r"[\s_-]+", name.strip().casefold()) if word not in _VENDORS]
    counts = range(1, len(words))
    lasts = ("".join(words[count:]) for count in counts)
    firsts = ("".join(words[:-count]) for count in counts)
    return ["".join(words), *firsts, *(last for last in lasts if len(last) > 3)]


def own_hardware(name: str, *, bandwidth: float, flops: float, like: Hardware) -> Hardware:
    """Return a device with the user's own figures; cache and multiprocessors, which no cost depends on, as of `like`.

    Args:
        name: its name.
        bandwidth: B/s of device memory.
        flops: FLOP/s, dense bf16 with fp32 accumulation.
        like: the most similar device.

    Raises:
        CostError: names the figure that is wrong.

    >>> own_hardware("mine", bandwidth=1e12, flops=1e14, like=find_hardware("h100")).generation
    'like Hopper'
    """
    generation = f"like {like.generation}"
    source = f"given by the user; l2_bytes and multiprocessors of {like.name}"
    sizes = (like.l2_bytes, like.multiprocessors)
    return checked(Hardware(name, generation, flops, bandwidth, *sizes, source))


def checked(device: Hardware) -> Hardware:
    """Return a device after checking its figures.

    Raises:
        CostError: names the first field that is wrong.
    """
    try:
        return read_record(asdict(device), Hardware)
    except RecordError as error:
        raise CostError(str(error)) from error


SAME_CLASS_ERROR = 0.10  # products: H100's constants err by 7 % (H200) and 9 % (B200) in the median
ACROSS_CLASS_ERROR = 0.25  # by 20 to 22 % on A100; other simulators report 13 to 16 % end to end
FEW_ROWS = 64  # rows up to which the errors are those
ROWS_ERROR = 0.015  # for each doubling beyond them; see `stated_error`
DEVICES_ERROR = 0.10  # of several devices: 140 speedups on four H200 err by 5 % in the mean, plain steps by 10 and 12 %
EXPERTS_ERROR = 0.15  # 105 SpecBundle speedups of Qwen3-30B and 235B: docs/results/engines_published.md
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
            f"{', '.join(dict.fromkeys(known.generation for known in load_hardware().values() if known.fitted))}; "
            "say which device it is like (--like)"
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


def stated_error(device: Hardware, rows: int, *, experts: bool = False, devices: int = 1) -> float:
    """Return the stated error of forwards of `rows` rows, 95 %, as a share; the parts add in squares.

    * 10 %: the constants are those of the device or its class.
    * 25 %: a constant comes from another class, or from timings whose weights were cached.
    * 1.5 % for each doubling of the rows beyond 64: 48 speedups of the loop on an H200 err alike with up to 64 rows,
      512, and 4,096 (docs/results/gpu.md), but kernels of other libraries change with rows in other places.
    * 10 %: several devices.
    * 15 %: the model has experts.
    """
    fitted = device.fitted or _fitted_in(device.generation)
    sure = fitted is not None and fitted.kv_bandwidth_share is not None and not fitted.weights_cached
    of_class = SAME_CLASS_ERROR if sure else ACROSS_CLASS_ERROR
    of_rows = ROWS_ERROR * math.log2(max(rows, FEW_ROWS) / FEW_ROWS)
    parts = (of_class + of_rows, DEVICES_ERROR if devices > 1 else 0.0, EXPERTS_ERROR if experts else 0.0)
    return math.hypot(*parts)


def _fitted_in(generation: str) -> Fitted | None:
    """Return the constants of the first shipped device of a class that has any."""
    devices = load_hardware().values()
    return next((entry.fitted for entry in devices if entry.generation == generation and entry.fitted), None)
