"""Passes that are known to compile wrong programs are left out of the programs that they may change."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.devices.compilers import needs_gpu_compiler

import outlay
from outlay.program import compiler_faults
from outlay.program.compiler_faults import CompilerFault, faults_in_reach

FAULT = CompilerFault("a report", "sums are lost", "some-pass", "1000", "stablehlo.scatter")


@pytest.fixture
def a_known_fault(monkeypatch):
    monkeypatch.setattr(compiler_faults, "known_faults", lambda: (FAULT,))


def add_rows(table, row):
    return table.at[row].add(1.0), None


def add_rows_in_a_function(table, row):
    return jax.jit(jax.jit(lambda table: add_rows(table, row)[0]))(table), None


TABLE, ROWS = jnp.zeros((8, 4)), jnp.arange(6)
IN_REACH = {
    "in a loop": lambda table, rows: jax.lax.scan(add_rows, table, rows)[0],
    "in a function of a loop": lambda table, rows: jax.lax.scan(add_rows_in_a_function, table, rows)[0],
}
OUT_OF_REACH = {
    "not in a loop": lambda table, rows: add_rows(table, rows)[0],
    "beside a loop": lambda table, rows: jax.lax.scan(lambda x, row: (x * 2, None), table.at[rows].add(1.0), rows)[0],
}


@pytest.mark.parametrize("name", [*IN_REACH, *OUT_OF_REACH])
def test_a_fault_is_in_reach_where_its_operation_runs_in_a_loop(a_known_fault, name):
    step = {**IN_REACH, **OUT_OF_REACH}[name]
    assert faults_in_reach(jax.jit(step).lower(TABLE, ROWS), "gpu") == ((FAULT,) if name in IN_REACH else ())


@needs_gpu_compiler
@pytest.mark.skipif(not compiler_faults.known_faults(), reason="the compilers of this jaxlib have no known fault")
def test_a_preset_leaves_the_pass_out_and_says_so():
    def program(**options):
        return outlay.program(
            lambda state, rows: ({"table": IN_REACH["in a loop"](state["table"], rows)}, {}),
            lambda key: {"table": TABLE},
            ROWS,
            layout=outlay.Layout([("table", P())]) + outlay.data_parallel(),
            mesh=outlay.mesh(data=2, target="h100:1x2"),
            **options,
        )

    preset = program()
    assert preset.compiled
    (note,) = [note for note in preset.compiler_options.notes if "xla#49143" in note]
    assert "without the pass while-loop-all-reduce-code-motion" in note
    plain = program(compiler_options="none")
    assert plain.compiled
    assert not plain.compiler_options.values
