import dataclasses
import json

import pytest

from outlay.meshes.measured import CollectiveCost, Measured
from outlay.meshes.target import Target
from outlay.report.estimate.links import collective_seconds
from outlay.report.estimate.price import price
from outlay.report.estimate.speeds import product_speed
from outlay.report.hlo.collective import HloCollective
from outlay.report.hlo.module import Instruction
from outlay.report.work.compiled import CompiledWork, Operation
from outlay.report.work.traffic import AcrossRows

H100 = Target.parse("h100:1x8")
PEAK, MEMORY = 989e12, 3352.32e9


def product(flops, num_bytes=0, dtype="bfloat16", runs=1):
    return Operation("dot", flops, dtype, num_bytes, (), runs)


def moves(num_bytes, across_rows=(), runs=1):
    return Operation("add", 0.0, "", num_bytes, across_rows, runs)


def all_reduce(num_bytes, *, is_async=False, count=1):
    instruction = Instruction("all-reduce.1", "all-reduce", (), ())
    return HloCollective(
        "all-reduce", instruction, "main", (tuple(range(8)),), num_bytes, num_bytes, "f32", count, True, is_async
    )


def priced(*operations, collectives=(), target=H100, unknown=()):
    return price(CompiledWork(operations, unknown), collectives, target)


def test_products_take_40_to_80_percent_of_the_peak():
    found = priced(product(989e9), product(989e9, runs=3))
    assert (found.compute.low, found.compute.high) == pytest.approx((4e-3 / 0.8, 4e-3 / 0.4))
    assert found.flops == 4 * 989e9
    assert found.dominated_by == "compute"
    assert found.seconds_low == found.compute.low
    assert found.seconds_high == pytest.approx(found.compute.high + 4 * 2e-6)


def test_at_best_a_product_hides_its_traffic_and_at_worst_it_does_not():
    hidden, bare = product(989e9, num_bytes=3_352_320), moves(3_352_320_000)
    found = priced(hidden, bare)
    assert found.memory.low == pytest.approx(1e-3 / 0.9)
    assert found.memory.high == pytest.approx(1.001e-3 / 0.6)
    starved = priced(product(989e6, num_bytes=3_352_320_000))
    assert starved.compute.low + starved.memory.low == pytest.approx(1e-3 / 0.9)
    assert starved.dominated_by == "memory"


def test_collectives_that_run_behind_the_computation_are_hidden_at_best():
    once = collective_seconds("all-reduce", 45_000_000, [range(8)], H100)
    work = product(989e9 * 0.8)
    behind = priced(work, collectives=[all_reduce(45_000_000, is_async=True, count=2)])
    between = priced(work, collectives=[all_reduce(45_000_000, count=2)])
    assert behind.communication == between.communication
    assert behind.communication.low == pytest.approx(2 * once / 1.25)
    assert behind.seconds_low == pytest.approx(1e-3)
    assert between.seconds_low == pytest.approx(1e-3 + 2 * once / 1.25)
    assert behind.seconds_high == pytest.approx(2e-3 + 2 * once / 0.8 + 3 * 2e-6)
    longer = priced(work, collectives=[all_reduce(45_000_000_000, is_async=True)])
    assert longer.seconds_low == pytest.approx(longer.communication.low)
    assert longer.dominated_by == "communication"


def test_collectives_are_added_up_by_kind_and_axes():
    mesh = (("data", 8),)
    found = price(CompiledWork((), ()), [all_reduce(8_000_000), all_reduce(1000, count=5)], H100, mesh_axes=mesh)
    (only,) = found.transfers
    assert (only.kind, only.axes, only.group_size, only.num_runs) == ("all-reduce", ("data",), 8, 6)
    assert only.payload_bytes == 8_005_000


@pytest.mark.parametrize(
    ("target", "dtype", "speed"),
    [
        ("h100:1x8", "float32", 494e12),
        ("h100:1x8", "float32-highest", 66.9e12),
        ("h100:1x8", "float64", 66.9e12 / 2),
        ("h100:1x8", "int8", 989e12),
        ("v100-16gb:1x4", "float32", 15.7e12),
        ("v100-16gb:1x4", "bfloat16", 125e12),
        ("tpu-v5e:4x4", "float32", 197e12),
        ("tpu-v5e:4x4", "float32-highest", 197e12 / 6),
        ("tpu-v5e:4x4", "int8", 394e12),
    ],
)
def test_the_speed_of_a_dtype(target, dtype, speed):
    assert product_speed(Target.parse(target).hardware, dtype)[0] == pytest.approx(speed)


