"""Where a value comes from, and where it goes, checked on what compilers made of programs known by hand."""

import pytest
from tests.unit.analysis.hlo.golden import FILES, golden_text

from outlay.analysis.hlo.dataflow import leaf_parameter, outputs_reached
from outlay.analysis.hlo.hlo_collectives import collectives_of
from outlay.analysis.hlo.parse import parse_hlo


def traced(name):
    """For each collective its kind, the parameter that it moves, and the results that it ends up in."""
    module = parse_hlo(golden_text(name))
    for one in collectives_of(module):
        parameters = {leaf_parameter(module, one.computation, operand) for operand in one.instruction.operands}
        yield one.kind, parameters, outputs_reached(module, one.computation, one.instruction.name)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith("-fsdp")])
def test_gathered_weights_and_scattered_gradients_of_a_scan(name):
    for kind, parameters, outputs in traced(name):
        if kind == "all-gather":
            assert parameters == {0}, "the weights: out of the loop, through the slice of the layer"
        else:
            assert parameters == {None}
            assert outputs == (0,), "the gradient ends in the new weights"


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith("-data_parallel")])
def test_gradients_end_in_the_leaves_that_they_update(name):
    ((_, parameters, outputs),) = traced(name)
    assert parameters == {None}
    assert outputs == (0, 1)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith("-reshard")])
def test_an_input_that_is_moved(name):
    ((_, parameters, _),) = traced(name)
    assert parameters == {0}


@pytest.mark.parametrize(
    "name", [name for name in FILES if name.split("-")[2] in ("ring", "nested", "tensor_parallel")]
)
def test_what_a_loop_or_a_matmul_computes_is_no_parameter(name):
    assert all(parameters == {None} for _, parameters, _ in traced(name))


TEXT = """HloModule m, num_partitions=2

%convert (p: f32[4]) -> (bf16[4], f32[4]) {
  %p = f32[4]{0} parameter(0)
  %q = f32[4]{0} parameter(1)
  %half = bf16[4]{0} convert(%p)
  %sum = f32[4]{0} add(%p, %q)
  ROOT %both = (bf16[4]{0}, f32[4]{0}) tuple(%half, %sum)
}

%body (state: (s32[], f32[4], f32[4])) -> (s32[], f32[4], f32[4]) {
  %state = (s32[], f32[4]{0}, f32[4]{0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %kept = f32[4]{0} get-tuple-element(%state), index=1
  %changed = f32[4]{0} get-tuple-element(%state), index=2
  %next = f32[4]{0} add(%kept, %changed)
  ROOT %out = (s32[], f32[4]{0}, f32[4]{0}) tuple(%i, %kept, %next)
}

%condition (state.1: (s32[], f32[4], f32[4])) -> pred[] {
  %state.1 = (s32[], f32[4]{0}, f32[4]{0}) parameter(0)
  ROOT %go = pred[] constant(false)
}

ENTRY %main (w: f32[4], b: f32[4]) -> (f32[4], f32[4], bf16[4], f32[], f32[4]) {
  %w = f32[4]{0} parameter(0)
  %b = f32[4]{0} parameter(1)
  %zero = s32[] constant(0)
  %start = ((f32[4]{0}), f32[4]{0}, u32[]) copy-start(%w)
  %done = f32[4]{0} copy-done(%start)
  %fusion = (bf16[4]{0}, f32[4]{0}) fusion(%done, %b), kind=kLoop, calls=%convert
  %half.1 = bf16[4]{0} get-tuple-element(%fusion), index=0
  %sum.1 = f32[4]{0} get-tuple-element(%fusion), index=1
  %first = (s32[], f32[4]{0}, f32[4]{0}) tuple(%zero, %b, %w)
  %loop = (s32[], f32[4]{0}, f32[4]{0}) while(%first), condition=%condition, body=%body
  %after = f32[4]{0} get-tuple-element(%loop), index=1
  %result = f32[4]{0} get-tuple-element(%loop), index=2
  %number = f32[] dot(%sum.1, %sum.1), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  %sorted = f32[4]{0} sort(%sum.1), dimensions={0}, to_apply=%compare
  ROOT %results = (f32[4]{0}, f32[4]{0}, bf16[4]{0}, f32[], f32[4]{0}) tuple(%result, %after, %half.1, %number, %sorted)
}
"""


@pytest.mark.parametrize(
    ("computation", "value", "parameter"),
    [
        ("main", "w", 0),
        ("main", "done", 0),
        ("main", "half.1", 0),
        ("main", "sum.1", None),
        ("main", "after", 1),
        ("main", "result", None),
        ("main", "zero", None),
        ("body", "kept", 1),
        ("body", "changed", None),
        ("convert", "half", 0),
    ],
)
def test_back(computation, value, parameter):
    assert leaf_parameter(parse_hlo(TEXT), computation, value) == parameter


