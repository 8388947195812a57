import dataclasses

import pytest

from outlay.meshes.info import MeshInfo
from outlay.meshes.measured import CollectiveCost, Measured
from outlay.meshes.target import Target
from outlay.report.estimate.links import collective_seconds
from outlay.report.estimate.places import Place, places_of

GB = 1e9
STEP, FAR = 2e-6, 8e-6  # seconds a step inside a host of GPUs, and between hosts
INSIDE, ACROSS = 450e9, 50e9  # bytes/s of an H100


def seconds(kind, payload, groups, target, **options):
    return collective_seconds(kind, payload, groups, Target.parse(target), **options)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("all-gather", 7 * STEP + 7 / 8 * GB / INSIDE),
        ("reduce-scatter", 7 * STEP + 7 / 8 * GB / INSIDE),
        ("all-reduce", 14 * STEP + 14 / 8 * GB / INSIDE),
        ("all-to-all", 7 * STEP + 7 / 8 * GB / INSIDE),
        ("collective-broadcast", 3 * STEP + GB / INSIDE),
    ],
)
def test_inside_a_host(kind, expected):
    assert seconds(kind, GB, [range(8)], "h100:1x8") == pytest.approx(expected)


def test_a_permutation_is_one_step():
    ring = [(i, (i + 1) % 8) for i in range(8)]
    assert seconds("collective-permute", GB, ring, "h100:1x8") == pytest.approx(STEP + GB / INSIDE)
    assert seconds("collective-permute", GB, [(0, 8)], "h100:2x8") == pytest.approx(FAR + GB / ACROSS)


def test_a_small_sum_goes_by_a_tree():
    assert seconds("all-reduce", 8, [range(8)], "h100:1x8") == pytest.approx(2 * 3 * STEP, rel=1e-3)


def test_across_hosts_only_a_share_crosses_the_network():
    everybody, h, m = [range(32)], 4, 8
    inside = (m - 1) * STEP + (m - 1) / m * GB / INSIDE
    gathered = inside + (h - 1) * FAR + (h - 1) / h * GB / m / ACROSS
    assert seconds("all-gather", GB, everybody, "h100:4x8") == pytest.approx(gathered)
    assert seconds("reduce-scatter", GB, everybody, "h100:4x8") == pytest.approx(gathered)
    summed = 2 * inside + 2 * (h - 1) * FAR + 2 * (h - 1) / h * GB / m / ACROSS
    assert seconds("all-reduce", GB, everybody, "h100:4x8") == pytest.approx(summed)
    exchanged = (h - 1) * FAR + (h - 1) / h * GB / ACROSS
    assert seconds("all-to-all", GB, everybody, "h100:4x8") == pytest.approx(exchanged)


def test_groups_of_one_device_a_host_use_the_network_alone():
    columns = [range(i, 32, 8) for i in range(8)]
    assert seconds("all-gather", GB, columns, "h100:4x8") == pytest.approx(3 * FAR + 3 / 4 * GB / ACROSS)
    rows = [range(i, i + 8) for i in range(0, 32, 8)]
    assert seconds("all-gather", GB, rows, "h100:4x8") == pytest.approx(7 * STEP + 7 / 8 * GB / INSIDE)


def test_where_devices_stand_decides_not_their_position():
    strided = [Place(i % 4) for i in range(32)]
    rows = [range(0, 32, 4)]
    assert seconds("all-gather", GB, rows, "h100:4x8", places=strided) == pytest.approx(7 * STEP + 7 / 8 * GB / INSIDE)


def test_a_group_of_one_and_nothing_to_send_cost_nothing():
    assert seconds("all-reduce", GB, [(0,), (1,)], "h100:1x8") == 0
    assert seconds("all-reduce", 0, [range(8)], "h100:1x8") == 0
    assert seconds("all-reduce", GB, [], "h100:1x8") == 0


def test_a_torus_gives_each_dim_its_share_of_the_links():
    hop, both = 1e-6, 100e9
    row, everybody = [range(16)], [range(256)]
    assert seconds("all-gather", GB, row, "tpu-v5e:16x16") == pytest.approx(15 * hop + 15 / 16 * GB / (both / 2))
    all_of_it = 30 * hop + 255 / 256 * GB / both
    assert seconds("all-gather", GB, everybody, "tpu-v5e:16x16") == pytest.approx(all_of_it)
    # Of a ring of 16, each byte of an all-to-all passes four links on average, both ways at once.
    assert seconds("all-to-all", GB, row, "tpu-v5e:16x16") == pytest.approx(15 * hop + 4 * GB / (both / 2))


