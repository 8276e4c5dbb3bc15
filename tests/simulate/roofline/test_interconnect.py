"""Devices that share every layer: exchanges against timings, a step by hand, memory, and what cannot be shared."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from executor.drafters.eagle import eagle_shape
from executor.drafters.medusa import medusa_shape
from simulate.drafter_kinds import DrafterShape
from simulate.model_sizes.forward_pass import Forward
from simulate.model_sizes.layer_weights_and_kv import Experts
from simulate.model_sizes.model_shape import Shape
from simulate.profiles.profile import BatchTimes, Profile
from simulate.roofline.data_sheets import Link, find_hardware, own_hardware, stated_error
from simulate.roofline.host_overhead import Overheads
from simulate.roofline.roofline_model import Roofline
from simulate.whatif.unmeasured_profiles import transfer
from tests.simulate.model_sizes.test_hf_config import QWEN_25_7B
from tests.simulate.roofline.test_roofline_model import L3, SMALL, TOY, roofline
from tests.simulate.test_device_memory import memory, sequence, weights
from treeopt.cost_model import StepShape
from treeopt.errors import CostError
from treeopt.tree import Tree

SIZES = [2**power for power in range(14, 23)]  # bytes
# Microseconds of vLLM 0.20's all-reduces in CUDA graphs, AIConfigurator (custom_allreduce_perf, sizes there in elements
# of two bytes: by bytes large ones would reach half of what nccl-tests do)
TIMINGS = {
    "A100-80 SXM": {
        2: [5.27, 5.50, 5.55, 5.81, 6.44, 7.89, 10.67, 15.14, 25.65],
        4: [5.93, 5.93, 6.45, 7.76, 10.21, 14.53, 18.10, 26.15, 41.59],
        8: [6.83, 6.95, 8.30, 11.03, 17.14, 19.52, 21.51, 28.25, 45.48],
    },
    "H100 SXM": {
        2: [4.50, 4.45, 4.54, 4.76, 5.22, 6.36, 8.41, 12.39, 20.19],
        4: [4.91, 4.91, 5.26, 5.82, 7.13, 11.19, 12.71, 18.48, 30.40],
        8: [5.22, 5.52, 6.32, 7.80, 11.49, 12.27, 15.01, 19.27, 30.71],
    },
    "H200": {
        2: [4.55, 4.55, 4.72, 4.80, 5.13, 6.32, 8.35, 12.47, 20.33],
        4: [4.77, 4.92, 5.32, 5.84, 7.02, 10.52, 11.99, 17.69, 29.86],
        8: [5.27, 5.71, 6.52, 8.00, 9.92, 11.04, 14.08, 18.38, 28.74],
    },
    "B200": {
        2: [7.38, 7.37, 7.31, 7.77, 7.82, 9.81, 13.47, 25.70, 33.97],
        4: [7.57, 7.45, 7.75, 8.22, 8.62, 18.15, 18.46, 23.74, 29.78],
        8: [8.18, 8.28, 8.64, 9.46, 25.40, 25.49, 16.56, 19.94, 26.05],
    },
}
LARGE = Shape(layers=80, hidden=8192, intermediate=28672, heads=64, kv_heads=8, head_dim=128, vocab=128256)
# By hand: next to nothing takes 1 ms, half of 4e6 B/s is reached, the second round takes 2 ms more.
WIRE = Link(4e6, 1e-3, 0.5, 2e-3, "made up")
PAIR = replace(TOY, link=WIRE)


@pytest.mark.parametrize(
    ("device", "most"), [("A100-80 SXM", 0.17), ("H100 SXM", 0.15), ("H200", 0.15), ("B200", 0.52)]
)
def test_exchanges_take_what_was_measured(device, most):
    link = find_hardware(device).link
    errors = [
        np.abs(link.sum_s(SIZES, devices=devices) * 1e6 / np.array(measured) - 1)
        for devices, measured in TIMINGS[device].items()
    ]
    assert np.median(errors) < 0.07
    assert np.max(errors) < most


def test_who_has_a_link_is_told():
    with pytest.raises(CostError, match="L40S: the speed of its interconnect is not known, only that of A100-80"):
        roofline(device="l40s", devices=2)
    for count in (0, 9):
        with pytest.raises(CostError, match=f"devices must be 1 to 8, those of one node, got {count}"):
            roofline(devices=count)
    with pytest.raises(CostError, match="8 devices cannot share 28 query heads and 4"):
        roofline(Shape.from_config(QWEN_25_7B), devices=8)
    mine = own_hardware("mine", bandwidth=1e12, flops=1e14, like=find_hardware("h100"))
    with pytest.raises(CostError, match="mine: the speed of its interconnect is not known"):
        Roofline(L3, eagle_shape(L3), mine, like=find_hardware("h100"), devices=2)


def test_a_plain_step_of_two_devices_by_hand():
    """Half of every matrix, head and key; two sums of 8 numbers a token and layer, and the logits' halves."""
    products = [(2, 8, 8), (2, 4, 8), (2, 16, 8), (2, 4, 16), (1, 16, 8)]
    due = 0.0
    for copies, outputs, inputs in products:
        moved = 2 * outputs * inputs + 2 * 3 * (outputs + inputs)
        due += copies * (1e-3 + ((moved / 1e6) ** 3 + (2 * outputs * inputs * 16 / 1e7) ** 3) ** (1 / 3))
        due += copies * 2 * 2 * 3 * (outputs + inputs) / 1e6
    due += 2 * 3 * 16 * 2 / 1e6
    read = 2 * 2 * 1 * 2 * 2 * 11 + 2 * 2 * 1
    due += 3 * (read / 5e5 + 4 * 2 * 2 * 2 * 11 / 1e7)
    due += 4 * (1e-3 + 3 * 8 * 2 / 2e6) + 1e-3 + 3 * 32 * 2 / 2 / 2e6
    cost = roofline(SMALL, device=PAIR, context=10, overheads=Overheads.none(), devices=2)
    assert cost.plain_s(batch=3) == pytest.approx(due, rel=1e-12)
    assert cost.label == "2 x toy"
    assert cost.meta["device"] == "2 x toy"
    assert cost.meta["link"] == asdict(WIRE)


