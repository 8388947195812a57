"""What a schedule takes on a target: rooflines, lanes, and everything that was assumed."""

import dataclasses
import json
import re
from importlib import resources

import pytest

from outlay.analysis.cost.constants import built_in, constants_of, product_speed
from outlay.analysis.cost.links import collective_seconds
from outlay.analysis.cost.price import price
from outlay.analysis.cost.schedule import Event, Exchange, Schedule
from outlay.core.error_types import ExplainError
from outlay.devices.hardware import known_hardware
from outlay.devices.hardware_file import FAMILIES
from outlay.devices.measured import CollectiveCost, Measured
from outlay.devices.target import Target

H100 = Target.parse("h100:1x8")
PEAK, MEMORY = 989e12, 3352.32e9
ALL = (tuple(range(8)),)
KNOWN = constants_of(H100.hardware)


def product(flops, num_bytes=0, dtype="bfloat16", name="dot", **known):
    return Event("work", name, flops=flops, dtype=dtype, num_bytes=num_bytes, **known)


def moves(num_bytes, across_rows=(), name="add"):
    return Event("work", name, num_bytes=num_bytes, across_rows=across_rows)


def all_reduce(num_bytes, *, is_async=False, runs=1, is_exact=True):
    return Exchange("all-reduce", num_bytes, 0, ("data",), runs, is_exact, is_async)


def schedule(*events, exchanges=(), blocks=None, target=H100, unknown=()):
    blocks = {"main": events, **(blocks or {})}
    return Schedule(str(target), target.num_devices, "main", blocks, tuple(exchanges), (ALL,), (), unknown)


def priced(*events, target=H100, constants=None, **known):
    return price(schedule(*events, target=target, **known), target, constants=constants)


def with_constants(**changes):
    return {**built_in(), "h100": {**built_in()["h100"], **changes}}


def ring(num_bytes):
    return collective_seconds("all-reduce", num_bytes, ALL, H100)


def test_an_operation_takes_what_bounds_it_and_the_parts_add_up():
    by_products, by_memory = product(989e12, 10**9), moves(3_352_320_000, name="copy")
    estimate = priced(by_products, by_memory)
    assert estimate.parts["products"] == pytest.approx(1 / KNOWN.products, rel=0.01)
    assert estimate.parts["memory"] == pytest.approx(1e-3 / KNOWN.memory)
    assert estimate.parts["overhead"] == pytest.approx(2 * KNOWN.operation + KNOWN.step)
    assert estimate.seconds == pytest.approx(sum(estimate.parts.values()))
    assert estimate.dominated_by == "products"
    starved = priced(product(989e6, 3_352_320_000))
    assert starved.parts["products"] == 0
    assert starved.parts["memory"] == pytest.approx(1e-3 / KNOWN.memory)


def test_each_part_of_a_step_has_its_range_and_what_waits_the_wider_one():
    parts = priced(product(1e12), moves(10**9, name="copy"), Event("copy", "fetch", 1, num_bytes=10**8))
    computing = parts.parts["products"] + parts.parts["memory"]
    waiting = parts.parts["host"] + parts.parts["overhead"]
    assert min(computing, waiting) > 0.1 * parts.seconds
    assert parts.seconds == pytest.approx(computing + waiting)
    assert parts.seconds_high == pytest.approx(computing * KNOWN.spread + waiting * KNOWN.spread_waiting)
    assert parts.seconds_low == pytest.approx(computing / KNOWN.spread + waiting / KNOWN.spread_waiting)
    for key in ("h100:1x8", "tpu-v5e:4x4", "mi300x:1x8"):
        known = constants_of(Target.parse(key).hardware)
        assert 1 < known.spread < known.spread_waiting
        assert known.spread**2 <= 1.4


def test_what_is_like_a_chip_reaches_what_that_chip_does_whatever_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTLAY_TARGETS", str(tmp_path / "targets.toml"))
    (tmp_path / "targets.toml").write_text('[our-hopper]\nlike = "h100"\n[h100-of-another-kind]\nlike = "mi300x"\n')
    hopper, other = (constants_of(Target.parse(key).hardware) for key in ("our-hopper:1x8", "h100-of-another-kind:1x8"))
    assert hopper == constants_of(Target.parse("h100:1x8").hardware)
    assert other == constants_of(Target.parse("mi300x:1x8").hardware)
    assert {hardware.family for hardware in known_hardware().values()} - {""} == set(FAMILIES)
    assert set(FAMILIES) == set(built_in()) - {"cpu", "gpu", "tpu", "measured"}


