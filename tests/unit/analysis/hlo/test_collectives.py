"""Every spelling of a collective that some compiler has, one at a time."""

import pytest

from outlay.analysis.hlo.hlo_collectives import collectives_of
from outlay.analysis.hlo.parse import parse_hlo

HEAD = """HloModule m, num_partitions=4

%wrapped (w: f32[8,16]) -> f32[2,16] {
  %w = f32[8,16]{1,0} parameter(0)
  ROOT %inside = f32[2,16]{1,0} reduce-scatter(%w), channel_id=9, replica_groups={{0,1,2,3}}, dimensions={0}, GLOBAL
}

%all-reduce-scatter.1 (r: f32[8,16]) -> f32[2,16] {
  %r = f32[8,16]{1,0} parameter(0)
  %at = s32[] constant(0)
  %whole = f32[8,16]{1,0} all-reduce(%r), channel_id=9, replica_groups={{0,1,2,3}}, to_apply=%add, GLOBAL
  ROOT %own = f32[2,16]{1,0} dynamic-slice(%whole, %at, %at), dynamic_slice_sizes={2,16}
}

%outer (o: f32[8,16]) -> f32[2,16] {
  %o = f32[8,16]{1,0} parameter(0)
  ROOT %nested = f32[2,16]{1,0} fusion(%o), kind=kLoop, calls=%all-reduce-scatter.1
}

%starting (s: f32[2,16]) -> (f32[8,16], u32[]) {
  %s = f32[2,16]{1,0} parameter(0)
  %g1 = f32[8,16]{1,0} all-gather(%s), channel_id=5, replica_groups={{0,1,2,3}}, dimensions={0}, GLOBAL
  ROOT %begin = (f32[8,16]{1,0}, u32[]) custom-call(%g1), custom_call_target="AsyncCollectiveStart"
}

%async_collective_fusion.3 (t: f32[2,16]) -> f32[8,16] {
  %t = f32[2,16]{1,0} parameter(0)
  ROOT %g2 = f32[8,16]{1,0} all-gather(%t), channel_id=5, replica_groups={{0,1,2,3}}, dimensions={0}, GLOBAL
}

%ending (u: f32[2,16]) -> f32[8,16] {
  %u = f32[2,16]{1,0} parameter(0)
  %g3 = f32[8,16]{1,0} all-gather(%u), channel_id=5, replica_groups={{0,1,2,3}}, dimensions={0}, GLOBAL
  ROOT %end = f32[8,16]{1,0} custom-call(%g3), custom_call_target="AsyncCollectiveDone"
}

ENTRY %main (a: f32[8,16], b: bf16[2,16], c: f32[2,16], n: s32[4]) -> f32[] {
  %a = f32[8,16]{1,0} parameter(0)
  %b = bf16[2,16]{1,0} parameter(1)
  %c = f32[2,16]{1,0} parameter(2)
  %n = s32[4]{0} parameter(3)
"""
A, B, C = 8 * 16 * 4, 2 * 16 * 2, 2 * 16 * 4
WITH = "channel_id=1, replica_groups={{0,1,2,3}}, GLOBAL"


def collectives_in(*lines: str):
    text = HEAD + "".join(f"  {line}\n" for line in lines) + "}\n"
    module = parse_hlo(text.replace("WITH", WITH).replace("GLOBAL", "use_global_device_ids=true"))
    assert module.skipped == ()
    return [
        (one.kind, one.operand_bytes, one.result_bytes, one.dtype, one.is_async)
        for one in collectives_of(module)
        if one.groups == ((0, 1, 2, 3),) or one.groups == ((0, 1), (1, 0))
    ]


