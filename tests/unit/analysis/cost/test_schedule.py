"""The schedules of programs that real compilers made, kept as text."""

import json

import pytest
from tests.unit.analysis.hlo.golden import golden_text

from outlay.analysis.cost.price import price
from outlay.analysis.cost.schedule import Schedule, schedule_of
from outlay.analysis.hlo.parse import parse_hlo
from outlay.analysis.work.compiled import compiled_work
from outlay.devices.target import Target

TARGETS = {"gpu": "h100:1x8", "tpu": "tpu-v5e:2x4", "cpu": "cpu:8"}


def read(text, target="h100:1x8"):
    module = parse_hlo(text)
    work = compiled_work(module)
    return schedule_of(module, work, Target.parse(target)), work


@pytest.mark.parametrize("program", ["data_parallel", "fsdp", "nested", "ring", "tensor_parallel", "reshard"])
@pytest.mark.parametrize("name", ["gpu-0.10.2", "gpu-0.12.0.1", "tpu-0.10.2", "tpu-0.12.0.1", "cpu-0.12.0.1"])
def test_every_exchange_and_every_operation_stands_in_the_schedule(name, program):
    kind = name.partition("-")[0]
    schedule, work = read(golden_text(f"{name}-{program}"), TARGETS[kind])
    assert Schedule.from_dict(json.loads(json.dumps(schedule.to_dict()))) == schedule
    events = [event for block in schedule.blocks.values() for event in block]
    begun = [event.number for event in events if event.kind in ("exchange", "start")]
    assert sorted(begun) == list(range(len(schedule.exchanges)))
    waited = [event.number for event in events if event.kind == "wait" and event.number >= 0]
    assert sorted(waited) == sorted(event.number for event in events if event.kind == "start")
    estimate = price(schedule)
    assert estimate.flops == pytest.approx(work.flops)
    assert estimate.seconds == pytest.approx(sum(estimate.parts.values()))
    assert sum(one.num_runs for one in estimate.transfers) == sum(one.runs for one in schedule.exchanges)


ON_LANES = """HloModule m, is_scheduled=true, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %main (x: f32[1024], h: f32[512]) -> (f32[1024], f32[512]) {
  %x = f32[1024]{0} parameter(0)
  %h = f32[512]{0:S(5)} parameter(1)
  %copy-start = (f32[512]{0}, f32[512]{0:S(5)}, u32[]) copy-start(%h)
  %ar-start = f32[1024]{0} all-reduce-start(%x), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
  %neg = f32[1024]{0} negate(%x)
  %ar-done = f32[1024]{0} all-reduce-done(%ar-start)
  %copy-done = f32[512]{0} copy-done(%copy-start)
  %again = f32[1024]{0} all-reduce-start(%neg), channel_id=2, to_apply=%add, backend_config={"is_sync":true}
  %again-done = f32[1024]{0} all-reduce-done(%again)
  ROOT %out = (f32[1024]{0}, f32[512]{0}) tuple(%again-done, %copy-done)
}
"""


def test_starts_and_ends_and_what_runs_between():
    schedule, _ = read(ON_LANES)
    events = [(event.kind, event.name) for event in schedule.blocks["main"]]
    assert events[:5] == [
        ("copy-start", "copy-start"),
        ("start", "ar-start"),
        ("work", "neg"),
        ("wait", "ar-done"),
        ("copy-wait", "copy-done"),
    ]
    assert ("exchange", "again") in events, "a start that waits is not a start"
    (copied,) = [event for event in schedule.blocks["main"] if event.kind == "copy-start"]
    assert copied.num_bytes == 2048


def begins_and_ends(number):
    """The two computations of a collective that a TPU starts in one fusion and waits for in another."""
    gather = f"all-gather(%p), channel_id={number}, replica_groups={{{{0,1,2,3,4,5,6,7}}}}, dimensions={{0}}, "
    return f"""
%begin.{number} (p: f32[64]) -> f32[512] {{
  %p = f32[64]{{0}} parameter(0)
  %gather = f32[512]{{0}} {gather}use_global_device_ids=true
  ROOT %begun = f32[512]{{0}} custom-call(%gather), custom_call_target="AsyncCollectiveStart"
}}

%end.{number} (p: f32[64], q: f32[512], r: f32[512]) -> f32[512] {{
  %p = f32[64]{{0}} parameter(0)
  %q = f32[512]{{0}} parameter(1)
  %r = f32[512]{{0}} parameter(2)
  %gather = f32[512]{{0}} {gather}use_global_device_ids=true
  ROOT %ended = f32[512]{{0}} custom-call(%gather, %q), custom_call_target="AsyncCollectiveDone"
}}
"""