MIXTURE = replace(SMALL, experts=Experts(count=4, active=2))


def test_a_plain_step_with_experts_on_two_devices_by_hand():
    """Three sequences, two on the busier device; each holds two experts of four, of which three tokens need 3.5."""
    due = 0.0
    for copies, outputs, inputs, rows, matrices in (
        *[(2, 16, 8, 2, 1), (2, 8, 8, 2, 1), (2, 4, 8, 2, 1), (1, 32, 8, 2, 1)],
        *[(2, 32, 8, 3, 1.75), (2, 8, 16, 3, 1.75)],
    ):
        moved = 2 * matrices * outputs * inputs + 2 * rows * (outputs + inputs)
        due += copies * (1e-3 + ((moved / 1e6) ** 3 + (2 * outputs * inputs * 16 / 1e7) ** 3) ** (1 / 3))
        due += copies * 2 * 2 * rows * (outputs + inputs) / 1e6
    due += 2 * 2 * 32 * 2 / 1e6
    read = 2 * 2 * 2 * 2 * 2 * 11 + 2 * 2 * 1
    due += 2 * (read / 5e5 + 4 * 4 * 2 * 2 * 11 / 1e7)
    due += 4 * (1e-3 + 1.5 * 2 * 8 * 2 / 2 / 2e6)  # to 1.5 of two devices and back, half of it over the wire
    cost = roofline(MIXTURE, device=PAIR, context=10, overheads=Overheads.none(), devices=2, tensor=1)
    assert cost.plain_s(batch=3) == pytest.approx(due, rel=1e-12)
    assert cost.label == "2 x toy tp1ep2"


def test_whole_experts_take_as_many_bytes_as_their_parts():
    """By weights alone; and memory: two groups hold all but the experts twice, and twice the sequences."""
    free = replace(PAIR, link=replace(WIRE, bandwidth=1e30, latency_s=0.0, second_s=0.0))
    how = {"device": free, "overheads": Overheads.none(), "devices": 2}
    parts, whole, apart = (roofline(MIXTURE, **how, tensor=tensor) for tensor in (0, 2, 1))
    assert whole.plain_s(batch=4) == pytest.approx(parts.plain_s(batch=4), rel=0.1)
    assert memory(whole).weights == memory(parts).weights
    experts = MIXTURE.weight_bytes(2) - MIXTURE.weight_bytes(2, experts=0)
    assert 2 * memory(apart).weights - experts == 2 * (2 * memory(parts).weights - experts)
    assert memory(apart).sequence == 2 * memory(parts).sequence
    assert replace(memory(apart), total=1e4, share=1.0).batch() % 2 == 0
    for shape, tensor in ((SMALL, 1), (MIXTURE, 3)):
        with pytest.raises(CostError, match="experts can be spread over devices in equal groups"):
            roofline(shape, device=PAIR, devices=2, tensor=tensor)


