import dataclasses
import math

import pytest

from outlay.analysis.cost.links import (
    NETWORK_SHARE,
    RING_SHARE,
    SWITCH_SHARE,
    TORUS_SHARE,
    Location,
    collective_seconds,
    locations_of,
)
from outlay.devices.measured import CollectiveCost, Measured
from outlay.devices.mesh_info import MeshInfo
from outlay.devices.target import Target

GB = 1e9
FLOOR, FAR_FLOOR = 42e-6, 300e-6  # seconds of the shortest collective of GPUs in a host, and over hosts
FAST, SLOW = 450e9 * RING_SHARE, 50e9 * NETWORK_SHARE  # bytes/s of an H100 that are reached


def seconds(kind, payload, groups, target, **options):
    return collective_seconds(kind, payload, groups, Target.parse(target), **options)


def whole(waiting, moving):
    return pytest.approx(waiting + moving + math.sqrt(waiting * moving))


@pytest.mark.parametrize(
    ("kind", "moving"),
    [
        ("all-gather", 7 / 8 * GB / FAST),
        ("reduce-scatter", 7 / 8 * GB / FAST),
        ("all-to-all", 7 / 8 * GB / FAST),
        ("collective-broadcast", GB / FAST),
    ],
)
def test_inside_a_host(kind, moving):
    assert seconds(kind, GB, [range(8)], "h100:1x8") == whole(FLOOR, moving)


def test_switches_add_up_where_there_are_devices_enough():
    ring, switches = 2 * 7 / 8 * GB / FAST, 9 / 8 * GB / (450e9 * SWITCH_SHARE)
    assert switches < ring
    assert seconds("all-reduce", GB, [range(8)], "h100:1x8") == whole(FLOOR, switches)
    assert seconds("all-reduce", GB, [range(4)], "h100:1x8") == whole(FLOOR, 2 * 3 / 4 * GB / FAST)
    assert seconds("all-reduce", GB, [range(8)], "a100-80gb:1x8") == whole(FLOOR, 2 * 7 / 8 * GB / (300e9 * RING_SHARE))


def test_links_by_pair_are_shared_by_none():
    assert seconds("all-gather", GB, [range(2)], "mi300x:1x8") == whole(FLOOR, GB / 2 / (64e9 * RING_SHARE))
    assert seconds("all-gather", GB, [range(8)], "mi300x:1x8") == whole(FLOOR, 7 / 8 * GB / (448e9 * RING_SHARE))


def test_a_permutation_is_one_step():
    ring = [(i, (i + 1) % 8) for i in range(8)]
    assert seconds("collective-permute", GB, ring, "h100:1x8") == whole(FLOOR, GB / FAST)
    assert seconds("collective-permute", GB, [(0, 8)], "h100:2x8") == whole(FLOOR, GB / SLOW)


@pytest.mark.parametrize("target", ["tpu-v5e:2x2", "tpu-ironwood:2x1x1", "h100:1x4"])
def test_a_permutation_onto_itself_costs_nothing(target):
    assert seconds("collective-permute", GB, [(0, 0), (3, 3)], target) == 0
    some = seconds("collective-permute", GB, [(0, 0), (1, 2), (2, 1), (3, 3)], target)
    assert some == seconds("collective-permute", GB, [(1, 2), (2, 1)], target) > 0


def test_the_two_devices_of_a_chip_exchange():
    assert seconds("all-gather", GB, [(0, 1)], "tpu-ironwood:2x2x1") > 0


def test_a_small_sum_takes_as_long_as_any():
    assert seconds("all-reduce", 8, [range(8)], "h100:1x8") == pytest.approx(FLOOR, rel=1e-2)
    assert seconds("all-reduce", 8, [range(32)], "h100:4x8") == pytest.approx(FAR_FLOOR, rel=1e-2)


def test_steps_count_where_they_are_many():
    every_step = 64 * 7 * 2e-6 + 63 * 8e-6
    assert seconds("all-gather", 8, [range(512)], "h100:64x8") == pytest.approx(every_step, rel=0.1)


def test_over_hosts_the_ring_is_as_fast_as_its_slowest_part():
    everybody = [range(32)]
    assert 8 * SLOW > FAST, "here the links inside are slower than eight network cards"
    gathered = whole(FAR_FLOOR, 31 / 32 * GB / FAST)
    assert seconds("all-gather", GB, everybody, "h100:4x8") == gathered
    assert seconds("reduce-scatter", GB, everybody, "h100:4x8") == gathered
    assert seconds("all-reduce", GB, everybody, "h100:4x8") == whole(FAR_FLOOR, 2 * 31 / 32 * GB / FAST)
    four_cards = whole(FAR_FLOOR, 7 / 8 * GB / (4 * SLOW))
    assert seconds("all-gather", GB, [range(8)], "h100:2x4") == four_cards
    assert seconds("all-to-all", GB, everybody, "h100:4x8") == whole(FAR_FLOOR, 3 / 4 * GB / SLOW)


