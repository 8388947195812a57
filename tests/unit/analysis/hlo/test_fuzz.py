"""Whatever is done to the text: an ExplainError or a module, soon, and all that is asked of it answers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.analysis.hlo.golden import FILES, MESH, golden_text

from outlay.analysis.attribution.provenance import metadata_of
from outlay.analysis.hlo.dataflow import leaf_parameter, outputs_reached
from outlay.analysis.hlo.groups import axes_of
from outlay.analysis.hlo.hlo_collectives import collectives_of
from outlay.analysis.hlo.parse import parse_hlo
from outlay.core.error_types import ExplainError

# What the format is made of, so that changes make something that is nearly right.
PIECES = ["(", ")", "{", "}", "[", "]", '"', "\\", ",", "=", "%", "\n", " ", "0", "99999999999", "parameter", "tuple"]
PIECES += ["ROOT ", "ENTRY ", "while(", "index=", "replica_groups=", "{{0,1}}", "[2,4]<=[8]", "mesh['a'=8] {'a'}"]
PIECES += ["stack_frame_id=", "metadata={", "/*index=5*/", "calls=%fused", "body=%main", "T(1,0)", "é", "\x00"]


def ask_everything(text: str) -> None:
    try:
        module = parse_hlo(text)
    except ExplainError:
        return
    for one in collectives_of(module):
        axes_of(one.groups, MESH)
        metadata_of(module, one.computation, one.instruction)
        outputs_reached(module, one.computation, one.instruction.name)
        for operand in one.instruction.operands:
            leaf_parameter(module, one.computation, operand)
    for computation in module.computations.values():
        for one in computation.instructions.values():
            dict(one.attributes)


@pytest.mark.compiles
@given(st.sampled_from(FILES), st.data())
def test_changed_text(name, data):
    text = golden_text(name)
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, len(text)))
        length = data.draw(st.sampled_from([0, 1, 3, 30, 300]))
        text = text[:start] + data.draw(st.sampled_from(PIECES)) + text[start + length :]
    ask_everything(text)


@given(st.sampled_from(FILES), st.data())
def test_text_that_was_cut(name, data):
    text = golden_text(name)
    ask_everything(text[: data.draw(st.integers(0, len(text)))])


@pytest.mark.thorough  # changed text above
@settings(max_examples=100)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=60))
def test_text_of_pieces(pieces):
    ask_everything("HloModule m, num_partitions=8\n\nENTRY %main (x: f32[]) -> f32[] {\n" + "".join(pieces))


def test_text_made_to_be_slow_ends():
    # With a pattern that backtracks one of these takes hours, so that the time limit of every test ends it.
    hard = [
        "  %x = (" * 20000,
        "  %x = f32[] add(" + "f32[" * 50000,
        '  %x = f32[] add(%a), metadata={op_name="' + "\\" * 100001,
        "  %x = f32[] add(%a), a={" + '"{' * 50000,
        "%" + "a" * 100000 + " (" + ") -> (" * 20000,
        "1 {" + "a=" * 100000,
    ]
    head = "HloModule m, input_output_alias={ " + "{" * 50000
    for line in hard:
        ask_everything(f"{head}\n\nFileNames\n{line}\n\nENTRY %m (x: f32[]) -> f32[] {{\n{line}\n}}")
