"""Which operations a finding takes for light: they would work as well on another sharding."""

import pytest

from outlay.analysis.findings.communication import is_elementwise
from outlay.analysis.hlo.parse import parse_hlo


def is_light(operation, *, fused=False):
    line = f"%q = f32[4]{{0}} {operation}"
    inner = f"%f (p: f32[4]) -> f32[4] {{\n  %p = f32[4]{{0}} parameter(0)\n  ROOT {line}\n}}\n\n" if fused else ""
    outer = "%q = f32[4]{0} fusion(%p), kind=kLoop, calls=%f" if fused else line
    module = parse_hlo(
        f"HloModule m\n\n{inner}ENTRY %main (p: f32[4]) -> f32[4] {{\n"
        f"  %p = f32[4]{{0}} parameter(0)\n  ROOT {outer}\n}}\n"
    )
    return is_elementwise(module, module.computations["main"].instructions["q"])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    "operation",
    [
        "add(%p, %p)",
        "remainder(%p, %p)",
        "atan2(%p, %p)",
        "tan(%p)",
        "reverse(%p), dimensions={0}",
        "shift-left(%p, %p)",
    ],
)
def test_what_is_computed_entry_by_entry_is_light(operation, fused):
    assert is_light(operation, fused=fused)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("operation", ["sort(%p), dimensions={0}", "dot(%p, %p)", "all-reduce(%p)", "gather(%p, %p)"])
def test_what_takes_entries_together_is_not(operation, fused):
    assert not is_light(operation, fused=fused)
