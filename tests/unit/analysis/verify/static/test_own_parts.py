"""Devices that count their own part, turn places into those of their part, and join arrays: none of it is lost."""

import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.analysis.verify.static.texts import ADD, GROUPS, OVER_DATA, OVER_MODEL, kinds, proof

START = [
    "%id = u32[] partition-id()",
    "%table = s32[4]{0} constant(TABLE)",
    "%cut = s32[1]{0} dynamic-slice(%table, %id), dynamic_slice_sizes={1}",
    "%start = s32[] bitcast(%cut)",
]


def starts(table):
    """Lines that give each device a number of its own."""
    return [line.replace("TABLE", table) for line in START]


COUNT = [
    "%x = f32[4]{0} parameter(0)",
    "%count = s32[4]{0} iota(), iota_dimension=0",
    "%wide = s32[4]{0} broadcast(%start), dimensions={}",
    "%place = s32[4]{0} add(%count, %wide)",
    "%as_float = f32[4]{0} convert(%place)",
    "ROOT %y = f32[4]{0} multiply(%x, %as_float)",
]


def counted(table, entries=4):
    lines = [*starts(table), *COUNT]
    return proof(
        [line.replace("[4]{0} ", f"[{entries}]{{0}} ") if line in COUNT else line for line in lines],
        [P("data")],
        [P("data")],
    )


@pytest.mark.parametrize("entries", [4, 40_000])
def test_a_count_that_goes_on_from_device_to_device_is_split(entries):
    """As of samples, or of a vocabulary of which each device has a part; too many to keep for all devices."""
    verification = counted(f"{{0, 0, {entries}, {entries}}}", entries)
    assert (verification.verdict, verification.undecided) == ("no fault found", ())


def test_a_count_that_does_not_go_on_is_not_called_split():
    assert counted("{0, 0, 3, 3}").undecided == ("out0",)


SCATTER = [
    "%x = f32[4,8]{1,0} parameter(0)",
    "%ids = s32[4]{0} parameter(1)",
    "%wide = s32[4]{0} broadcast(%start), dimensions={}",
    "%own = s32[4]{0} subtract(%ids, %wide)",
    "%places = s32[4,1]{1,0} reshape(%own)",
    "%nought = f32[] constant(0)",
    "%blank = f32[16,8]{1,0} broadcast(%nought), dimensions={}",
    "ROOT %y = f32[16,8]{1,0} scatter(%blank, %places, %x), update_window_dims={1}, inserted_window_dims={0}, "
    "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=%add",
]


def test_rows_scattered_into_the_part_of_a_table_that_a_device_has():
    """The gradient of an embedding whose vocabulary is split."""
    verification = proof([*starts("{0, 16, 0, 16}"), *SCATTER], [P(), P()], [P("model")])
    assert (verification.verdict, verification.undecided) == ("no fault found", ())
    assert ("part of another", "data") in kinds(proof([*starts("{0, 16, 0, 16}"), *SCATTER], [P(), P()], [P("data")]))


def test_places_counted_from_elsewhere_are_not_known_to_fit():
    assert proof([*starts("{0, 15, 0, 15}"), *SCATTER], [P(), P()], [P("model")]).undecided == ("out0",)


ROWS = [
    "%x = f32[4,10]{1,0} parameter(0)",
    "%labels = s32[4,1]{1,0} parameter(1)",
    "%rows = s32[4,1]{1,0} iota(), iota_dimension=ITS_DIM",
    "%joined = s32[4,1,2]{2,1,0} concatenate(%r, %l), dimensions={2}",
    "%places = s32[4,2]{1,0} bitcast(%joined)",
    "ROOT %y = f32[4]{0} gather(%x, %places), offset_dims={}, collapsed_slice_dims={0,1}, start_index_map={0,1}, "
    "index_vector_dim=1, slice_sizes={1,1}",
]
ROWS[3:3] = ["%r = s32[4,1,1]{2,1,0} bitcast(%rows)", "%l = s32[4,1,1]{2,1,0} bitcast(%labels)"]


@pytest.mark.parametrize(("dim", "undecided"), [(0, ()), (1, ("out0",))])
def test_each_row_takes_one_of_its_own_entries(dim, undecided):
    """As of the losses of samples; with another place than its own row nothing is claimed."""
    lines = [line.replace("ITS_DIM", str(dim)) for line in ROWS]
    verification = proof(lines, [P("data"), P("data")], [P("data")])
    assert (verification.verdict, verification.undecided) == ("no fault found", undecided)


