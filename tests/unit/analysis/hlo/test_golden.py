"""The same six programs as CPU, GPU and TPU compilers of two JAX versions see them: what runs is known by hand."""

import re
from pathlib import Path

import pytest
from tests.unit.analysis.hlo.golden import FILES, FOLDER, MESH, golden_text

from outlay.analysis.attribution.provenance import metadata_of
from outlay.analysis.hlo.groups import axes_of
from outlay.analysis.hlo.hlo_collectives import collectives_of
from outlay.analysis.hlo.parse import parse_hlo

DATA, MODEL = ("data",), ("model",)
FLOAT = 4

# (kind, axes, bytes in, bytes out, dtype, runs a step) of each collective.
GATHER = ("all-gather", DATA, 64 * 256 * FLOAT, 256 * 256 * FLOAT, "f32", 4)
HALF_GATHER = ("all-gather", DATA, 64 * 256 * 2, 256 * 256 * 2, "bf16", 4)
SCATTER = ("reduce-scatter", DATA, 256 * 256 * FLOAT, 64 * 256 * FLOAT, "f32", 4)
SUM_FOR_SCATTER = ("all-reduce", DATA, 256 * 256 * FLOAT, 256 * 256 * FLOAT, "f32", 4)
BOTH_LEAVES = (64 * 128 + 128 * 32) * FLOAT
NESTED = 8 * 128
EXPECTED = {
    "data_parallel": {"any": [("all-reduce", DATA, BOTH_LEAVES, BOTH_LEAVES, "f32", 1)]},
    "fsdp": {
        "cpu": [GATHER, GATHER, SUM_FOR_SCATTER],  # this compiler makes no reduce-scatters
        "tpu": [HALF_GATHER, HALF_GATHER, SCATTER],  # a TPU multiplies in bfloat16, so that is what it gathers
        "gpu": [GATHER, GATHER, SCATTER],
    },
    "tensor_parallel": {"any": [("all-reduce", MODEL, 8 * 64 * FLOAT, 8 * 64 * FLOAT, "f32", 1)]},
    "reshard": {"any": [("all-to-all", DATA, 16 * 64 * FLOAT, 64 * 16 * FLOAT, "f32", 1)]},
    "ring": {"any": [("collective-permute", DATA, 16 * 128 * FLOAT, 16 * 128 * FLOAT, "f32", 7)]},
    "nested": {
        "cpu": [("all-reduce", MODEL, NESTED * 8, NESTED * 8, "f32", 15)],  # it has no sums of bfloat16
        "any": [
            ("all-reduce", MODEL, NESTED * 2, NESTED * 2, "bf16", 15),
            ("all-reduce", MODEL, NESTED * 4, NESTED * 4, "f32", 15),
        ],
    },
}
# The source line that each program's collectives come from, by what is written there.
SOURCE = {
    "data_parallel": ["jnp.tanh(x @", "(hidden @"],
    "fsdp": ["jnp.tanh(h @", "jax.lax.scan(layer"],
    "tensor_parallel": ["@ w2"],
    "reshard": ["x * 2"],
    "ring": ["ppermute("],
    "nested": ["jax.lax.psum("],
}


def parts(name: str) -> tuple[str, str]:
    kind, _, program = name.split("-")
    return kind, program


def test_collectives_that_the_device_need_not_wait_for():
    def waits(name):
        return sorted(one.kind for one in collectives_of(parse_hlo(golden_text(name))) if one.is_async)

    assert waits("cpu-0.12.0.1-fsdp") == []
    assert waits("gpu-0.10.2-fsdp") == ["all-gather", "all-gather", "reduce-scatter"]
    assert waits("gpu-0.12.0.1-fsdp") == []  # three starts that were taken back
    assert waits("tpu-0.12.0.1-fsdp") == ["all-gather"]  # in the backward pass only
    assert waits("tpu-0.12.0.1-ring") == ["collective-permute"]


def test_all_compilers_and_versions_are_there():
    kinds = {tuple(name.split("-")[:2]) for name in FILES}
    assert len(kinds) == 6
    assert len(FILES) == 6 * len(EXPECTED)


@pytest.mark.parametrize("name", FILES)
def test_collectives(name: str):
    kind, program = parts(name)
    module = parse_hlo(golden_text(name))
    facts = [
        (one.kind, axes_of(one.groups, MESH), one.operand_bytes, one.result_bytes, one.dtype, one.count)
        for one in collectives_of(module)
    ]
    assert module.skipped == ()
    assert module.num_partitions == 8
    assert all(one.count_is_exact for one in collectives_of(module))
    assert sorted(facts) == sorted(EXPECTED[program].get(kind) or EXPECTED[program]["any"])


@pytest.mark.parametrize("name", FILES)
def test_source_lines(name: str):
    _, program = parts(name)
    source = (FOLDER / "programs.py").read_text().splitlines()
    module = parse_hlo(golden_text(name))
    for one in collectives_of(module):
        op_name, frames = metadata_of(module, one.computation, one.instruction)
        assert op_name.startswith("jit(")
        assert frames[0].file == "programs.py"
        assert len(set(frames)) == len(frames)
        line = source[frames[0].line - 1]
        assert any(text in line for text in SOURCE[program]), line
        # from the innermost line outwards, to the place that lowered the program
        assert Path(frames[-1].file).name == "make.py"


@pytest.mark.parametrize("name", [name for name in FILES if "fsdp" in name or "data_parallel" in name])
def test_donated_inputs(name: str):
    aliases = parse_hlo(golden_text(name)).input_output_alias
    assert aliases == ((((), 0),) if "fsdp" in name else (((0,), 0), ((1,), 1)))


@pytest.mark.parametrize("name", FILES)
def test_nothing_of_the_text_is_lost(name: str):
    text = golden_text(name)
    module = parse_hlo(text)
    num_lines = len(re.findall(r"^  (?:ROOT )?%\S+ = ", text, re.MULTILINE))
    num_computations = len(re.findall(r"^(?:ENTRY )?%\S+ \(.*\{$", text, re.MULTILINE))
    assert sum(len(one.instructions) for one in module.computations.values()) == num_lines > 0
    assert len(module.computations) == num_computations
    for computation in module.computations.values():
        assert computation.root is not None
        for one in computation.instructions.values():
            assert set(one.operands) <= computation.instructions.keys()
            assert set(one.calls) <= module.computations.keys()
