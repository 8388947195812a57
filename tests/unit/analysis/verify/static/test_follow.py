"""Programs of a few lines: what is right gives no fault, and each fault is called by its name and axis."""

import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.analysis.verify.static.texts import AXES, GROUPS, OVER_ALL, OVER_DATA, OVER_MODEL, kinds, proof

from outlay.analysis.hlo.parse import parse_hlo
from outlay.analysis.verify.static.static_proof import statically_verified

X = "%x = f32[4,8]{1,0} parameter(0)"
W = "%w = f32[8,6]{1,0} parameter(1)"
PRODUCT = "%y = f32[4,6]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
SPECS = [P("data", "model"), P("model")]  # a product over a dim that both have parts of
SUM = "%%s = f32[4,6]{1,0} all-reduce(%%y), " + GROUPS + "%s, to_apply=%%add"
TANH = "ROOT %z = f32[4,6]{1,0} tanh(%s)"


def row_parallel(groups=OVER_MODEL, last=TANH, results=(P("data"),), **others):
    return proof([X, W, PRODUCT, SUM % groups, last], SPECS, results, **others)


def test_a_sum_over_its_axis_is_right():
    verification = row_parallel()
    assert verification.verdict == "no fault found"
    assert verification.undecided == ()
    assert (verification.num_known, verification.num_unknown, verification.num_collectives) == (5, 0, 1)


def test_a_sum_that_is_left_out_is_missing_where_it_is_used():
    verification = proof([X, W, PRODUCT, TANH.replace("%s", "%y")], SPECS, [P("data")])
    assert kinds(verification) == [("sum missing", "model")]
    assert verification.faults[0].instruction == "dot %y"
    assert "used before it is summed" in verification.faults[0].words


def test_a_sum_that_is_left_out_is_missing_where_it_is_returned():
    verification = proof([X, W, "ROOT " + PRODUCT], SPECS, [P("data")])
    assert kinds(verification) == [("sum missing", "model")]
    assert verification.faults[0].leaves == ("out0",)


def test_a_sum_over_the_other_axis():
    assert set(kinds(row_parallel(OVER_DATA))) == {("sum missing", "model"), ("part of another", "data")}


def test_a_sum_over_too_many_devices_is_doubled():
    specs = [P(None, "model"), P("model")]
    verification = proof([X, W, PRODUCT, SUM % OVER_ALL, TANH], specs, [P()])
    assert kinds(verification) == [("sum doubled", "data")]


def test_what_the_user_sums_may_be_a_sum_of_copies():
    specs = [P(None, "model"), P("model")]
    lines = [X, W, PRODUCT, SUM % OVER_ALL, TANH]
    verification = proof(lines, specs, [P()], op_name="jit(step)/shard_map/psum")
    assert verification.verdict == "no fault found"
    assert not verification.by_compiler
    assert "exchanges of its own" in str(verification).replace("\n", " ")


def test_a_sum_over_a_part_of_an_axis_is_not_judged():
    verification = row_parallel("{{0},{1},{2},{3}}")  # nobody exchanges: the sum is missing
    assert kinds(verification) == [("sum missing", "model")]


def test_summands_of_summands_are_added_before_the_sum():
    lines = [X, W, PRODUCT, "%t = f32[4,6]{1,0} add(%y, %y)", (SUM % OVER_MODEL).replace("(%y)", "(%t)"), TANH]
    assert proof(lines, SPECS, [P("data")]).verdict == "no fault found"


def test_a_whole_value_added_to_a_summand_is_counted_by_each_device():
    bias = "%b = f32[4,6]{1,0} parameter(2)"
    lines = [X, W, bias, PRODUCT, "%t = f32[4,6]{1,0} add(%y, %b)", (SUM % OVER_MODEL).replace("(%y)", "(%t)"), TANH]
    assert kinds(proof(lines, [*SPECS, P("data")], [P("data")])) == [("sum missing", "model")]


GATHER = "ROOT %%g = f32[8,8]{1,0} all-gather(%%x), %s%s, dimensions={0}"


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (OVER_DATA, []),
        ("{{2,0},{3,1}}", [("order of parts", "data")]),
        (OVER_MODEL, [("part of another", "data")]),
    ],
)
def test_parts_are_gathered_in_their_order(groups, expected):
    verification = proof([X, GATHER % (GROUPS, groups)], [P("data")], [P()])
    assert kinds(verification) == expected