def test_every_assumption_is_said():
    found = priced(
        product(1e9, dtype="float32"),
        collectives=[all_reduce(8, is_async=True), dataclasses.replace(all_reduce(8), count_is_exact=False)],
        target=Target.parse("h100:4x8"),
        unknown=("custom call my_kernel: FLOPs unknown; not counted",),
    )
    said = "\n".join(found.assumptions)
    for words in (
        "float32 products in tf32",
        "40 to 80 % of 494 TFLOP/s",
        "memory, at 60 to 90 % of 3352 GB/s",
        "80 % of 450 GB/s a device, 2 us a step, no collective under 42 us",
        "between hosts: 97 % of 50 GB/s a device, 8 us a step, nothing under 300 us",
        "all collectives at 80 to 125 % of the speed",
        "1 asynchronous of 2 collectives",
        "my_kernel",
        "1 collective(s) in loops of unknown length",
        "0 to 2 us between operations",
    ):
        assert words in said


def measured_cpu(num_devices):
    cpu = Target.parse(f"cpu:{num_devices}")
    cost = {"all-reduce": {8: CollectiveCost(1e-4, 1e9)}}
    measured = Measured(
        8, seconds_per_step=1e-3, seconds_per_operation=1e-5, across_rows={64: 1e9, 4096: 1e8}, collectives=cost
    )
    hardware = dataclasses.replace(
        cpu.hardware, measured=measured, memory_bandwidth=1e9, peak_flops={"float32": 1e10}, source="calibrated.toml"
    )
    return dataclasses.replace(cpu, hardware=hardware)


def test_measured_speeds_give_a_narrow_range_with_overheads():
    work = (product(1e9, dtype="float32"), moves(10**8))
    found = priced(*work, collectives=[all_reduce(10**6)], target=measured_cpu(8))
    assert found.measured
    assert found.overhead.low == found.overhead.high == pytest.approx(1e-3 + 3e-5)
    assert found.seconds_high / found.seconds_low < 2
    assert found.seconds_low < 0.1 + 0.1 + 1.1e-3 + 1.03e-3 < found.seconds_high
    assert "as measured by outlay calibrate with 8 devices busy (calibrated.toml)" in "\n".join(found.assumptions)
    twice = priced(*work, collectives=[all_reduce(10**6)], target=measured_cpu(16))
    assert twice.seconds == pytest.approx(2 * found.seconds)
    assert "16 simulated devices share this machine: 2 times as slow each" in twice.assumptions


def test_reading_across_rows_costs_what_was_measured():
    turned = dataclasses.replace(moves(10**7), across_rows=(AcrossRows(4 * 10**6, 512),))
    found = priced(turned, target=measured_cpu(8))
    halfway = (1 / 1e9 + 1 / 1e8) / 2  # 512 is halfway from 64 to 4096 in doublings
    assert found.memory.high == pytest.approx((6 * 10**6 / 1e9 + 4 * 10**6 * halfway) / 0.7)
    assert priced(turned).memory == priced(moves(10**7)).memory, "accelerators transpose on the way"


def test_the_middle_is_as_far_from_both_ends():
    found = priced(product(1e12), moves(10**9))
    assert found.seconds / found.seconds_low == pytest.approx(found.seconds_high / found.seconds)


def test_text_json_and_page_say_the_same():
    found = priced(product(989e9), moves(10**9), collectives=[all_reduce(10**8)])
    text = str(found)
    assert text.splitlines()[0].endswith("a step on h100:1x8, dominated by compute")
    data = json.loads(json.dumps(found.to_dict()))
    assert data["seconds_low"] == found.seconds_low
    assert data["compute"] == {"low": found.compute.low, "high": found.compute.high}
    assert data["transfers"][0]["kind"] == "all-reduce"
    page = found.to_html()
    for words in (*found.assumptions, text.splitlines()[0], "all-reduce", "95.4 MiB"):
        assert words in page
        assert words in text


def test_an_empty_program_takes_nothing():
    found = priced()
    assert (found.seconds_low, found.seconds_high) == (0.0, 0.0)
    assert found.to_html()
