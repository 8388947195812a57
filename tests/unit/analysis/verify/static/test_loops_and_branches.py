"""What is known of loops, branches, and arrays that are reshaped: nothing that is right is called wrong."""

import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.analysis.verify.static.texts import GROUPS, OVER_DATA, OVER_MODEL, kinds, proof

LOOP = """%body (state: (s32[], f32[4,4], f32[4,4])) -> (s32[], f32[4,4], f32[4,4]) {{
  %state = (s32[], f32[4,4]{{1,0}}, f32[4,4]{{1,0}}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %total = f32[4,4]{{1,0}} get-tuple-element(%state), index=1
  %a = f32[4,4]{{1,0}} get-tuple-element(%state), index=2
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %y = f32[4,4]{{1,0}} dot(%a, %a), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  {inside}
  %more = f32[4,4]{{1,0}} add(%total, {term})
  ROOT %out = (s32[], f32[4,4]{{1,0}}, f32[4,4]{{1,0}}) tuple(%next, %more, %a)
}}

%condition (state: (s32[], f32[4,4], f32[4,4])) -> pred[] {{
  %state = (s32[], f32[4,4]{{1,0}}, f32[4,4]{{1,0}}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %three = s32[] constant(3)
  ROOT %goes = pred[] compare(%i, %three), direction=LT
}}
"""
SUM = f"%s = f32[4,4]{{1,0}} all-reduce(%y), {GROUPS}{OVER_DATA}, to_apply=%add"
START = [
    "%a = f32[4,4]{1,0} parameter(0)",
    "%zero = s32[] constant(0)",
    "%nought = f32[] constant(0)",
    "%begin = f32[4,4]{1,0} broadcast(%nought), dimensions={}",
    "%start = (s32[], f32[4,4]{1,0}, f32[4,4]{1,0}) tuple(%zero, %begin, %a)",
    "%loop = (s32[], f32[4,4]{1,0}, f32[4,4]{1,0}) while(%start), condition=%condition, body=%body",
]
TOTAL = "%y = f32[4,4]{1,0} get-tuple-element(%loop), index=1"


def looped(*, inside="", term="%y", after=(), result=P()):
    others = LOOP.format(inside=inside, term=term)
    return proof([*START, *after], [P("data")], [result], others=others)


def test_a_sum_in_every_round():
    verification = looped(inside=SUM, term="%s", after=["ROOT " + TOTAL])
    assert (verification.verdict, verification.undecided) == ("no fault found", ())


def test_a_sum_behind_the_loop():
    verification = looped(after=[TOTAL, "ROOT " + SUM])
    assert (verification.verdict, verification.undecided) == ("no fault found", ())


def test_a_sum_that_no_round_and_nothing_behind_the_loop_has():
    assert kinds(looped(after=["ROOT " + TOTAL])) == [("sum missing", "data")]


def test_a_sum_before_the_last_round_is_added():
    """The sum of two rounds, and on top what each device has of the third."""
    last = "%last = f32[4,4]{1,0} dot(%a, %a), lhs_contracting_dims={0}, rhs_contracting_dims={0}"
    verification = looped(after=[TOTAL, SUM, last, "ROOT %z = f32[4,4]{1,0} add(%s, %last)"])
    assert kinds(verification) == [("sum missing", "data")]


@pytest.mark.parametrize("exchanges", [True, False])
def test_devices_that_exchange_in_a_loop_leave_it_together(exchanges):
    """A loop until something has converged may end on each device by itself, unless it waits for others."""
    until = LOOP.format(inside=SUM if exchanges else "", term="%s" if exchanges else "%y").replace(
        "ROOT %goes = pred[] compare(%i, %three), direction=LT",
        """%b = f32[4,4]{1,0} get-tuple-element(%state), index=2
  %none = f32[] constant(0)
  %size = f32[] reduce(%b, %none), dimensions={0,1}, to_apply=%largest
  ROOT %goes = pred[] compare(%size, %none), direction=GT""",
    )
    largest = "%largest (l: f32[], r: f32[]) -> f32[] {\n  %l = f32[] parameter(0)\n  %r = f32[] parameter(1)\n"
    largest += "  ROOT %m = f32[] maximum(%l, %r)\n}\n\n"
    lines = [*START, TOTAL, "ROOT %z = f32[4,4]{1,0} negate(%y)"] if exchanges else [*START, "ROOT " + TOTAL]
    verification = proof(lines, [P("data")], [P()], others=largest + until)
    assert (("replicas differ", "data") in kinds(verification)) == exchanges