def test_part_of_a_torus_has_an_end_and_goes_one_way():
    half = seconds("all-gather", GB, [range(4)], "tpu-v5e:4x4")
    assert half == pytest.approx(3e-6 + 3 / 4 * GB / (100e9 / 2 / 2))


def test_slices_are_joined_by_the_network():
    everybody = seconds("all-gather", GB, [range(512)], "tpu-v5e:16x16*2")
    inside = 30e-6 + 255 / 256 * GB / 100e9
    assert everybody == pytest.approx(inside + 25e-6 + GB / 256 / 2 / 3.125e9)


def test_more_bytes_and_more_devices_never_cost_less():
    for kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-broadcast"):
        for target in ("h100:8x8", "tpu-v5p:4x4x4", "cpu:64"):
            by_bytes = [seconds(kind, 4.0**k, [range(64)], target) for k in range(14)]
            assert by_bytes == sorted(by_bytes), (target, kind)
        for target in ("h100:8x8", "cpu:64"):  # of a torus a whole ring is faster than half of it
            by_size = [seconds(kind, 1e8, [range(2**k)], target) for k in range(7)]
            assert by_size == sorted(by_size), (target, kind)


MEASURED = Measured(
    num_devices=8,
    seconds_per_step=1e-3,
    seconds_per_operation=1e-5,
    across_rows={64: 1e9, 4096: 1e8},
    collectives={
        "all-reduce": {2: CollectiveCost(1e-4, 1e9), 8: CollectiveCost(3e-4, 0.5e9)},
        "collective-permute": {2: CollectiveCost(1e-4, 1e9), 8: CollectiveCost(5e-4, 1e9)},
    },
)


def measured_target(num_devices=8):
    cpu = Target.parse(f"cpu:{num_devices}")
    return dataclasses.replace(cpu, hardware=dataclasses.replace(cpu.hardware, measured=MEASURED))


def test_measured_collectives_come_before_formulas():
    target = measured_target()
    assert collective_seconds("all-reduce", 1e6, [(0, 1)], target) == pytest.approx(1e-4 + 1e-3)
    assert collective_seconds("all-reduce", 1e6, [range(8)], target) == pytest.approx(3e-4 + 2e-3)
    # 4 is half of the way from 2 to 8, in doublings.
    assert collective_seconds("all-reduce", 1e6, [range(4)], target) == pytest.approx((1.1e-3 + 2.3e-3) / 2)
    ring = [(i, (i + 1) % 8) for i in range(8)]
    assert collective_seconds("collective-permute", 1e6, ring, target) == pytest.approx(5e-4 + 1e-3)
    by_formula = collective_seconds("all-gather", 1e6, [range(8)], target)
    assert by_formula == collective_seconds("all-gather", 1e6, [range(8)], Target.parse("cpu:8"))


def test_more_simulated_devices_than_were_measured_share_the_machine():
    twice = collective_seconds("all-reduce", 1e6, [range(8)], measured_target(16))
    assert twice == pytest.approx(2 * (3e-4 + 2e-3))


def test_what_was_measured_in_one_host_says_nothing_of_the_network():
    one, four = Target.parse("h100:1x8"), Target.parse("h100:4x8")
    measured = dataclasses.replace(one.hardware, measured=MEASURED)
    assert collective_seconds("all-reduce", 1e6, [range(8)], Target(measured, (4, 8))) == pytest.approx(3e-4 + 2e-3)
    everybody = collective_seconds("all-reduce", 1e6, [range(32)], Target(measured, (4, 8)))
    assert everybody == collective_seconds("all-reduce", 1e6, [range(32)], four)


def test_devices_without_a_mesh_stand_in_the_order_of_the_target():
    assert [place.island for place in places_of(Target.parse("h100:2x4"))] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert places_of(Target.parse("tpu-v5e:2x2*2"))[5] == Place(1, (0, 1))


def test_a_mesh_of_the_target_says_where_its_devices_stand():
    target = Target.parse("h100:2x2")
    mesh = MeshInfo((("data", 4),), (0, 2, 1, 3), (0, 1, 0, 1), "compile-only", "gpu", str(target))
    assert [place.island for place in places_of(target, mesh)] == [0, 1, 0, 1]
    simulated = dataclasses.replace(mesh, kind="simulated", hosts=(0,) * 4, target="")
    assert [place.island for place in places_of(target, simulated)] == [0, 0, 1, 1]