@pytest.mark.parametrize(
    ("lines", "collective"),
    [
        (["%r = f32[8,16]{1,0} all-reduce(%a), WITH, to_apply=%add"], ("all-reduce", A, A, "f32", False)),
        (
            ["%r = (f32[8,16]{1,0}, bf16[2,16]{1,0}) all-reduce(%a, %b), WITH, to_apply=%add"],
            ("all-reduce", A + B, A + B, "f32+bf16", False),
        ),
        (
            [
                "%s = f32[8,16]{1,0} all-reduce-start(%a), WITH, to_apply=%add",
                "%d = f32[8,16]{1,0} all-reduce-done(%s)",
            ],
            ("all-reduce", A, A, "f32", True),
        ),
        (
            ["%s = (f32[8,16]{1,0}, bf16[2,16]{1,0}) all-reduce-start(%a, %b), WITH, to_apply=%add"],
            ("all-reduce", A + B, A + B, "f32+bf16", True),
        ),
        (
            ["%s = ((f32[8,16]{1,0}), f32[8,16]{1,0}) all-reduce-start(%a), WITH, to_apply=%add"],
            ("all-reduce", A, A, "f32", True),
        ),
        (
            ['%s = f32[8,16]{1,0} all-reduce-start(%a), WITH, backend_config={"is_sync":true}'],
            ("all-reduce", A, A, "f32", False),
        ),
        (
            ["%s = (f32[2,16]{1,0}, f32[8,16]{1,0}) all-gather-start(%c), WITH, dimensions={0}"],
            ("all-gather", C, 4 * C, "f32", True),
        ),
        (
            [
                "%s = ((f32[2,16]{1,0}, bf16[2,16]{1,0}), (f32[8,16]{1,0}, bf16[8,16]{1,0}), u32[]) "
                "all-gather-start(%c, %b), WITH, dimensions={0}",
                "%d = (f32[8,16]{1,0}, bf16[8,16]{1,0}) all-gather-done(%s)",
            ],
            ("all-gather", B + C, 4 * (B + C), "f32+bf16", True),
        ),
        (
            ["%s = ((f32[8,16]{1,0}), f32[2,16]{1,0}, u32[]) reduce-scatter-start(%a), WITH, dimensions={0}"],
            ("reduce-scatter", A, C, "f32", True),
        ),
        (
            ["%s = ((f32[8,16]{1,0}), f32[2,16]{1,0}, u32[]) async-start(%a), calls=%wrapped"],
            ("reduce-scatter", A, C, "f32", True),
        ),
        (
            ["%r = f32[2,16]{1,0} call(%a), to_apply=%wrapped"],
            ("reduce-scatter", A, C, "f32", False),
        ),
        (
            ["%r = f32[2,16]{1,0} fusion(%a), kind=kCustom, calls=%all-reduce-scatter.1"],
            ("reduce-scatter", A, C, "f32", False),
        ),
        (["%r = f32[2,16]{1,0} fusion(%a), kind=kLoop, calls=%outer"], ("reduce-scatter", A, C, "f32", False)),
        (
            [
                "%s = (f32[8,16]{1,0}, u32[]) fusion(%c), kind=kCustom, calls=%starting",
                "%m = f32[8,16]{1,0} fusion(%c), kind=kCustom, calls=%async_collective_fusion.3",
                "%d = f32[8,16]{1,0} fusion(%c), kind=kCustom, calls=%ending",
            ],
            ("all-gather", C, 4 * C, "f32", True),
        ),
        (
            [
                "%r = (f32[2,16]{1,0}, f32[2,16]{1,0}, f32[2,16]{1,0}, f32[2,16]{1,0}) all-to-all(%c, %c, %c, %c), "
                "channel_id=1, replica_groups={{0,1,2,3}}"
            ],
            ("all-to-all", 4 * C, 4 * C, "f32", False),
        ),
        (
            [
                "%s = ((f32[8,16]{1,0}), f32[8,16]{1,0}, u32[]) all-to-all-start(%a), channel_id=1, "
                "replica_groups={{0,1,2,3}}, dimensions={0}"
            ],
            ("all-to-all", A, A, "f32", True),
        ),
        (
            [
                "%r = f32[8,16]{1,0} ragged-all-to-all(%c, %a, %n, %n, %n, /*index=5*/%n), channel_id=1, "
                "replica_groups={{0,1,2,3}}"
            ],
            ("all-to-all", C, A, "f32", False),
        ),
        (
            [
                "%s = (f32[2,16]{1,0}, f32[2,16]{1,0}, u32[], u32[]) collective-permute-start(%c), channel_id=1, "
                "source_target_pairs={{0,1},{1,0}}"
            ],
            ("collective-permute", C, C, "f32", True),
        ),
        (
            ["%r = f32[2,16]{1,0} collective-broadcast(%c), channel_id=1, replica_groups={{0,1,2,3}}"],
            ("collective-broadcast", C, C, "f32", False),
        ),
    ],
)
def test_spellings(lines, collective):
    assert collectives_in(*lines) == [collective]


def test_other_opcodes_are_no_collectives():
    assert collectives_in("%r = f32[8,16]{1,0} negate(%a)", "%p = u32[] partition-id()") == []


def test_an_operand_that_the_text_lost_is_taken_to_be_as_large_as_the_result():
    assert collectives_in("%r = f32[8,16]{1,0} all-reduce(%lost), WITH, to_apply=%add") == [
        ("all-reduce", A, A, "f32", False)
    ]


def test_a_fusion_that_runs_twice_counts_twice():
    line = "%r{} = f32[2,16]{{1,0}} fusion(%a), kind=kCustom, calls=%all-reduce-scatter.1"
    assert collectives_in(line.format(1), line.format(2)) == [("reduce-scatter", A, C, "f32", False)] * 2
