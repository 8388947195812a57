"""What a collective moves, of programs that were written by hand."""

import pytest

from outlay.analysis.attribution.collective_facts import collective_facts
from outlay.analysis.attribution.leaves import Leaf
from outlay.analysis.hlo.hlo_module import Shape
from outlay.analysis.hlo.parse import parse_hlo

# Two gradients of 8 and 4 numbers and a loss, summed together and taken apart again.
JOINED = """\
HloModule step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }, \
num_partitions=4

add (a: f32[], b: f32[]) -> f32[] {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}

ENTRY main (small: f32[4], large: f32[8], seen: f32[13]) -> (f32[4], f32[8], f32[1]) {
  small = f32[4] parameter(0), metadata={op_name="state['small']"}
  large = f32[8] parameter(1), metadata={op_name="state['large']"}
  seen = f32[13] parameter(2), metadata={op_name="batch"}
  twice = f32[13] multiply(seen, seen)
  first = f32[4] slice(twice), slice={[0:4]}
  second = f32[8] slice(twice), slice={[4:12]}
  third = f32[1] slice(twice), slice={[12:13]}
  JOIN
  summed = f32[13] all-reduce(joined), channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, \
to_apply=add, metadata={op_name="jit(step)/transpose(jvp())/transpose"}
  grad = f32[4] slice(summed), slice={[0:4]}
  other = f32[8] slice(summed), slice={[4:12]}
  loss = f32[1] slice(summed), slice={[12:13]}
  new = f32[4] subtract(small, grad)
  newer = f32[8] subtract(large, other)
  ROOT out = (f32[4], f32[8], f32[1]) tuple(new, newer, loss)
}
"""
LEAVES = [
    Leaf(number, path, Shape("f32", (size,)))
    for number, (path, size) in enumerate([("params.small", 4), ("params.large", 8), ("batch", 13)])
]


@pytest.mark.parametrize(
    ("joined", "gradients", "value"),
    [
        (
            "joined = f32[13] concatenate(first, second, third), dimensions={0}",
            ("params.large", "params.small"),
            "gradients of 2 leaves: params.**",
        ),
        ("joined = f32[13] negate(twice)", (), "result of transpose"),
    ],
)
def test_gradients_that_are_summed_in_one_array_name_their_leaves(joined, gradients, value):
    (fact,) = collective_facts(parse_hlo(JOINED.replace("JOIN", joined)), LEAVES, None, None)
    assert (fact.gradients, fact.value, fact.leaves) == (gradients, value, ())
