"""Arrays that one device begins with and the others with zeros: nothing of what is added to them by parts is lost."""

import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.analysis.verify.static.texts import GROUPS, OVER_ALL, OVER_DATA, kinds, proof

FIRST = [
    "%x = f32[4,8]{1,0} parameter(0)",
    "%id = u32[] partition-id()",
    "%table = s32[4]{0} constant(TABLE)",
    "%cut = s32[1]{0} dynamic-slice(%table, %id), dynamic_slice_sizes={1}",
    "%place = s32[] bitcast(%cut)",
    "%others = pred[] convert(%place)",
    "%many = pred[400,800]{1,0} broadcast(%others), dimensions={}",
    "%few = pred[4,8]{1,0} slice(%many), slice={[0:4], [0:8]}",
    "%wide = pred[4,8]{1,0} broadcast(%others), dimensions={}",
    "%nought = f32[] constant(0)",
    "%blank = f32[4,8]{1,0} broadcast(%nought), dimensions={}",
    "%one = f32[4,8]{1,0} select(%wide, %blank, %x)",
]
SUM = f"%sum = f32[4,8]{{1,0}} all-reduce(%one), {GROUPS}{OVER_DATA}, to_apply=%add"


def first_along_data(table="{0, 0, 1, 1}", *more, spec=P(), result=P()):
    lines = [line.replace("TABLE", table) for line in FIRST]
    return proof([*lines, *more], [spec], [result])


def test_what_one_device_keeps_is_whole_once_it_is_summed():
    verification = first_along_data("{0, 0, 1, 1}", "ROOT " + SUM)
    assert (verification.verdict, verification.undecided) == ("no fault found", ())
    assert kinds(first_along_data("{0, 0, 1, 1}", "ROOT %y = f32[4,8]{1,0} tanh(%one)")) == [("sum missing", "data")]


def test_what_two_of_four_keep_is_no_summand_of_it():
    """Kept by one along each axis, but not by one of all."""
    both = SUM.replace(OVER_DATA, OVER_ALL)
    assert first_along_data("{0, 1, 1, 1}", "ROOT " + both).verdict == "no fault found"
    diagonal = first_along_data("{0, 1, 1, 0}", "ROOT %y = f32[4,8]{1,0} negate(%one)")
    assert ("sum missing", "data") not in kinds(diagonal)


def test_a_part_that_one_device_keeps_is_no_summand():
    verification = first_along_data(
        "{0, 0, 1, 1}", "ROOT %y = f32[4,8]{1,0} negate(%one)", spec=P("data"), result=P("data")
    )
    assert (verification.verdict, verification.undecided) == ("no fault found", ("out0",))


@pytest.mark.parametrize("again", [True, False])
def test_summands_of_which_one_is_kept_are_lost(again):
    """The fault of openxla/xla#49143: a sum is moved behind a loop in which one device begins with what was summed."""
    square = "%y = f32[4,8]{1,0} dot(%a, %b), lhs_contracting_dims={0}, rhs_contracting_dims={0}"
    chosen = "%z = f32[4,8]{1,0} select(%wide, %blank, KEPT)".replace("KEPT", "%one" if again else "%y")
    last = "ROOT " + SUM.replace("(%one)", "(%z)")
    lines = [line.replace("TABLE", "{0, 0, 1, 1}") for line in FIRST]
    more = ["%a = f32[3,4]{1,0} parameter(1)", "%b = f32[3,8]{1,0} parameter(2)", square, chosen, last]
    verification = proof([*lines, *more], [P(), P("data"), P("data")], [P()])
    assert kinds(verification) == ([] if again else [("sum missing", "data")])
    if not again:
        assert verification.faults[0].instruction == "dot %y"
        assert "the summands of the others are lost" in verification.faults[0].words


SCATTERED = """%body (state: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %state = (s32[], f32[4,8]{1,0}, s32[3,1]{1,0}, f32[3,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %table = f32[4,8]{1,0} get-tuple-element(%state), index=1
  %ids = s32[3,1]{1,0} get-tuple-element(%state), index=2
  %rows = f32[3,8]{1,0} get-tuple-element(%state), index=3
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %id = u32[] partition-id()
  %two = u32[] constant(2)
  %place = u32[] divide(%id, %two)
  %others = pred[] convert(%place)
  %wide = pred[4,8]{1,0} broadcast(%others), dimensions={}
  %nought = f32[] constant(0)
  %blank = f32[4,8]{1,0} broadcast(%nought), dimensions={}
  %kept = f32[4,8]{1,0} select(%wide, %blank, %table)
  %more = f32[4,8]{1,0} scatter(%kept, %ids, %rows), update_window_dims={1}, inserted_window_dims={0}, \
scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=%add
  INSIDE
  ROOT %out = (s32[], f32[4,8]{1,0}, s32[3,1]{1,0}, f32[3,8]{1,0}) tuple(%next, LEFT, %ids, %rows)
}

%condition (state: (s32[], f32[4,8])) -> pred[] {
  %state = (s32[], f32[4,8]{1,0}, s32[3,1]{1,0}, f32[3,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %three = s32[] constant(3)
  ROOT %goes = pred[] compare(%i, %three), direction=LT
}
"""


@pytest.mark.parametrize("in_loop", [True, False])
def test_a_sum_behind_a_loop_that_scatters_into_what_it_sums(in_loop):
    total = f"all-reduce(%more), {GROUPS}{OVER_DATA}, to_apply=%add"
    inside = f"%whole = f32[4,8]{{1,0}} {total}" if in_loop else ""
    lines = [
        "%ids = s32[3,1]{1,0} parameter(0)",
        "%rows = f32[3,8]{1,0} parameter(1)",
        "%zero = s32[] constant(0)",
        "%nought = f32[] constant(0)",
        "%begin = f32[4,8]{1,0} broadcast(%nought), dimensions={}",
        "%start = (s32[], f32[4,8]{1,0}, s32[3,1]{1,0}, f32[3,8]{1,0}) tuple(%zero, %begin, %ids, %rows)",
        "%loop = (s32[], f32[4,8]{1,0}, s32[3,1]{1,0}, f32[3,8]{1,0}) while(%start), condition=%condition, body=%body",
        "%more = f32[4,8]{1,0} get-tuple-element(%loop), index=1",
        "ROOT %result = f32[4,8]{1,0} " + ("negate(%more)" if in_loop else total),
    ]
    others = SCATTERED.replace("INSIDE", inside).replace("LEFT", "%whole" if in_loop else "%more")
    verification = proof(lines, [P("data"), P("data")], [P()], others=others)
    assert kinds(verification) == ([] if in_loop else [("sum missing", "data")])
    assert verification.undecided == ()
    assert in_loop or verification.faults[0].instruction == "scatter %more"
