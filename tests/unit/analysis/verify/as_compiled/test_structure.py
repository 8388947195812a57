"""What two compiled programs have in common, whatever their sizes are."""

from collections import Counter

from outlay.analysis.hlo.parse import parse_hlo
from outlay.analysis.verify.as_compiled.structure import Exchanged, Structure, compare_structures, structure_of

TEXT = """HloModule jit_f, num_partitions={num}

%add (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %z = f32[] add(%x, %y)
}}

ENTRY %main (a: f32[{size}]) -> f32[{size}] {{
  %a = f32[{size}]{{0}} parameter(0)
  %b = f32[{size}]{{0}} {first}(%a), metadata={{op_name="jit(f)/first"}}
  %c = f32[{size}]{{0}} all-reduce(%b), channel_id=1, use_global_device_ids=true, replica_groups={groups}, to_apply=%add
  ROOT %d = f32[{size}]{{0}} collective-permute(%c), source_target_pairs={pairs}, metadata={{op_name="jit(f)/ring"}}
}}
"""


def ring(num, by=1):
    pairs = ",".join(f"{{{one},{(one + by) % num}}}" for one in range(num))
    return f"{{{pairs}}}"


def structure(num, size=4, first="tanh", groups=None, by=1):
    groups = groups or f"{{{{{','.join(map(str, range(num)))}}}}}"
    text = TEXT.format(num=num, size=size, first=first, groups=groups, pairs=ring(num, by))
    return structure_of(parse_hlo(text), (("data", num),))


def test_the_same_step_on_more_devices_and_at_other_sizes_agrees():
    comparison = compare_structures(structure(8, size=4096), structure(2, size=4))
    assert comparison.agrees
    assert (comparison.num_exchanged, comparison.num_common, comparison.num_computed) == (2, 1, 1)


def test_groups_that_are_no_whole_axis_differ():
    comparison = compare_structures(structure(4), structure(4, groups="{{0,1},{2,3}}"))
    assert comparison.kinds == ("all-reduce",)
    assert "all-reduce of f32 over data (other): 1 in the full program, 0 in the small one" in comparison.differences


def test_a_ring_to_another_neighbour_differs():
    assert compare_structures(structure(8), structure(4)).agrees
    assert compare_structures(structure(8), structure(8, by=-1)).kinds == ("collective-permute",)


def test_a_part_of_the_step_that_the_small_program_lacks_differs():
    changed = structure(4)
    without = structure_of(
        parse_hlo(
            TEXT.replace(', metadata={{op_name="jit(f)/first"}}', "").format(
                num=4, size=4, first="tanh", groups="{{0,1,2,3}}", pairs=ring(4)
            )
        ),
        (("data", 4),),
    )
    (words,) = compare_structures(changed, without).differences
    assert words == "1 part of the step that the small program lacks: first"


SUMS = """HloModule jit_f, num_partitions=2

%add (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %z = f32[] add(%x, %y)
}}

%joined (p: f32[4], q: f32[6]) -> f32[10] {{
  %p = f32[4]{{0}} parameter(0)
  %q = f32[6]{{0}} parameter(1)
  ROOT %both = f32[10]{{0}} concatenate(%p, %q), dimensions={{0}}
}}

ENTRY %main (a: f32[4], b: f32[6]) -> f32[10] {{
  %a = f32[4]{{0}} parameter(0)
  %b = f32[6]{{0}} parameter(1)
{body}
}}
"""
HOW = "channel_id={}, use_global_device_ids=true, replica_groups={{{{0,1}}}}, to_apply=%add"
JOINED = f"""  %both = f32[10]{{0}} fusion(%a, %b), kind=kLoop, calls=%joined
  ROOT %sum = f32[10]{{0}} all-reduce(%both), {HOW.format(1)}"""
APART = f"""  %c = f32[4]{{0}} all-reduce(%a), {HOW.format(1)}
  %d = f32[6]{{0}} all-reduce(%b), {HOW.format(2)}
  ROOT %sum = f32[10]{{0}} concatenate(%c, %d), dimensions={{0}}"""


def test_arrays_that_are_joined_to_one_before_they_are_exchanged_count_as_several():
    joined, apart = (structure_of(parse_hlo(SUMS.format(body=body)), (("data", 2),)) for body in (JOINED, APART))
    comparison = compare_structures(apart, joined)
    assert comparison.agrees, comparison.differences
    assert comparison.num_exchanged == 2
    assert comparison.remarks == ("0 of 2 collectives are joined alike and of the same line",)


def test_a_sum_that_the_small_program_moves_behind_its_loop_is_told_with_what_may_help():
    inside, behind = (Exchanged("all-reduce", "data", "f32", "backward", in_loop) for in_loop in (True, False))
    full, small = (
        Structure(Counter(exchanged), (), frozenset(), Counter(), frozenset())
        for exchanged in ({inside: 2, behind: 4}, {behind: 2})
    )
    assert any("more layers or features" in words for words in compare_structures(full, small).differences)
    assert not any("more layers or features" in words for words in compare_structures(small, full).differences)
