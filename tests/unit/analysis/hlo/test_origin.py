"""A collective without a note of its own is given that of its nearest relative."""

import pytest

from outlay.analysis.hlo.origin import origin_of
from outlay.analysis.hlo.parse import parse_hlo

TEXT = """HloModule m, num_partitions=2

%gathering (g: f32[4]) -> f32[8] {
  %g = f32[4]{0} parameter(0)
  ROOT %inner = f32[8]{0} all-gather(%g), dimensions={0}
}

ENTRY %main (x: f32[4]) -> f32[8] {
  %x = f32[4]{0} parameter(0)
  %made = f32[4]{0} sine(%x), metadata={op_name="made" source_file="a.py" source_line=1}
  %view = f32[4]{0} bitcast(%made)
  %gathered = f32[8]{0} all-gather(%view), dimensions={0}
  %reduced = f32[4]{0} all-reduce(%view), to_apply=%add
  %named = f32[4]{0} all-reduce(%view), to_apply=%add, metadata={op_name="own"}
  %noted = f32[4]{0} all-reduce(%view), to_apply=%add, metadata={op_name="own" source_file="a.py" source_line=2}
  %taken = f32[8]{0} cosine(%gathered), metadata={op_name="taken" source_file="a.py" source_line=3}
  %fused = f32[8]{0} fusion(%view), calls=%gathering, metadata={op_name="fused" source_file="a.py" source_line=4}
  %use = f32[4]{0} cosine(%reduced), metadata={op_name="use" source_file="a.py" source_line=5}
  %lone = f32[] constant(1)
  ROOT %sum = f32[8]{0} add(%taken, %fused)
}
"""


@pytest.mark.parametrize(
    ("computation", "name", "op_name", "lines"),
    [
        ("main", "gathered", "taken", ["a.py:3"]),
        ("main", "reduced", "made", ["a.py:1"]),
        ("main", "named", "own", ["a.py:1"]),
        ("main", "noted", "own", ["a.py:2"]),
        ("gathering", "inner", "fused", ["a.py:4"]),
        ("main", "lone", "", []),
    ],
)
def test_origin(computation, name, op_name, lines):
    module = parse_hlo(TEXT)
    instruction = module.computations[computation].instructions[name]
    found, frames = origin_of(module, computation, instruction)
    assert (found, [str(frame) for frame in frames]) == (op_name, lines)