ONE_AFTER_ANOTHER = f"""HloModule m, is_scheduled=true, num_partitions=8
{begins_and_ends(1)}{begins_and_ends(2)}
ENTRY %main (x: f32[64]) -> f32[512] {{
  %x = f32[64]{{0}} parameter(0)
  %start.1 = f32[512]{{0}} fusion(%x), kind=kCustom, calls=%begin.1
  %done.1 = f32[512]{{0}} fusion(%x, %start.1, %start.1), kind=kCustom, calls=%end.1
  %start.2 = f32[512]{{0}} fusion(%x), kind=kCustom, calls=%begin.2
  ROOT %done.2 = f32[512]{{0}} fusion(%x, %start.2, %done.1), kind=kCustom, calls=%end.2
}}
"""


def test_each_end_waits_for_its_own_start():
    schedule, _ = read(ONE_AFTER_ANOTHER, "tpu-v5e:2x4")
    events = [(event.kind, event.number) for event in schedule.blocks["main"] if event.kind in ("start", "wait")]
    (_, first), _, (_, second), _ = events
    assert events == [("start", first), ("wait", first), ("start", second), ("wait", second)]
    assert first != second


SENT = (
    '_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_host_transfer_rendezvous="sum_0",'
    '_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"'
)
OVER_SLICES = f"""HloModule m, is_scheduled=true, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}}

ENTRY %main (x: f32[1048576]) -> (f32[1048576], f32[1048576]) {{
  %x = f32[1048576]{{0}} parameter(0)
  %inside = f32[1048576]{{0}} all-reduce(%x), channel_id=1, replica_groups={{{{0,1}},{{2,3}}}}, use_global_device_ids=true, to_apply=%add
  %token = token[] after-all()
  %recv = (f32[1048576]{{0}}, u32[], token[]) recv(%token), channel_id=2, is_host_transfer=true, frontend_attributes={{{SENT}}}
  %send = (f32[1048576]{{0}}, u32[], token[]) send(%inside, %token), channel_id=3, is_host_transfer=true, frontend_attributes={{{SENT}}}
  %neg = f32[1048576]{{0}} negate(%x)
  %send-done = token[] send-done(%send), channel_id=3, is_host_transfer=true
  %recv-done = (f32[1048576]{{0}}, token[]) recv-done(%recv), channel_id=2, is_host_transfer=true
  %arrived = f32[1048576]{{0}} get-tuple-element(%recv-done), index=0
  ROOT %out = (f32[1048576]{{0}}, f32[1048576]{{0}}) tuple(%arrived, %neg)
}}
"""  # noqa: E501  such are the lines of a compiler


def test_slices_of_tpus_run_the_program_of_one_and_wait_for_what_the_others_send():
    schedule, _ = read(OVER_SLICES, "tpu-v5e:2x2*2")
    assert schedule.num_devices == 8
    events = [(event.kind, event.name, event.number) for event in schedule.blocks["main"]]
    assert events == [("exchange", "inside", 0), ("start", "send", 1), ("work", "neg", -1), ("wait", "recv-done", 1)]
    inside, across = schedule.exchanges
    assert schedule.groups[inside.groups] == ((0, 1), (2, 3), (4, 5), (6, 7)), "each slice does the same"
    assert schedule.groups[across.groups] == ((0, 4), (1, 5), (2, 6), (3, 7)), "and each device meets its like"
    assert (across.kind, across.payload_bytes, across.is_async) == ("all-reduce", 4 * 2**20, True)
    network = Target.parse("tpu-v5e:2x2*2").hardware.scale_out_bandwidth
    estimate = price(schedule)
    assert estimate.parts["communication"] > 2**22 / network - estimate.parts["memory"]
