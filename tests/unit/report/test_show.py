import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.report.arrays import mesh_of, pod, put, shape_on

from outlay.core.error_types import OutlayError
from outlay.layout.layout import Layout
from outlay.layout.placement import on, replicate
from outlay.report.show import show

BRAIN = ["spiker", "integrator", "A_ex", "A_in", "B_ex", "B_in"]


def test_everything_on_device_0_by_default():
    shown = show({"A_ex": {"soma": {"potential": jnp.zeros(256)}}, "integrator": {"trace": jnp.zeros(2)}})
    assert [leaf.place for leaf in shown] == ["device 0", "device 0"]
    assert shown.notes == ("everything is on device 0; JAX has 7 more devices with nothing on them",)


def test_whole_on_six_devices_is_replicated_six_times():
    mesh = mesh_of(6, d=6)
    shown = show({"A_ex": {"kernel": put((256, 832), mesh)}, "trace": put((2,), mesh)})
    assert {leaf.in_words for leaf in shown} == {"replicated 6 times"}
    assert {leaf.num_copies for leaf in shown} == {6}
    assert shown.totals.replication == 6
    assert "replicated 6 times" in str(shown)
    assert "distributed" not in str(shown) + shown.to_html()


def test_a_layout_that_brings_nothing_says_so():
    shown = show({"kernel": put((256, 832), mesh_of(6, d=6))})
    assert "this layout gains nothing: every leaf is replicated 6 times" in shown.notes[0]
    assert "no dim of kernel (256, 832) is divisible by 6" in shown.notes[0]


def test_modules_on_different_devices():
    tree = {
        name: {"kernel": jax.device_put(np.ones(256, np.float32), device)}
        for name, device in zip(BRAIN, jax.devices()[:6], strict=True)
    }
    shown = show(tree)
    assert shown["A_ex.kernel"].place == "device 2"
    assert shown["B_ex.kernel"].in_words == "whole, on device 4"
    held = {
        row.device_ids: dict(zip(shown.facts.heat.modules, row.num_bytes, strict=True)) for row in shown.facts.heat.rows
    }
    assert held[(2,)] == {"A_ex": 1024, "A_in": 0, "B_ex": 0, "B_in": 0, "integrator": 0, "spiker": 0}


