"""Which pass of a compiler makes a program wrong: by halving, among the texts that it keeps after each."""

import jax.numpy as jnp
import numpy as np
import pytest
from tests.unit.devices.compilers import needs_gpu_compiler

import outlay
from outlay.analysis.hlo.execute.as_function import unknown_operations
from outlay.analysis.hlo.parse import parse_hlo
from outlay.analysis.verify.as_compiled.blamed_pass import (
    AfterPass,
    Blamed,
    after_each_pass,
    changed,
    first_wrong,
    in_order,
)

NAMES = ["spmd-partitioning", "algsimp", "pipeline-start", "code-motion", "dce", "fusion", "layout"]
TEXTS = [AfterPass(name, str(number)) for number, name in enumerate(NAMES)]

IN_LOOP = """HloModule jit_f, num_partitions=2

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %z = f32[] add(%x, %y)
}

ENTRY %main (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  ROOT %b = f32[4]{0} all-reduce(%a), replica_groups={{0,1}}, channel_id=1, use_global_device_ids=true, to_apply=%add, metadata={op_name="jit(f)/add" source_file="/home/me/f.py" source_line=3}
}
"""  # noqa: E501  such are the lines of a compiler


def answering(wrong_from, unknown=()):
    """What says of a text whether it is right, and the texts that it was asked about."""
    asked = []

    def is_right(text):
        asked.append(int(text))
        return None if int(text) in unknown else int(text) < wrong_from

    return is_right, asked


@pytest.mark.parametrize(("wrong_from", "name"), [(1, "algsimp"), (3, "code-motion"), (5, "fusion"), (6, "layout")])
def test_the_first_pass_after_which_a_program_is_wrong_is_found_by_halving(wrong_from, name):
    is_right, asked = answering(wrong_from)
    blamed = first_wrong(TEXTS, is_right, 60)
    assert blamed.name == name
    assert (blamed.before, blamed.after) == (str(wrong_from - 1), str(wrong_from))
    assert len(asked) <= 5


def test_a_program_that_is_wrong_when_it_is_partitioned_blames_no_later_pass():
    blamed = first_wrong(TEXTS, answering(0)[0], 60)
    assert blamed.name == ""
    assert "as soon as XLA has partitioned it" in blamed.in_words


def test_texts_that_cannot_be_computed_leave_several_passes():
    blamed = first_wrong(TEXTS, answering(5, unknown=(3, 4))[0], 60)
    assert blamed.candidates == ("code-motion", "dce", "fusion")
    assert "one of XLA's passes code-motion, dce, fusion" in blamed.in_words


def test_nothing_is_blamed_if_it_is_right_when_compiled_again_or_if_no_text_was_kept():
    assert first_wrong(TEXTS, answering(len(TEXTS))[0], 60) is None
    assert first_wrong([], answering(0)[0], 60) is None


def test_nothing_is_blamed_when_the_time_is_over():
    assert first_wrong(TEXTS, answering(5)[0], 0) is None


def test_exchanges_that_a_pass_changes_are_named_with_their_lines(tmp_path):
    names = ["0003.spmd.after_spmd-partitioning.before_dce", "0004.cleanup.after_dce.before_pipeline-end"]
    for name, text in zip(names, (IN_LOOP, IN_LOOP.replace("all-reduce", "collective-broadcast")), strict=True):
        (tmp_path / f"module_0007.jit_f.{name}.txt").write_text(text)
    (tmp_path / "module_0009.fused.0000.cublas.after_pipeline-start.before_dce.txt").write_text("another module")
    texts = in_order(str(tmp_path))
    assert [one.name for one in texts] == ["spmd-partitioning", "dce"]
    blamed = first_wrong(texts, lambda text: text == IN_LOOP, 60)
    assert changed(blamed, (("data", 2),)) == [
        "before it all-reduce over data outside of loops (/home/me/f.py:3)",
        "after it collective-broadcast over data outside of loops (/home/me/f.py:3)",
    ]


def test_where_a_compiler_keeps_texts_of_pipelines_only_these_are_named(tmp_path):
    names = [
        "0016.xla-partitioner.after_tpu-spmd-partitioning.before_tpu-call-inliner",
        "0020.pipelining.after_pipeline-start.before_simplify-while-loops",
        "0021.code-motion-setup.after_pipeline-start.before_reorder-reduce-transpose",
    ]
    for name, text in zip(names, (IN_LOOP, IN_LOOP, "wrong"), strict=True):
        (tmp_path / f"module_0000.jit_f.cl_1.{name}.txt").write_text(text)
    texts = in_order(str(tmp_path))
    assert [one.pipeline for one in texts] == ["xla-partitioner", "pipelining", "code-motion-setup"]
    blamed = first_wrong(texts, lambda text: text == IN_LOOP, 60)
    assert blamed.name == ""
    assert "one of XLA's passes between the starts of pipelining and code-motion-setup" in blamed.in_words


def test_other_operations_that_a_pass_changes_are_named_if_its_exchanges_are_the_same():
    line = 'metadata={op_name="jit(f)/mul" source_file="/home/me/f.py" source_line=7}'
    right = IN_LOOP.replace("  ROOT %b", f"  %c = f32[4]{{0}} multiply(%a, %a), {line}\n  ROOT %b")
    wrong = right.replace("multiply(", "add(")
    assert changed(Blamed("algsimp", ("algsimp",), right, wrong), (("data", 2),)) == [
        "before it multiply f32[4] (/home/me/f.py:7)",
        "after it add f32[4] (/home/me/f.py:7)",
    ]


@pytest.mark.compiles
@needs_gpu_compiler
def test_the_gpu_compiler_keeps_the_program_after_each_pass_and_each_can_be_computed():
    program = outlay.program(
        lambda state, batch: (state - (batch @ state).sum(), {"loss": jnp.sum(state)}),
        lambda key: jnp.ones(8),
        np.ones((4, 8), np.float32),
        layout=outlay.fsdp(min_size=8) + outlay.data_parallel(),
        mesh=outlay.mesh(data=2, target="h100:1x2"),
    )
    assert program.compiled  # which leaves out options that this compiler does not know
    texts = after_each_pass(program.lowered, dict(program.compiler_options.values), program.mesh.devices.flat[0])
    assert texts[0].name == "spmd-partitioning"
    assert {"layout-assignment", "priority-fusion"} <= {one.name for one in texts}
    assert [one.name for one in texts if unknown_operations(parse_hlo(one.text))] == []
