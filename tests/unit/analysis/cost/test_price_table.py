"""The script of pages prices a schedule as Python does: as compiled, for changed hardware, and for more hosts."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.javascript import computed_by

from outlay.analysis.cost.links import Location
from outlay.analysis.cost.price import price
from outlay.analysis.cost.price_table import price_table
from outlay.analysis.cost.schedule import Event, Exchange, Schedule
from outlay.devices.measured import CollectiveCost, Measured
from outlay.devices.target import Target
from outlay.report.explain.explanation import Explanation
from outlay.report.explain.timeline_trace import timeline_trace

pytestmark = pytest.mark.processes

FACTS = Path(__file__).parents[4] / "benchmarks" / "data" / "published_facts.json.gz"
PROGRAMS = {
    "one host, fsdp": "mpt-13b-1024-8xa100_80gb-bf16-b960-90",
    "eight hosts, one ring": "maxtext-a3-llama2-7b-64",
    "tensors over a host": "nanotron-1b-64gpu-dp16-tp4-pp1-mb8",
    "two slices, with fetches": "maxtext-v5e-16b-2x256",
}
SETTINGS = [
    {},
    {"links": 0.5, "memory": 2},
    {"network": 0.25, "clock": 0.7},
    {"links": 4, "network": 3, "memory": 0.5, "clock": 1.5},
]


@pytest.fixture(scope="module")
def facts():
    return json.loads(gzip.decompress(FACTS.read_bytes()))


@pytest.fixture(scope="module")
def schedules(facts):
    return {name: Schedule.from_dict(facts[row]["schedule"]) for name, row in PROGRAMS.items()}


def changed(target, *, links=1.0, network=1.0, memory=1.0, clock=1.0):
    """The target with other speeds."""
    hardware = target.hardware
    return replace(
        target,
        hardware=replace(
            hardware,
            intra_host_link_bandwidth=hardware.intra_host_link_bandwidth * links,
            scale_out_bandwidth=hardware.scale_out_bandwidth * network,
            memory_bandwidth=hardware.memory_bandwidth * memory,
            peak_flops={dtype: speed * clock for dtype, speed in hardware.peak_flops.items()},
        ),
    )


def priced(tables, folder):
    """The parts of each table with each of its settings, and the bounds of its range, by the script."""
    one = "{ const { parts, low, high } = pricing.price(table, setting); return { ...parts, low, high }; }"
    expression = f"data.map(([table, settings]) => settings.map((setting) => {one}))"
    return computed_by("price.js", expression, tables, folder)


def parts_and_range(estimate):
    """What `priced` returns, by Python."""
    return {**estimate.parts, "low": estimate.seconds_low, "high": estimate.seconds_high}


def test_the_script_prices_as_python_does(schedules, tmp_path):
    targets = {name: Target.parse(schedule.target) for name, schedule in schedules.items()}
    tables = [[price_table(schedules[name], targets[name]), SETTINGS] for name in PROGRAMS]
    for name, parts in zip(PROGRAMS, priced(tables, tmp_path), strict=True):
        assert len(json.dumps(price_table(schedules[name], targets[name]))) < 100_000, name
        for setting, by_script in zip(SETTINGS, parts, strict=True):
            expected = parts_and_range(price(schedules[name], changed(targets[name], **setting)))
            assert by_script == pytest.approx(expected, rel=1e-9), (name, setting)


def grown(schedule, times, axis, target):
    """The schedule on so many times the hosts, of which each has the same batch."""
    num = schedule.num_devices

    def groups(one):
        copies = range(times)
        grows = axis in one.axes
        each = schedule.groups[one.groups]
        if grows:
            return tuple(tuple(device + num * copy for copy in copies for device in group) for group in each)
        return tuple(tuple(device + num * copy for device in group) for copy in copies for group in each)

    islands = len({location.island for location in schedule.locations})
    return replace(
        schedule,
        target=target,
        num_devices=num * times,
        groups=tuple(groups(one) for one in schedule.exchanges),
        exchanges=tuple(replace(one, groups=number) for number, one in enumerate(schedule.exchanges)),
        locations=tuple(
            Location(location.island + islands * copy, location.coords)
            for copy in range(times)
            for location in schedule.locations
        ),
    )


@pytest.mark.parametrize(
    ("name", "axis", "target", "hosts"),
    [
        ("one host, fsdp", "data", "a100-80gb:4x8", 4),
        ("eight hosts, one ring", "data", "h100-a3:32x8", 32),
        ("tensors over a host", "data", "h100:16x8", 16),
        ("two slices, with fetches", "data", "tpu-v5e:16x16*4", 4),
    ],
)
def test_more_hosts_are_more_devices_along_the_axis_of_the_batch(schedules, tmp_path, name, axis, target, hosts):
    schedule, now = schedules[name], Target.parse(schedules[name].target)
    table = price_table(schedule, now, axis=axis)
    [[by_script]] = priced([[table, [{"hosts": hosts}]]], tmp_path)
    expected = price(grown(schedule, hosts // now.num_islands, axis, target))
    assert by_script == pytest.approx(parts_and_range(expected), rel=1e-9)
    assert expected.seconds > price(schedule).seconds


@pytest.mark.parametrize(
    ("few", "many", "axis", "target"),
    [
        ("mpt-13b-2048-8xh100_80gb-bf16-b16-33", "mpt-13b-2048-64xh100_80gb-bf16-b128-30", "data", "h100:8x8"),
        ("maxtext-a3-llama2-7b-16", "maxtext-a3-llama2-7b-128", "data", "h100-a3:16x8"),
        ("maxtext-v5e-64b-2x256", "maxtext-v5e-64b-4x256", "data", "tpu-v5e:16x16*4"),
    ],
)
def test_what_grows_costs_nearly_what_is_compiled_for_so_many(facts, few, many, axis, target):
    small, large = (Schedule.from_dict(facts[row]["schedule"]) for row in (few, many))
    times = large.num_devices // small.num_devices
    assert price(grown(small, times, axis, target)).seconds == pytest.approx(price(large).seconds, rel=0.08)


def hand_made():
    """A schedule with every kind of event: a branch, a call, loops of known and unknown length, copies to the host."""
    work = Event("work", "dot", flops=3e12, dtype="bfloat16", num_bytes=2**24)
    kernel = Event("work", "attention", flops=4e11, dtype="float16", num_bytes=2**22, kernel="cudnn")
    across = Event("work", "transpose", num_bytes=2**24, across_rows=((2**23, 64),))
    blocks = {
        "main": (
            Event("copy-start", "to", 1, num_bytes=2**26),
            Event("loop", "while", calls=("body", "missing"), runs=5),
            Event("branch", "if", calls=("short", "long")),
            Event("call", "call", calls=("short",)),
            Event("copy-wait", "back", 1),
            Event("copy", "offload", 2, num_bytes=2**25),
            Event("exchange", "sum", 1),
        ),
        "body": (
            *(Event("wait", "done", -1), kernel, Event("start", "gather", 0), across),
            Event("loop", "until", calls=("short",), is_counted=False),
        ),
        "short": (across,),
        "long": (work, kernel),
    }
    group = (tuple(range(8)),)
    exchanges = (
        Exchange("all-gather", 2**28, 0, ("data",), 5, True, True),
        Exchange("all-reduce", 2**24, 0, ("data",), 1, True, False),
    )
    return Schedule("", 8, "main", blocks, exchanges, (group,))


def calibrated():
    costs = {"all-gather": {8: CollectiveCost(1e-4, 1e9)}}
    measured = Measured(4, 1e-5, 1e-6, {64: 5e8, 4096: 1e9}, costs)
    target = Target.parse("cpu:8")
    return replace(target, hardware=replace(target.hardware, measured=measured))


def test_every_kind_of_event_has_its_price(tmp_path):
    schedule, targets = hand_made(), [Target.parse("h100:1x8"), calibrated()]
    settings = [{}, {"clock": 0.5}]
    results = priced([[price_table(schedule, target), settings] for target in targets], tmp_path)
    for target, parts in zip(targets, results, strict=True):
        for setting, by_script in zip(settings, parts, strict=True):
            estimate = price(schedule, changed(target, **setting))
            assert by_script == pytest.approx(parts_and_range(estimate), rel=1e-9), (target, setting)
            assert all(estimate.parts.values()), (target, setting, estimate.parts)


@pytest.mark.parametrize("name", ["eight hosts, one ring", "two slices, with fetches"])
def test_the_page_saves_the_trace_that_the_command_writes(schedules, tmp_path, name):
    schedule = schedules[name]
    target, estimate = Target.parse(schedule.target), price(schedule)
    facts = Explanation(name, target, None, (), (), (), None, 0.0, schedule=schedule, estimate=estimate)
    table = price_table(schedule, target)
    saved = computed_by("price.js", "pricing.trace(data, pricing.price(data).timed)", table, tmp_path)
    by_script, by_python = (
        [event for event in events["traceEvents"] if event["ph"] == "X"] for events in (saved, timeline_trace(facts))
    )
    assert [(event["tid"], event["name"]) for event in by_script] == [
        (event["tid"], event["name"]) for event in by_python
    ]
    for key in ("ts", "dur"):
        times = [[event[key] for event in events] for events in (by_script, by_python)]
        assert times[0] == pytest.approx(times[1], rel=1e-6, abs=2e-3)
    waited = [[event["args"].get("waited for", 0.0) for event in events] for events in (by_script, by_python)]
    assert waited[0] == pytest.approx(waited[1], rel=1e-6, abs=1e-6)