def test_small_products_reach_less():
    """Ironwood multiplies at 2.6 to 956 TFLOP/s from 128^3 to 32768^3; the constants are fitted to these."""
    constants = dataclasses.replace(KNOWN, products=1.0)
    peak = 956e12
    for size, speed in ((256, 18e12), (512, 105e12), (1024, 350e12), (2048, 679e12), (4096, 893e12)):
        alone = 2 * size**3 / peak
        seconds = alone * (1 + (constants.small_product / alone) ** constants.small_power) + 1.6e-6
        assert 2 * size**3 / seconds == pytest.approx(speed, rel=0.2)


def test_a_kernel_of_its_own_is_priced_as_one():
    estimate = priced(product(989e12, kernel="__cudnn$fmhaSoftmax"))
    assert estimate.parts["kernels"] == pytest.approx(1 / KNOWN.kernels, rel=0.01)
    assert "kernels (__cudnn$fmhaSoftmax): 52% of the peak" in estimate.assumptions


def test_constants_are_passed_not_built_in():
    assert priced(product(1e15), constants=with_constants(products=KNOWN.products / 2)).parts[
        "products"
    ] == pytest.approx(2 * priced(product(1e15)).parts["products"], rel=0.01)


def test_what_runs_behind_the_computation_costs_nothing_and_the_rest_is_waited_for():
    exchanges = [all_reduce(45_000_000, is_async=True)]
    start, done = Event("start", "ar", 0), Event("wait", "ar-done", 0)
    long, short = product(PEAK * 1e-3), product(PEAK * 1e-5)
    hidden = priced(start, long, done, exchanges=exchanges)
    assert hidden.parts["communication"] == 0
    assert hidden.hidden == pytest.approx(ring(45_000_000))
    partly = priced(start, short, done, exchanges=exchanges)
    assert 0 < partly.parts["communication"] < ring(45_000_000)
    assert partly.transfers[0].exposed == pytest.approx(partly.parts["communication"])
    nothing_between = priced(start, done, long, exchanges=exchanges)
    assert nothing_between.parts["communication"] == pytest.approx(ring(45_000_000), rel=0.05)
    blocking = priced(Event("exchange", "ar", 0), long, exchanges=exchanges)
    assert blocking.seconds == pytest.approx(nothing_between.seconds, rel=0.01)


def test_where_all_is_waited_for_nothing_is_hidden():
    """Not a trillionth of a second either, which sums of the same times in another order differ by."""
    exchanges = [all_reduce(9_000_000 + 7_777_777 * number) for number in range(12)]
    blocking = [Event("exchange", f"ar{number}", number) for number in range(12)]
    orders = [blocking[number:] + blocking[:number] for number in range(12)]
    assert [priced(*order, product(PEAK * 1e-3), exchanges=exchanges).hidden for order in orders] == [0] * 12


def test_two_exchanges_share_the_links():
    exchanges = [all_reduce(45_000_000, is_async=True)] * 2
    both = [Event("start", "a", 0), Event("start", "b", 1), Event("wait", "a-done", 0), Event("wait", "b-done", 1)]
    assert priced(*both, exchanges=exchanges).parts["communication"] == pytest.approx(2 * ring(45_000_000), rel=0.05)


def test_who_waits_for_the_second_exchange_waits_for_the_first_too():
    exchanges = [
        all_reduce(45_000_000, is_async=True),
        dataclasses.replace(all_reduce(9_000_000, is_async=True), kind="all-gather"),
    ]
    starts = [Event("start", "first", 0), Event("start", "second", 1)]
    waits = [Event("wait", "second-done", 1), product(PEAK * 1e-5), Event("wait", "first-done", 0)]
    estimate = priced(*starts, *waits, exchanges=exchanges)
    exposed = {one.kind: one.exposed for one in estimate.transfers}
    seconds = {one.kind: one.seconds for one in estimate.transfers}
    # Both start before anything is computed; only the second's own start lies behind the first.
    assert exposed["all-reduce"] == pytest.approx(seconds["all-reduce"] - KNOWN.operation)
    assert exposed["all-gather"] == pytest.approx(seconds["all-gather"])
    assert sum(exposed.values()) == pytest.approx(estimate.parts["communication"])


def test_what_the_next_round_waits_for_stands_at_the_exchange_that_began_in_this_one():
    exchanges = [all_reduce(45_000_000, is_async=True, runs=10)]
    body = (product(PEAK * 1e-5), Event("wait", "done", -1), Event("start", "ar", 0))
    estimate = priced(Event("loop", "while", calls=("body",), runs=10), exchanges=exchanges, blocks={"body": body})
    (only,) = estimate.transfers
    assert only.exposed == pytest.approx(estimate.parts["communication"], rel=0.05)