@pytest.mark.parametrize(
    ("computation", "value", "outputs"),
    [
        ("main", "done", (2,)),  # the fusion's sum becomes a number, or is mixed: it is followed no further
        ("main", "b", (0, 1)),  # kept by the loop, and added to what it changes
        ("main", "w", (0, 2)),
        ("body", "next", (0,)),
        ("convert", "half", (2,)),
        ("convert", "sum", ()),
        ("main", "fusion", (2,)),
    ],
)
def test_forward(computation, value, outputs):
    assert outputs_reached(parse_hlo(TEXT), computation, value) == outputs


def test_one_element_of_a_tuple_is_followed():
    assert outputs_reached(parse_hlo(TEXT), "main", "fusion", element=0) == (2,)
    assert outputs_reached(parse_hlo(TEXT), "main", "fusion", element=1) == ()


SWAPPING = TEXT.replace("tuple(%i, %kept, %next)", "tuple(%i, %changed, %kept)")


@pytest.mark.parametrize("value", ["after", "result"])
def test_elements_that_a_loop_swaps_are_no_parameter_for_sure(value):
    assert SWAPPING != TEXT
    assert leaf_parameter(parse_hlo(SWAPPING), "main", value) is None


def test_a_value_goes_on_to_where_the_next_round_puts_it():
    assert outputs_reached(parse_hlo(SWAPPING), "body", "kept") == (0, 1)


SAVING = """HloModule saved, num_partitions=2

%save (state: (s32[], f32[2,4], bf16[2,4])) -> (s32[], f32[2,4], bf16[2,4]) {
  %state = (s32[], f32[2,4]{1,0}, bf16[2,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %weights = f32[2,4]{1,0} get-tuple-element(%state), index=1
  %saved = bf16[2,4]{1,0} get-tuple-element(%state), index=2
  %zero.1 = s32[] constant(0)
  %layer = f32[1,4]{1,0} dynamic-slice(%weights, %i, %zero.1), dynamic_slice_sizes={1,4}
  %half = bf16[1,4]{1,0} convert(%layer)
  %square = bf16[1,4]{1,0} multiply(%half, %half)
  %both = bf16[2,4]{1,0} dynamic-update-slice(%saved, %half, %i, %zero.1)
  ROOT %out = (s32[], f32[2,4]{1,0}, bf16[2,4]{1,0}) tuple(%i, %weights, %both)
}

%condition (state.1: (s32[], f32[2,4], bf16[2,4])) -> pred[] {
  %state.1 = (s32[], f32[2,4]{1,0}, bf16[2,4]{1,0}) parameter(0)
  ROOT %go = pred[] constant(false)
}

ENTRY %main (b: bf16[2,4], w: f32[2,4]) -> bf16[1,4] {
  %b = bf16[2,4]{1,0} parameter(0)
  %w = f32[2,4]{1,0} parameter(1)
  %zero = s32[] constant(0)
  %nothing = bf16[] constant(0)
  %empty = bf16[2,4]{1,0} broadcast(%nothing), dimensions={}
  %first = (s32[], f32[2,4]{1,0}, bf16[2,4]{1,0}) tuple(%zero, %w, %empty)
  %loop = (s32[], f32[2,4]{1,0}, bf16[2,4]{1,0}) while(%first), condition=%condition, body=%save
  %of_all = bf16[2,4]{1,0} get-tuple-element(%loop), index=2
  ROOT %last = bf16[1,4]{1,0} slice(%of_all), slice={[1:2], [0:4]}
}
"""


@pytest.mark.parametrize(
    ("old", "new", "parameter"),
    [
        ("", "", 1),
        ("slice(%saved, %half", "slice(%saved, %square", None),  # computed of the weights
        ("tuple(%zero, %w, %empty)", "tuple(%zero, %w, %b)", None),  # what another parameter had there may be left
    ],
)
def test_weights_that_a_loop_saves_for_the_backward_pass(old, new, parameter):
    assert leaf_parameter(parse_hlo(SAVING.replace(old, new)), "main", "last") == parameter


@pytest.mark.parametrize(
    "operation",
    [
        "reverse(%p), dimensions={0}",
        "optimization-barrier(%p)",
        "opt-barrier(%p)",
        "domain(%p)",
        "copy(%p)",
        "reduce-precision(%p), exponent_bits=8, mantissa_bits=7",
    ],
)
def test_the_same_entries_in_another_order_are_still_the_parameter(operation):
    module = parse_hlo(
        f"HloModule m\n\nENTRY %main (p: f32[4]) -> f32[4] {{\n  %p = f32[4]{{0}} parameter(0)\n"
        f"  %q = f32[4]{{0}} {operation}\n  ROOT %root = f32[4]{{0}} negate(%q)\n}}\n"
    )
    assert leaf_parameter(module, "main", "q") == 0
    assert leaf_parameter(module, "main", "root") is None
    assert outputs_reached(module, "main", "q") == (0,)