def test_leaves_on_different_meshes():
    left = mesh_of(4, x=4)
    right = jax.sharding.Mesh(
        np.array(jax.devices()[4:]).reshape(2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )
    shown = show({"left": put((8,), left, "x"), "right": put((4, 4), right, "a", "b"), "host": np.ones(3)})
    assert [dict(mesh.axes) for mesh in shown.facts.meshes] == [{"x": 4}, {"a": 2, "b": 2}]
    assert [device.num_bytes for device in shown.facts.devices] == [8] * 4 + [16] * 4
    assert shown.to_dict()["leaves"][2]["mesh"] == 1


@pytest.mark.compiles
def test_dtypes_that_numpy_does_not_know():
    mesh = mesh_of(x=8)
    keys = jax.device_put(jax.random.split(jax.random.key(0), 8), jax.sharding.NamedSharding(mesh, P("x")))
    shown = show(
        {
            "bool": put((8,), mesh, "x", dtype=bool),
            "bf16": put((8,), mesh, "x", dtype=jnp.bfloat16),
            "int4": put((16,), mesh, "x", dtype=jnp.int4),
            "key": keys,
        }
    )
    assert {leaf.path: (leaf.dtype, leaf.bytes_per_device) for leaf in shown} == {
        "bool": ("bool", 1),
        "bf16": ("bfloat16", 2),
        "int4": ("int4", 1),
        "key": ("key<fry>", 8),
    }


def test_shapes_without_devices():
    deleted = jnp.ones(4)
    deleted.delete()
    tree = {"numpy": np.ones(3), "number": 2, "shape": jax.ShapeDtypeStruct((3,), jnp.int8), "deleted": deleted}
    shown = show(tree)
    assert {leaf.path: (leaf.place, leaf.in_words) for leaf in shown} == {
        "numpy": ("host", "on the host only"),
        "number": ("host", "on the host only"),
        "shape": ("nowhere", "a shape without a sharding"),
        "deleted": ("nowhere", "deleted"),
    }
    assert shown.facts.devices == ()
    assert shown.facts.heat.modules == ()
    json.dumps(shown.to_dict())


def test_arrays_of_no_size_and_no_rank():
    mesh = mesh_of(x=8)
    shown = show({"empty": put((0, 3), mesh, "x"), "scalar": put((), mesh)})
    assert shown["empty"].local_shape == (0, 3)
    assert shown["empty"].bytes_per_device == 0
    assert shown["scalar"].blocks.by_position == tuple(range(8))
    assert "replicated 8 times" in str(show(put((), mesh)))


def test_uncommitted_arrays_say_so():
    assert show(jnp.ones(3)).leaves[0].reason == "not committed: jit may move it"
    assert show(jax.device_put(jnp.ones(3), jax.devices()[1])).leaves[0].reason == ""


def test_empty_tree():
    shown = show({})
    assert len(shown) == 0
    assert "no arrays" in str(shown)
    assert "<html" in shown.to_html()


def test_abstract_mesh_needs_no_devices():
    shown = show({"k": shape_on((1024, 512), pod(data=32, model=8), "data", "model")})
    assert shown.blocks.by_position[31][7] == (255,)
    assert shown.facts.device_kind == "abstract"
    assert "256 abstract devices" in str(shown)


def test_plan_with_rules_reasons_and_batch():
    mesh = mesh_of(data=4, model=2)
    layout = Layout([("params.w", P(None, "model")), ("opt", on(3)), ("batch.**", P("data"))]) + replicate()
    shapes = {
        "params": {"w": jax.ShapeDtypeStruct((8, 4), jnp.float32)},
        "opt": jax.ShapeDtypeStruct((4,), jnp.float32),
    }
    plan = layout.plan(shapes, mesh, batch={"x": jax.ShapeDtypeStruct((8, 2), jnp.float32)})
    shown = show(plan)
    assert shown.facts.subject == "plan"
    assert shown["params.w"].place == "P(None, 'model')"
    assert shown["params.w"].rule
    assert shown["opt"].place == "device 3"
    assert shown["opt"].num_copies == 1
    assert shown["batch.x"].kind == "batch"
    # The batch comes and goes: it is in the table, not in the state's totals.
    assert shown.totals.num_leaves == 2
    assert [device.num_bytes for device in shown.facts.devices] == list(plan.bytes_per_device.values())
    assert shown.totals.replication == plan.replication


def test_tree_and_its_plan_say_the_same():
    mesh = mesh_of(data=4, model=2)
    tree = {"w": put((8, 4), mesh, "data", "model"), "b": put((4,), mesh)}
    plan = Layout([("w", P("data", "model")), ("b", replicate())]).plan(tree, mesh)
    from_tree, from_plan = show(tree), show(plan)
    assert from_tree.totals == from_plan.totals
    assert from_tree.facts.heat == from_plan.facts.heat
    assert [leaf.blocks for leaf in from_tree] == [leaf.blocks for leaf in from_plan]


def test_by_path():
    mesh = mesh_of(x=8)
    tree = {"layers": [{"w": put((8,), mesh, "x")}, {"w": put((8,), mesh)}], "step": put((), mesh)}
    assert show(tree, "layers.1.w").leaves[0].in_words == "replicated 8 times"
    assert [leaf.path for leaf in show(tree, "layers")] == ["layers.0.w", "layers.1.w"]
    assert [leaf.path for leaf in show(tree, "layers.*.w")] == ["layers.0.w", "layers.1.w"]


def test_path_that_is_not_there():
    with pytest.raises(
        OutlayError, match=r"no leaf and no module at path 'layer' among 2 leaves: did you mean 'layers'"
    ):
        show({"layers": {"w": np.ones(2)}, "step": 0}, "layer")


def test_leaves_that_are_no_arrays_are_named():
    shown = show({"w": np.ones(2), "activation": jnp.tanh, "name": "mlp"})
    assert [leaf.path for leaf in shown] == ["w"]
    assert shown.notes[-1].startswith("left out, since they are not arrays: activation (")
    assert "name (str)" in shown.notes[-1]


@pytest.mark.parametrize(
    ("thing", "named"), [(len, "a builtin_function"), ("abc", "a str"), ({"f": len}, "a dict whose 1 lea")]
)
def test_values_without_a_place_are_refused(thing, named):
    with pytest.raises(OutlayError, match=f"outlay.show was given {named}.*does not live on devices") as caught:
        show(thing)
    assert isinstance(caught.value, TypeError)


def test_traced_value():
    with pytest.raises(OutlayError, match="cannot see a value that is being traced"):
        jax.jit(lambda x: show(x))(1.0)


def test_sharding_that_does_not_divide_lists_every_leaf():
    mesh = pod(data=32)
    with pytest.raises(OutlayError, match="2 of 3 arrays cannot have their sharding") as caught:
        show(
            {
                "a": shape_on((7,), mesh, "data"),
                "b": shape_on((64,), mesh, "data"),
                "c": shape_on((2, 9), mesh, None, "data"),
            }
        )
    assert "P(None, 'data') cuts dim 1 of (2, 9) in 32 pieces, but 9 is not divisible by 32" in str(caught.value)


def test_blocks_of_a_tree_are_asked_for_by_path():
    with pytest.raises(OutlayError, match=r"2 arrays were shown.*show\(x\)\['a'\].blocks"):
        show({"a": jnp.ones(2), "b": jnp.ones(2)}).blocks  # noqa: B018 - the access raises
    with pytest.raises(OutlayError, match="on the host only"):
        show(np.ones(2)).blocks  # noqa: B018 - the access raises
    with pytest.raises(KeyError, match="did you mean 'kernel'"):
        show({"kernel": jnp.ones(2)})["kernle"]