def test_a_loop_runs_its_body_and_what_is_under_way_goes_on_into_the_next_round():
    exchanges = [all_reduce(45_000_000, is_async=True, runs=10)]
    body = (Event("wait", "done", -1), product(PEAK * 1e-5), Event("start", "ar", 0))
    loop = Event("loop", "while", calls=("body", "condition"), runs=10)
    estimate = priced(loop, exchanges=exchanges, blocks={"body": body, "condition": (moves(4, name="less"),)})
    assert estimate.seconds > 9 * ring(45_000_000), "the links are busy all the time"
    assert estimate.parts["communication"] < 10 * ring(45_000_000), "and hide the products of all rounds but one"
    assert estimate.transfers[0].num_runs == 10
    assert estimate.flops == pytest.approx(10 * PEAK * 1e-5)


def test_the_costliest_branch_counts():
    branch = Event("branch", "if", calls=("dear", "cheap"))
    blocks = {"dear": (product(1e15),), "cheap": (product(1e12, name="small"),)}
    assert priced(branch, blocks=blocks).parts["products"] == priced(product(1e15)).parts["products"]


def test_copies_to_the_host_have_a_lane_of_their_own():
    start, done = Event("copy-start", "out", 1, num_bytes=55 * 10**6), Event("copy-wait", "out-done", 1)
    assert priced(start, done).parts["host"] == pytest.approx(1e-3)
    assert priced(start, product(PEAK * 1e-2), done).parts["host"] == 0
    assert "between host and device: 55 GB/s" in priced(start, done).assumptions
    # The target's own number, which a search takes too.
    assert priced(start, done, target=Target.parse("gh200:8x1")).parts["host"] == pytest.approx(55 / 360 * 1e-3)


def test_what_a_tpu_fetches_ahead_costs_only_what_is_waited_for():
    start, done = Event("fetch-start", "prefetch", 1, num_bytes=3_352_320_000), Event("fetch-wait", "fetched", 1)
    assert priced(start, done).parts["memory"] == pytest.approx(1e-3 / KNOWN.memory)
    assert priced(start, product(PEAK * 1e-2), done).parts["memory"] == 0


def test_collectives_are_added_up_by_kind_and_axes():
    events = [Event("exchange", "a", 0), Event("loop", "while", calls=("body",), runs=5)]
    blocks = {"body": (Event("exchange", "b", 1),)}
    (only,) = priced(*events, exchanges=[all_reduce(8_000_000), all_reduce(1000, runs=5)], blocks=blocks).transfers
    assert (only.kind, only.axes, only.group_size, only.num_runs) == ("all-reduce", ("data",), 8, 6)
    assert only.payload_bytes == 8_005_000


def test_saved_facts_are_priced_as_the_program_was():
    made = schedule(product(1e12), Event("exchange", "ar", 0), exchanges=[all_reduce(10**6)])
    read = Schedule.from_dict(json.loads(json.dumps(made.to_dict())))
    assert read == made
    assert price(read) == price(made)
    with pytest.raises(ExplainError, match=r"the program is for 8 devices, but h100:2x8 has 16"):
        price(read, "h100:2x8")
    with pytest.raises(ExplainError, match="the hardware is unknown"):
        price(dataclasses.replace(read, target=""))


def test_a_limit_on_power_slows_products_and_kernels_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTLAY_TARGETS", str(tmp_path / "targets.toml"))
    (tmp_path / "targets.toml").write_text('[h100-500w]\nlike = "h100"\nwatts = 500\n', encoding="utf-8")
    # So large a product that what small ones lose by not filling the device is nothing.
    made = schedule(product(1e24), Event("exchange", "ar", 0), exchanges=[all_reduce(10**6)])
    rated, limited = price(made, "h100:1x8"), price(made, "h100-500w:1x8")
    slower = {**rated.parts, "products": rated.parts["products"] * (700 / 500) ** (1 / 3)}
    # Waiting for the slowest host, a part of the overhead, is a share of the whole.
    assert {**limited.parts, "overhead": 0} == pytest.approx({**slower, "overhead": 0})
    assert "products and kernels at 89% of the clock, by the target's limit" in limited.assumptions


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
    across = Target.parse("h100:4x8")
    estimate = price(
        dataclasses.replace(
            schedule(
                product(1e9, dtype="float32"),
                exchanges=[all_reduce(8, is_async=True), all_reduce(8, is_exact=False)],
                unknown=("custom call my_kernel: FLOPs unknown; not counted",),
            ),
            num_devices=32,
        ),
        across,
    )
    assumptions = "\n".join(estimate.assumptions)
    for words in (
        "float32 products in tf32",
        "65% of 494 TFLOP/s",
        "memory, at 85% of 3352 GB/s",
        "of 450 GB/s a device",
        "between 4 hosts: 97% of 50 GB/s a device",
        "waiting for the slowest of 4 hosts: 1.3% per doubling of their number",
        "1 of 2 collectives are asynchronous",
        "my_kernel",
        "1 collective in loops of unknown length",
        "2 µs between operations",
        "by a factor of 1.15 each way, and of 1.22 for communication, host, overhead",
    ):
        assert words in assumptions


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