@pytest.mark.parametrize(
    ("groups", "expected"), [("{{0,2},{1,3}}", []), ("{{2,0},{3,1}}", [("order of parts", "data")])]
)
def test_a_scattered_sum_gives_parts_in_their_order(groups, expected):
    scattered = f"ROOT %s = f32[2,8]{{1,0}} reduce-scatter(%y), {GROUPS}{groups}, dimensions={{0}}, to_apply=%add"
    square = "%y = f32[4,8]{1,0} dot(%a, %b), lhs_contracting_dims={0}, rhs_contracting_dims={0}"
    lines = ["%a = f32[3,4]{1,0} parameter(0)", "%b = f32[3,8]{1,0} parameter(1)", square, scattered]
    assert kinds(proof(lines, [P("data"), P("data")], [P("data")])) == expected


def test_parts_in_another_order_meet_entry_by_entry():
    lines = [X, "%w = f32[4,8]{1,0} parameter(1)", "ROOT %z = f32[4,8]{1,0} add(%x, %w)"]
    both, turned = P(("data", "model")), P(("model", "data"))
    assert kinds(proof(lines, [both, both], [both])) == []
    assert ("part of another", "model") in kinds(proof(lines, [both, turned], [both]))


def test_a_sum_replaced_by_a_gather():
    lines = [X, W, PRODUCT, f"%g = f32[8,6]{{1,0}} all-gather(%y), {GROUPS}{OVER_MODEL}, dimensions={{0}}"]
    lines.append("ROOT %z = f32[4,6]{1,0} slice(%g), slice={[0:4], [0:6]}")
    assert kinds(proof(lines, SPECS, [P("data")])) == [("sum missing", "model")]


def test_each_device_cuts_its_part():
    table = "%table = s32[4]{0} constant({0, 0, 4, 4})"
    lines = [
        "%x = f32[8,8]{1,0} parameter(0)",
        table,
        "%id = u32[] partition-id()",
        "%cut = s32[1]{0} dynamic-slice(%table, %id), dynamic_slice_sizes={1}",
        "%at = s32[] bitcast(%cut)",
        "%zero = s32[] constant(0)",
        "ROOT %part = f32[4,8]{1,0} dynamic-slice(%x, %at, %zero), dynamic_slice_sizes={4,8}",
    ]
    assert proof(lines, [P()], [P("data")]).verdict == "no fault found"
    assert kinds(proof(lines, [P()], [P("model")])) == [("part of another", "data"), ("part of another", "model")]
    odd = [line.replace("{0, 0, 4, 4}", "{0, 0, 4, 0}") for line in lines]
    assert ("numbers of devices", "data") in kinds(proof(odd, [P()], [P("data")]))


def test_random_numbers_of_a_device_are_no_replicas():
    lines = [
        X,
        "%low = f32[] constant(0)",
        "%high = f32[] constant(1)",
        "%r = f32[4,8]{1,0} rng(%low, %high), distribution=rng_uniform",
        "ROOT %z = f32[4,8]{1,0} add(%x, %r)",
    ]
    assert kinds(proof(lines, [P("data")], [P("data")])) == [("replicas differ", "model")]


def test_a_result_of_every_device_is_no_part():
    lines = ["%x = f32[4,8]{1,0} parameter(0)", "ROOT %z = f32[4,8]{1,0} tanh(%x)"]
    assert kinds(proof(lines, [P()], [P("data")])) == [("part of another", "data")]


def test_the_same_number_everywhere_is_any_part():
    lines = ["%one = f32[] constant(1)", "ROOT %z = f32[4,8]{1,0} broadcast(%one), dimensions={}"]
    assert proof(lines, [], [P("data")]).verdict == "no fault found"


