"""Short compiled programs over data=2, model=2, whose results are placed as a test says."""

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from outlay.analysis.hlo.parse import parse_hlo
from outlay.analysis.verify.static.static_proof import Placed, statically_verified

AXES = (("data", 2), ("model", 2))
OVER_DATA, OVER_MODEL, OVER_ALL = "{{0,2},{1,3}}", "{{0,1},{2,3}}", "{{0,1,2,3}}"
ADD = """%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b), metadata={op_name="jit(step)/add"}
}
"""
GROUPS = "channel_id=1, use_global_device_ids=true, replica_groups="


def proof(entry, parameters, results, others="", op_name="jit(step)/dot_general"):
    """The proof of a program: the lines of its entry, and the specs of what it takes and returns."""
    lines = "\n".join(f"  {line}" for line in entry)
    text = f"HloModule jit_step, num_partitions=4\n\n{ADD}\n{others}\nENTRY %main () -> f32[] {{\n{lines}\n}}\n"
    text = text.replace("jit(step)/add", op_name)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def placed(specs, name):
        return [Placed(f"{name}{number}", NamedSharding(mesh, spec)) for number, spec in enumerate(specs)]

    module = parse_hlo(text)
    assert module.skipped == ()
    return statically_verified(module, AXES, placed(parameters, "in"), placed(results, "out"), "a program")


def kinds(verification):
    """The faults, by kind and axis."""
    return [(fault.kind, fault.axis) for fault in verification.faults]


SPLIT = P("data"), P(None, "model")
