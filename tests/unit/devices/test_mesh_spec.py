import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.core.error_types import MeshError
from outlay.devices.mesh_spec import MeshSpec

sizes = st.dictionaries(st.sampled_from(["data", "model", "seq", "fsdp"]), st.integers(1, 12), min_size=1)


@pytest.mark.compiles
@given(axes=sizes, data=st.data())
def test_resolving_fills_the_open_size_so_that_all_devices_are_used(axes, data):
    num_devices = math.prod(axes.values())
    opened = data.draw(st.sampled_from(sorted(axes)))
    assert MeshSpec({**axes, opened: -1}).resolve(num_devices) == MeshSpec(axes).resolve(num_devices) == MeshSpec(axes)


@given(axes=sizes, num_devices=st.integers(1, 300), opened=st.booleans())
def test_a_resolved_spec_has_as_many_devices_as_there_are(axes, num_devices, opened):
    spec = MeshSpec({**axes, next(iter(axes)): -1} if opened else axes)
    try:
        resolved = spec.resolve(num_devices)
    except MeshError:
        fixed = math.prod(size for size in spec.axis_sizes.values() if size != -1)
        assert num_devices % fixed if opened else num_devices != fixed
    else:
        assert math.prod(resolved.axis_sizes.values()) == num_devices


def test_resolving_keeps_what_is_declared():
    assert str(MeshSpec({"data": -1, "pipe": 2}, over={"pipe": "hosts"}).resolve(8, 2)) == "data=4,pipe=2@hosts"


def test_axes_cross_hosts_by_name_unless_declared():
    sizes = {"data": 2, "replica": 2, "fsdp": 2, "batch": 2, "model": 2, "pipe": 2}
    assert MeshSpec(sizes).crossing == ("data", "replica", "fsdp", "batch")
    assert MeshSpec(sizes, over={"pipe": "hosts", "data": "host"}).crossing == ("replica", "fsdp", "batch", "pipe")


def test_specs_are_equal_whatever_the_order_of_declaring():
    axes = {"data": 2, "model": 2}
    one = MeshSpec(axes, over={"data": "hosts", "model": "host"})
    assert one == MeshSpec(axes, over={"model": "host", "data": "hosts"})
    assert hash(one) == hash(MeshSpec({"data": np.int64(2), "model": 2}, over=dict(one.over)))


def test_everything_wrong_with_a_spec_is_said_at_once():
    with pytest.raises(MeshError, match=r"these axes do not make a mesh .an example of one: data=4,model=2") as caught:
        MeshSpec({"a b": 0, "c": -1, "d": -1, "e": 2.5, "g": True}, over={"f": "hosts", "e": "rack"})
    assert str(caught.value).splitlines()[1:] == [
        "  axis name 'a b' must be letters, digits and _, not starting with a digit",
        "  size of 'a b' must be at least 1, or -1 for all remaining devices, not 0",
        "  size of 'e' must be at least 1, or -1 for all remaining devices, not 2.5",
        "  size of 'g' must be at least 1, or -1 for all remaining devices, not True",
        "  only one size can be -1, but these are: 'c' and 'd'",
        "  over= declares 'f', known: 'a b', 'c', 'd', 'e', 'g'",
        "  'e' must run over 'hosts' (it may cross them) or inside one 'host', not 'rack'",
    ]


def test_a_spec_without_axes_is_refused():
    with pytest.raises(MeshError, match="there is no axis"):
        MeshSpec({})


def test_a_misspelt_declaration_is_answered_with_the_axis_meant():
    with pytest.raises(MeshError, match="over= declares 'modle', did you mean 'model'"):
        MeshSpec({"data": 4, "model": 2}, over={"modle": "host"})


@pytest.mark.processes
def test_the_spec_is_pure():
    program = "import sys, outlay.devices.mesh_spec; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=280)