def test_a_slower_network_is_felt():
    fast, slow = (seconds("all-gather", GB, [range(32)], target) for target in ("h100:4x8", "h100-a3:4x8"))
    assert slow > 3 * fast


def test_groups_of_one_device_a_host_use_the_network_alone():
    columns = [range(i, 32, 8) for i in range(8)]
    assert seconds("all-gather", GB, columns, "h100:4x8") == whole(FAR_FLOOR, 3 / 4 * GB / SLOW)
    rows = [range(i, i + 8) for i in range(0, 32, 8)]
    assert seconds("all-gather", GB, rows, "h100:4x8") == whole(FLOOR, 7 / 8 * GB / FAST)


def test_where_devices_stand_decides_not_their_position():
    strided = [Location(i % 4) for i in range(32)]
    rows = [range(0, 32, 4)]
    assert seconds("all-gather", GB, rows, "h100:4x8", locations=strided) == whole(FLOOR, 7 / 8 * GB / FAST)


def test_a_domain_of_72_is_one_host():
    assert seconds("all-gather", GB, [range(72)], "gb200:1x72") < seconds("all-gather", GB, [range(72)], "b200:9x8")


def test_a_group_of_one_and_nothing_to_send_cost_nothing():
    assert seconds("all-reduce", GB, [(0,), (1,)], "h100:1x8") == 0
    assert seconds("all-reduce", 0, [range(8)], "h100:1x8") == 0
    assert seconds("all-reduce", GB, [], "h100:1x8") == 0


def test_a_torus_gives_each_dim_its_share_of_the_links():
    hop, both = 1e-6, 180e9 * TORUS_SHARE
    row, everybody = [range(16)], [range(256)]
    assert seconds("all-gather", GB, row, "tpu-v5e:16x16") == whole(15 * hop, 15 / 16 * GB / (both / 2))
    assert seconds("all-gather", GB, everybody, "tpu-v5e:16x16") == whole(30 * hop, 255 / 256 * GB / both)
    # Of a ring of 16, each byte of an all-to-all passes four links on average, both ways at once.
    assert seconds("all-to-all", GB, row, "tpu-v5e:16x16") == whole(15 * hop, 4 * GB / (both / 2))


def test_part_of_a_torus_has_an_end_and_goes_one_way():
    half = seconds("all-gather", GB, [range(4)], "tpu-v5e:4x4")
    assert half == whole(3e-6, 3 / 4 * GB / (180e9 * TORUS_SHARE / 2 / 2))


def test_slices_are_joined_by_the_network():
    everybody = seconds("all-gather", GB, [range(512)], "tpu-v5e:16x16*2")
    inside = seconds("all-gather", GB, [range(256)], "tpu-v5e:16x16")
    across, waiting = GB / 256 / 2 / (3.125e9 * NETWORK_SHARE), 25e-6
    assert everybody == pytest.approx(inside + across + waiting + math.sqrt(across * waiting))


def test_more_bytes_and_more_devices_never_cost_less():
    for kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-broadcast"):
        for target in ("h100:8x8", "tpu-v5p:4x4x4", "cpu:64"):
            by_bytes = [seconds(kind, 4.0**k, [range(64)], target) for k in range(14)]
            assert by_bytes == sorted(by_bytes), (target, kind)
        # Of a torus a whole ring is faster than half of it, and the switches of an H100 add up for five or more.
        for target in ("a100-80gb:8x8", "cpu:64"):
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
    assert [location.island for location in locations_of(Target.parse("h100:2x4"))] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert locations_of(Target.parse("tpu-v5e:2x2*2"))[5] == Location(1, (0, 1))


def test_a_mesh_of_the_target_says_where_its_devices_stand():
    target = Target.parse("h100:2x2")
    mesh = MeshInfo((("data", 4),), (0, 2, 1, 3), (0, 1, 0, 1), "compile-only", "gpu", str(target))
    assert [location.island for location in locations_of(target, mesh)] == [0, 1, 0, 1]
    simulated = dataclasses.replace(mesh, kind="simulated", hosts=(0,) * 4, target="")
    assert [location.island for location in locations_of(target, simulated)] == [0, 0, 1, 1]
