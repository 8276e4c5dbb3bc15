"""Constants fitted to operator timings: which of them apply to a device, and the error of times made from them."""

from dataclasses import replace

from simulate.roofline.data_sheets import Fitted, Hardware, load_hardware
from treeopt.errors import CostError

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
