import jax
import numpy as np
from jax.sharding import PartitionSpec as P
from tests.unit.report.arrays import mesh_of, pod, put, shape_on

from outlay.devices.mesh_info import MeshInfo
from outlay.layout.layout import Layout
from outlay.report.show import show


def test_parts_that_all_paths_share_are_no_module():
    mesh = mesh_of(x=8)
    tree = {"state": {"params": {"a": {"w": put((8,), mesh, "x")}, "b": {"w": put((8,), mesh)}}}}
    heat = show(tree).facts.heat
    assert heat.modules == ("state.params.a", "state.params.b")
    assert [row.num_bytes for row in heat.rows] == [(4, 32)] * 8


def test_small_modules_are_added_up():
    mesh = mesh_of(x=8)
    tree = {f"m{i:02}": put((8 * (i + 1),), mesh) for i in range(14)}
    heat = show(tree).facts.heat
    assert heat.modules == (*(f"m{i:02}" for i in range(5, 14)), "5 others")
    assert heat.rows[0].num_bytes[-1] == 32 * (1 + 2 + 3 + 4 + 5)
    assert heat.rows[0].total == show(tree).totals.bytes_most


def test_many_devices_that_hold_the_same_share_a_row():
    mesh = pod(data=32, model=8)
    heat = show({"a": shape_on((512, 8), mesh, "data"), "b": shape_on((8,), mesh)}).facts.heat
    assert [row.device_ids for row in heat.rows] == [tuple(range(256))]


def on_two_hosts(devices_per_host):
    ids = tuple(range(2 * devices_per_host))
    mesh = MeshInfo((("data", len(ids)),), ids, tuple(i // devices_per_host for i in ids), "attached", "gpu")
    return show(Layout([("w", P("data"))]).plan({"w": jax.ShapeDtypeStruct((32,), np.float32)}, mesh))


def test_devices_are_grouped_by_host():
    shown = on_two_hosts(2)
    assert [(row.hosts, row.device_ids) for row in shown.facts.heat.rows] == [
        ((0,), (0,)),
        ((0,), (1,)),
        ((1,), (2,)),
        ((1,), (3,)),
    ]
    assert "4 gpu devices on 2 hosts" in str(shown)
    assert "<span>host 1</span>" in shown.to_html()


def test_hosts_that_hold_the_same_share_a_row():
    assert [row.hosts for row in on_two_hosts(16).facts.heat.rows] == [(0, 1)]