BRANCHES = """%first (a: f32[4,4]) -> f32[4,4] {{
  %a = f32[4,4]{{1,0}} parameter(0)
  ROOT %b = f32[4,4]{{1,0}} {first}(%a)
}}

%second (c: f32[4,4]) -> f32[4,4] {{
  %c = f32[4,4]{{1,0}} parameter(0)
  ROOT %d = f32[4,4]{{1,0}} negate(%c)
}}
"""


@pytest.mark.parametrize(("specs", "undecided"), [((P(), P()), ()), ((P(), P("data")), ("out0",))])
def test_of_branches_only_what_they_agree_on_is_known(specs, undecided):
    lines = [
        "%a = f32[4,4]{1,0} parameter(0)",
        "%c = f32[4,4]{1,0} parameter(1)",
        "%which = pred[] parameter(2)",
        "ROOT %z = f32[4,4]{1,0} conditional(%which, %a, %c), true_computation=%first, false_computation=%second",
    ]
    verification = proof(lines, [*specs, P()], [P()], others=BRANCHES.format(first="tanh"))
    assert (verification.verdict, verification.undecided) == ("no fault found", undecided)


@pytest.mark.parametrize("spec", [P("data", None, "model"), P(None, None, "model")])
def test_heads_merged_into_the_batch_and_taken_out_again_are_split_as_before(spec):
    lines = [
        "%x = f32[2,8,4,3]{3,2,1,0} parameter(0)",
        "%heads_first = f32[2,4,8,3]{3,2,1,0} transpose(%x), dimensions={0,2,1,3}",
        "%merged = f32[8,8,3]{2,1,0} bitcast(%heads_first)",
        "%y = f32[8,8,8]{2,1,0} dot(%merged, %merged), lhs_batch_dims={0}, rhs_batch_dims={0}, "
        "lhs_contracting_dims={2}, rhs_contracting_dims={2}",
        "%apart = f32[2,4,8,8]{3,2,1,0} bitcast(%y)",
        "ROOT %back = f32[2,8,4,8]{3,1,2,0} transpose(%apart), dimensions={0,2,1,3}",
    ]
    verification = proof(lines, [spec], [spec])
    assert (verification.verdict, verification.undecided) == ("no fault found", ())
    assert kinds(proof(lines, [spec], [P("data", "model")]))[-1] == ("part of another", "model")


def test_a_bitcast_to_another_order_of_memory_is_a_transpose():
    lines = ["%x = f32[4,8]{1,0} parameter(0)", "ROOT %y = f32[8,4]{0,1} bitcast(%x)"]
    assert proof(lines, [P("data")], [P(None, "data")]).undecided == ()
    assert kinds(proof(lines, [P("data")], [P("data")])) == [("part of another", "data")]


def test_a_scattered_sum_is_split_finely_along_a_dim_that_is_split_already():
    scattered = f"%s = f32[2,8]{{1,0}} reduce-scatter(%y), {GROUPS}{OVER_MODEL}, dimensions={{0}}, to_apply=%add"
    lines = [
        "%x = f32[4,3]{1,0} parameter(0)",
        "%w = f32[3,8]{1,0} parameter(1)",
        "%y = f32[4,8]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "ROOT " + scattered,
    ]
    specs = [P("data", "model"), P("model")]
    assert proof(lines, specs, [P(("data", "model"))]).undecided == ()
    assert proof(lines, specs, [P(("data", "model"))]).verdict == "no fault found"
    assert ("part of another", "data") in kinds(proof(lines, specs, [P(("model", "data"))]))