@pytest.mark.parametrize("drafter", [eagle_shape(L3), medusa_shape(L3), DrafterShape(Forward.of(L3))])
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_a_wire_without_end_divides_the_work(drafter, devices):
    """With nothing but bytes and FLOP of large matrices, n devices take an n-th; what all compute wholly, as ever."""
    h100 = find_hardware("h100")
    free = replace(
        h100,
        fitted=replace(h100.fitted, gemm_overhead_s=0.0),
        link=Link(1e30, 0.0, 1.0, 0.0, "made up"),
    )
    one, several = (Roofline(L3, drafter, free, overheads=Overheads.none(), devices=count) for count in (1, devices))
    assert several.plain_s(batch=4) == pytest.approx(one.plain_s(batch=4) / devices, rel=0.02)
    tree = StepShape.of(Tree.chain(3), batch=4)
    (all_s,), (part_s,) = one.step_s([tree]), several.step_s([tree])
    assert all_s / devices < part_s * 1.001
    assert part_s < 1.1 * all_s / devices + (0 if drafter.level.whole == () else 3e-4)
    assert weights(several, heads=4) < weights(one, heads=4) * (1 / devices + 0.02)
    assert sequence(several) == sequence(one) / devices


def test_keys_and_values_go_round_as_far_as_their_heads():
    """Two heads of keys and values on four devices: each device holds one of them."""
    whole = Forward.of(SMALL)
    assert [whole.shared(count).attention[0][1].kv_heads for count in (1, 2, 4)] == [2, 1, 1]
    assert whole.shared(1) is whole
    assert [whole.shared(count).attention[0][1].heads for count in (1, 2, 4)] == [4, 2, 1]
    with pytest.raises(CostError, match="3 devices cannot share 4 query heads and 2"):
        whole.shared(3)


def test_times_of_several_devices_are_carried_over_with_the_error_of_several():
    there = replace(PAIR, name="other", bandwidth=4e6)
    cost = roofline(device=PAIR, devices=2)
    rest = cost.verify([1, 17], batch=1, context=512).total_s
    times = BatchTimes(1, cost.plain_s(batch=1), ((1, 1.0),), ((1, rest[0]), (17, rest[1])))
    there = roofline(device=there, devices=2)
    found = transfer(Profile((times,), (512, 512), 0.03), measured_on=cost, to=there, context=512)
    assert found.relative_error == pytest.approx(np.hypot(0.03, 0.25))
    told = found.meta["transfer"]
    assert (told["from"], told["to"], told["relative_error"]) == ("2 x toy", "2 x other", 0.25)
    with pytest.raises(CostError, match="times of toy cannot be carried over to 2 x toy: their exchange between"):
        transfer(None, measured_on=roofline(device=PAIR), to=cost, context=512)


# Tokens of context in the mean and milliseconds between tokens of one request, Llama-3.3-70B in fp8 on 2 x H100, NIM
# 1.8.0: 5000 tokens in and 500 out, 500 in and 2000 out (docs.nvidia.com/nim/benchmarking/llm/1.0.0/performance)
MEASURED = [(5250, 18.58), (1500, 18.91)]


@pytest.mark.parametrize(("context", "measured_ms"), MEASURED)
def test_measured_plain_steps_of_two_devices_are_within_the_stated_error(context, measured_ms):
    cost = roofline(LARGE, eagle_shape(LARGE), devices=2, weight_bytes=1.0, context=context)
    predicted_ms = 1e3 * cost.plain_s(batch=1)
    assert predicted_ms == pytest.approx(measured_ms, rel=0.13)
    assert predicted_ms < measured_ms
    assert stated_error(cost.device, 2, devices=2) == pytest.approx(np.hypot(0.1, 0.1))