def test_arrays_that_were_joined_are_told_apart_after_a_reshape():
    """Weights of queries and keys, joined for one product, with heads taken out of it again."""
    lines = [
        "%x = f32[6,8]{1,0} parameter(0)",
        "%q = f32[8,4]{1,0} parameter(1)",
        "%k = f32[8,2]{1,0} parameter(2)",
        "%w = f32[8,6]{1,0} concatenate(%q, %k), dimensions={1}",
        "%y = f32[6,6]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "%heads = f32[6,3,2]{2,1,0} bitcast(%y)",
        "%turned = f32[3,6,2]{2,1,0} transpose(%heads), dimensions={1,0,2}",
        "ROOT %keys = f32[1,6,2]{2,1,0} slice(%turned), slice={[2:3], [0:6], [0:2]}",
    ]
    specs = [P("data"), P(None, "model"), P(None, "model")]
    assert proof(lines, specs, [P(None, "data", "model")]).undecided == ()
    assert ("part of another", "model") in kinds(proof(lines, specs, [P(None, ("data", "model"))]))


def test_a_product_over_what_was_joined_is_a_sum_of_products():
    lines = [
        "%a = f32[6,4]{1,0} parameter(0)",
        "%b = f32[6,2]{1,0} parameter(1)",
        "%c = f32[4,8]{1,0} parameter(2)",
        "%d = f32[2,8]{1,0} parameter(3)",
        "%x = f32[6,6]{1,0} concatenate(%a, %b), dimensions={1}",
        "%w = f32[6,8]{1,0} concatenate(%c, %d), dimensions={0}",
        "%y = f32[6,8]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        f"%s = f32[6,8]{{1,0}} all-reduce(%y), {GROUPS}{OVER_MODEL}, to_apply=%add",
    ]
    last = "ROOT %z = f32[6,8]{1,0} tanh(OPERAND)"
    specs = [P("data", "model"), P("data", "model"), P("model"), P("model")]
    right = proof([*lines, last.replace("OPERAND", "%s")], specs, [P("data")])
    assert (right.verdict, right.undecided) == ("no fault found", ())
    assert kinds(proof([*lines, last.replace("OPERAND", "%y")], specs, [P("data")])) == [("sum missing", "model")]


def test_the_largest_entry_of_each_row_with_its_place():
    largest = ADD.replace(
        "%add (a: f32[], b: f32[]) -> f32[]", "%largest (a: f32[], b: s32[], c: f32[], d: s32[]) -> f32[]"
    )
    lines = [
        "%x = f32[4,10]{1,0} parameter(0)",
        "%places = s32[4,10]{1,0} iota(), iota_dimension=1",
        "%low = f32[] constant(0)",
        "%first = s32[] constant(0)",
        "%both = (f32[4]{0}, s32[4]{0}) reduce(%x, %places, %low, %first), dimensions={1}, to_apply=%largest",
        "ROOT %z = s32[4]{0} get-tuple-element(%both), index=1",
    ]
    verification = proof(lines, [P("data")], [P("data")], others=largest)
    assert (verification.verdict, verification.undecided) == ("no fault found", ())


def test_parts_that_change_places_with_all_devices():
    """Features of all samples become all features of some: the dim of pieces is put in front, and comes back."""
    lines = [
        "%x = f32[8,3]{1,0} parameter(0)",
        "%pieces = f32[2,4,3]{2,1,0} bitcast(%x)",
        f"%turned = f32[2,4,3]{{2,1,0}} all-to-all(%pieces), {GROUPS}{OVER_DATA}, dimensions={{0}}",
        "%between = f32[4,2,3]{2,1,0} transpose(%turned), dimensions={1,0,2}",
        "ROOT %y = f32[4,6]{1,0} bitcast(%between)",
    ]
    verification = proof(lines, [P(None, "data")], [P("data")])
    assert (verification.verdict, verification.undecided) == ("no fault found", ())
    mean = "%z = f32[4,6]{1,0} parameter(1)"
    met = [*lines[:-1], lines[-1].replace("ROOT ", ""), mean, "ROOT %m = f32[4,6]{1,0} multiply(%y, %z)"]
    assert kinds(proof(met, [P(None, "data"), P("data")], [P("data")])) == []
