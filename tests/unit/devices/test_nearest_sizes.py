import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.core.error_types import MeshError
from outlay.devices.mesh_spec import MeshSpec, nearest_sizes

sizes = st.dictionaries(st.sampled_from(["data", "model", "seq", "fsdp"]), st.integers(1, 12), min_size=1)


@given(requested=sizes, product=st.integers(1, 600))
def test_the_sizes_proposed_use_all_devices(requested, product):
    near = nearest_sizes(requested, product)
    assert list(near) == list(requested)
    assert math.prod(near.values()) == product
    if math.prod(requested.values()) == product:
        assert near == requested


@given(requested=sizes, num_devices=st.integers(1, 300), opened=st.booleans())
def test_the_fix_in_the_message_works(requested, num_devices, opened):
    spec = MeshSpec({**requested, "model": -1} if opened else requested)
    try:
        spec.resolve(num_devices)
    except MeshError as error:
        MeshSpec.parse(fix_in(error)).resolve(num_devices)


@given(requested=sizes, num_hosts=st.integers(1, 6), per_host=st.integers(1, 12))
def test_the_fix_of_an_axis_that_would_cross_hosts_works(requested, num_hosts, per_host):
    requested = nearest_sizes(requested, num_hosts * per_host)
    try:
        MeshSpec(requested).resolve(num_hosts * per_host, num_hosts)
    except MeshError as error:
        MeshSpec.parse(fix_in(error)).resolve(num_hosts * per_host, num_hosts)
        crossing = dict.fromkeys(requested, "hosts")
        assert MeshSpec(requested, over=crossing).resolve(num_hosts * per_host, num_hosts).axis_sizes == requested


def fix_in(error: MeshError) -> str:
    [line] = [line for line in str(error).splitlines() if line.startswith("  fix: outlay.mesh(")]
    return line.split("(")[1].split(")")[0]


@pytest.mark.parametrize(
    ("text", "num_devices", "message"),
    [
        (
            "data=4,model=3",
            8,
            """data=4 x model=3 = 12, but there are 8 devices
  fix: outlay.mesh(data=4, model=2) (8 = 4 x 2)
  or let one axis take all remaining devices: outlay.mesh(data=4, model=-1)
  or try it on 12 simulated devices: outlay.simulate(12) before anything else uses JAX""",
        ),
        (
            "data=2",
            8,
            """data=2, but there are 8 devices
  fix: outlay.mesh(data=8)
  or let one axis take all remaining devices: outlay.mesh(data=-1)
  or use 2 of the 8: outlay.mesh(data=2, devices=jax.devices()[:2])""",
        ),
        (
            "data=-1,model=3",
            8,
            """data=-1 x model=3: there are 8 devices, and 8 is not a multiple of model=3
  fix: outlay.mesh(data=2, model=4) (8 = 2 x 4)
  or use 6 of the 8: outlay.mesh(data=-1, model=3, devices=jax.devices()[:6])
  or try it on 9 simulated devices: outlay.simulate(9) before anything else uses JAX""",
        ),
        ("data=-1", 0, "data=-1: there are no devices to arrange"),
    ],
)
def test_devices_left_over_or_missing_show_the_arithmetic_and_what_would_fit(text, num_devices, message):
    with pytest.raises(MeshError) as caught:
        MeshSpec.parse(text).resolve(num_devices)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "num_devices", "num_hosts", "message"),
    [
        (
            "model=8",
            8,
            2,
            """axis 'model' must stay inside a host, but a host has 4 devices (8 on 2 hosts): groups of \
model=8 would run over 2 hosts
  fix: outlay.mesh(data=2, model=4)
  or let it cross, over the slower network: over={'model': 'hosts'}
  (unless declared, only data, replica, fsdp, batch cross hosts, not 'model')""",
        ),
        (
            "data=3,model=2@host",
            6,
            2,
            """axis 'model' must stay inside a host, but a host has 3 devices (6 on 2 hosts): groups of \
model=2 would run in part over two hosts
  fix: outlay.mesh(data=2, model=3)
  or let it cross, over the slower network: over={'model': 'hosts'}""",
        ),
        (
            "data=2,model=8,seq=4",
            64,
            8,
            """axes 'model' and 'seq' must stay inside a host, but a host has 8 devices (64 on 8 hosts): groups of \
model=8 x seq=4 = 32 would run over 4 hosts
  fix: outlay.mesh(data=8, model=2, seq=4)
  or let it cross, over the slower network: over={'model': 'hosts', 'seq': 'hosts'}
  (unless declared, only data, replica, fsdp, batch cross hosts, not 'model', 'seq')""",
        ),
    ],
)
def test_an_axis_that_would_cross_hosts_shows_the_numbers_and_the_fixes(text, num_devices, num_hosts, message):
    with pytest.raises(MeshError) as caught:
        MeshSpec.parse(text).resolve(num_devices, num_hosts)
    assert str(caught.value) == message


def test_devices_that_hosts_cannot_share_are_refused():
    with pytest.raises(MeshError, match="8 devices cannot be spread evenly over 3 hosts"):
        MeshSpec({"data": 8}).resolve(8, num_hosts=3)