def test_measured_speeds_and_overheads():
    work = (product(1e9, dtype="float32"), moves(10**8))
    estimate = priced(*work, Event("exchange", "ar", 0), exchanges=[all_reduce(10**6)], target=measured_cpu(8))
    assert estimate.measured
    assert estimate.parts["overhead"] == pytest.approx(1e-3 + 3e-5)
    assert estimate.seconds_low < 0.1 + 0.1 + 1.1e-3 + 1.03e-3 < estimate.seconds_high
    assert "as measured by outlay calibrate with 8 devices busy (calibrated.toml)" in "\n".join(estimate.assumptions)


def test_all_wait_for_the_slowest_host():
    """The same work on four hosts takes two doublings longer; a host alone waits for nobody."""
    work = dataclasses.replace(schedule(product(1e12)), num_devices=32)
    alone, four = priced(product(1e12)), price(work, "h100:4x8")
    assert four.seconds == pytest.approx(alone.seconds * (1 + 2 * 0.013))
    assert sum(four.parts.values()) == pytest.approx(four.seconds)
    assert "slowest" not in "\n".join(alone.assumptions)


def test_simulated_devices_share_a_machine():
    twice = measured_cpu(16)
    made = dataclasses.replace(schedule(product(1e9, dtype="float32"), moves(10**8)), num_devices=16)
    estimate = price(made, twice)
    assert estimate.seconds == pytest.approx(2 * priced(*made.blocks["main"], target=measured_cpu(8)).seconds)
    assert "16 simulated devices share this machine: each is 2 times as slow" in estimate.assumptions


def test_reading_across_rows_costs_what_was_measured():
    turned = moves(10**7, across_rows=((4 * 10**6, 512),))
    estimate = priced(turned, target=measured_cpu(8))
    halfway = (1 / 1e9 + 1 / 1e8) / 2  # 512 is halfway from 64 to 4096 in doublings
    assert estimate.parts["memory"] == pytest.approx((6 * 10**6 / 1e9 + 4 * 10**6 * halfway) / 0.9)
    assert priced(turned).parts == priced(moves(10**7)).parts, "accelerators transpose on the way"


def test_text_json_and_page_say_the_same():
    estimate = priced(product(989e12), moves(10**9), Event("exchange", "ar", 0), exchanges=[all_reduce(10**8)])
    text = str(estimate)
    assert text.splitlines()[0].endswith("on h100:1x8, mostly products")
    data = json.loads(json.dumps(estimate.to_dict()))
    assert data["seconds_low"] == estimate.seconds_low
    assert data["parts"] == estimate.parts
    assert data["transfers"][0]["kind"] == "all-reduce"
    page = estimate.to_html()
    for words in (*estimate.assumptions, text.splitlines()[0], "all-reduce", "95.4 MiB"):
        assert words in page
        assert words in text


def test_an_empty_program_takes_nothing():
    estimate = priced()
    assert (estimate.seconds_low, estimate.seconds_high) == (0.0, 0.0)
    assert estimate.to_html()


def test_a_loop_of_unknown_length_widens_the_range_and_the_estimate_says_so():
    loop = Event("loop", "while.7", calls=("body",), is_counted=False)
    outer = Event("loop", "while.1", calls=("turns",), runs=3)
    blocks = {"turns": (loop,), "body": (product(1e12),)}
    known = priced(product(1e12), dataclasses.replace(outer), blocks={**blocks, "turns": (product(1e12, name="in"),)})
    estimate = priced(product(1e12), outer, blocks=blocks)
    rounds = estimate.seconds - priced(product(1e12)).seconds
    assert estimate.seconds == pytest.approx(known.seconds)
    assert estimate.seconds_low == pytest.approx(known.seconds_low * (1 - rounds / known.seconds))
    assert estimate.seconds_high == pytest.approx(known.seconds_high * (1 + 9 * rounds / known.seconds))
    (assumption,) = [one for one in estimate.assumptions if "unknown length" in one]
    assert assumption.startswith("1 loop of unknown length (while.7) counted once")
    assert assumption.endswith("the range covers 0 to 10 iterations")
    assert known.seconds_high == pytest.approx(known.seconds * KNOWN.spread, rel=1e-3)


def test_each_constant_says_where_it_is_from_and_since_when():
    text = resources.files("outlay.analysis.cost").joinpath("constants.toml").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if re.match(r"\w+ = ", line)]
    assert len(lines) == sum(map(len, built_in().values()))
    form = re.compile(r"\w+ = \S+ # (fit|source|assumed)\b.*, 20\d\d-\d\d-\d\d")
    assert [line for line in lines if not form.fullmatch(line)] == []