def test_what_a_ring_passes_on_is_not_known_to_differ():
    ring = "source_target_pairs={{0,2},{2,0},{1,3},{3,1}}"
    lines = [
        X,
        f"%p = f32[4,8]{{1,0}} collective-permute(%x), channel_id=1, {ring}",
        "ROOT %z = f32[4,8]{1,0} add(%x, %p)",
    ]
    verification = proof(lines, [P("data")], [P()])
    assert verification.verdict == "no fault found"
    assert verification.undecided == ("out0",)


def test_operations_without_a_meaning_are_unknown_where_operands_differ():
    kernel = 'ROOT %k = f32[4,8]{1,0} custom-call(%x), custom_call_target="someones_kernel"'
    line = ', metadata={op_name="jit(step)/kernel" source_file="/home/me/f.py" source_line=3}'
    verification = proof([X, kernel + line], [P("data")], [P("data")])
    assert verification.undecided == ("out0",)
    assert verification.lost_at == ("custom-call someones_kernel (/home/me/f.py:3) over 'data'",)
    assert "not known from here on: custom-call someones_kernel" in str(verification).replace("\n", " ")
    assert proof([X, kernel], [P()], [P()]).undecided == ()


PLACES = [
    "%id = u32[] partition-id()",
    "%copy = u32[] replica-id()",
    "%four = u32[] constant(4)",
    "%before = u32[] multiply(%copy, %four)",
    "%number = u32[] add(%before, %id)",
]


def test_parts_written_into_zeros_and_summed_are_whole():
    """How TPUs gather along one axis: the places follow from the number of a device among all."""
    lines = [
        "%x = f32[4,8]{1,0} parameter(0)",
        *PLACES,
        "%table = s32[4]{0} constant({0, 4, 0, 4})",
        "%cut = s32[1]{0} dynamic-slice(%table, %number), dynamic_slice_sizes={1}",
        "%at = s32[] bitcast(%cut)",
        "%zero = s32[] constant(0)",
        "%nought = f32[] constant(0)",
        "%blank = f32[8,8]{1,0} broadcast(%nought), dimensions={}",
        "%put = f32[8,8]{1,0} dynamic-update-slice(%blank, %x, %at, %zero)",
        f"ROOT %g = f32[8,8]{{1,0}} all-reduce(%put), {GROUPS}{OVER_MODEL}, to_apply=%add",
    ]
    verification = proof(lines, [P("model")], [P()])
    assert (verification.verdict, verification.undecided) == ("no fault found", ())


def test_numbers_that_devices_share_in_part_are_not_known_to_differ():
    """A number that is not known, plus the device's, taken round: along one axis it may be the same."""
    lines = [
        "%i = u32[] parameter(0)",
        *PLACES,
        "%sum = u32[] add(%i, %number)",
        "%two = u32[] constant(2)",
        "ROOT %round = u32[] remainder(%sum, %two)",
    ]
    verification = proof(lines, [P()], [P()])
    assert (verification.verdict, verification.undecided) == ("no fault found", ("out0",))


def test_a_text_that_cannot_be_read_whole_is_unknown():
    lines = [X, "ROOT %z = f32[4,8]{1,0} tanh(%x"]
    text = (
        "HloModule jit_step, num_partitions=4\n\nENTRY %main (x: f32[4,8]) -> f32[4,8] {\n" + "\n".join(lines) + "\n}\n"
    )
    verification = statically_verified(parse_hlo(text), AXES, [], [], "a program")
    assert verification.verdict == "unknown"
    assert "1 line of its text cannot be read, first line 5" in str(verification).replace("\n", " ")
    assert (
        statically_verified(parse_hlo("HloModule jit_step, num_partitions=2\n"), AXES, [], [], "it").verdict
        == "unknown"
    )


def test_a_sum_of_copies_that_each_device_has_counted_is_right():
    """Of samples that all weigh one, the compiler counts those of a device itself, and sums the counts."""
    count = "%count = f32[] constant(4)"
    total = f"ROOT %total = f32[] all-reduce(OPERAND), {GROUPS}{OVER_DATA}, to_apply=%add"
    assert kinds(proof([count, total.replace("OPERAND", "%count")], [], [P()])) == []
    lines = ["%x = f32[] parameter(0)", count, "%y = f32[] multiply(%x, %count)", total.replace("OPERAND", "%y")]
    assert kinds(proof(lines, [P()], [P()])) == []
