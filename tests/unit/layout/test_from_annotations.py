"""What a model says of its own arrays: read as a layout, and not passed over in silence."""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import outlay
from outlay.devices.mesh_info import MeshInfo
from outlay.errors import LayoutError

LECUN = nn.initializers.lecun_normal()
MESH = MeshInfo.of(outlay.mesh(data=4, model=2))


class Linen(nn.Module):
    """Two dense layers, one that names mesh axes and one with logical names."""

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(16, kernel_init=nn.with_partitioning(LECUN, (None, "model")), name="up")(x)
        return nn.Dense(8, kernel_init=nn.with_logical_partitioning(LECUN, ("mlp", "embed")), name="down")(x)


class Logical(nnx.Module):
    """Layers of NNX with logical names, which no mesh has."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        up, down = (nnx.with_partitioning(LECUN, names) for names in (("embed", "mlp"), ("mlp", "embed")))
        self.layers = nnx.List(
            [
                nnx.List([nnx.Linear(8, 16, kernel_init=up, rngs=rngs), nnx.Linear(16, 8, kernel_init=down, rngs=rngs)])
                for _ in range(3)
            ]
        )


def variables(key):
    return Linen().init(key, jnp.ones((1, 8)))


def state_of_nnx(key):
    return {"params": nnx.state(Logical(nnx.Rngs(key)))}


def pairs(layout):
    return [(rule.pattern, rule.placement) for rule in layout]


def test_names_of_mesh_axes_and_logical_names():
    layout = outlay.layout.from_annotations(variables, [("mlp", "model"), ("embed", None), ("model", "model")])
    assert dict(pairs(layout)) == {"params.up.kernel": P(None, "model"), "params.down.kernel": P("model")}


def test_a_part_of_the_state_stands_below_its_path():
    params = jax.eval_shape(variables, jax.random.key(0))["params"]
    layout = outlay.layout.from_annotations(
        params, {"mlp": "model", "embed": "model", "model": "model"}, below="params"
    )
    # A mesh axis splits one dim of an array: the first that asks for it.
    assert dict(pairs(layout))["params.down.kernel"] == P("model")


def test_equal_layers_of_nnx_are_one_rule_and_take_the_first_rule_that_is_free():
    rules = [("embed", "data"), ("mlp", "data"), ("mlp", ("model", "pod"))]
    layout = outlay.layout.from_annotations(state_of_nnx, rules)
    assert pairs(layout) == [
        ("params.layers.*.0.kernel", P("data", ("model", "pod"))),
        ("params.layers.*.1.kernel", P("data")),
    ]


def test_a_module_itself_and_arrays_with_named_axes():
    with nnx.use_eager_sharding(False):
        module = Logical(nnx.Rngs(0))
    assert len(outlay.layout.from_annotations(module, {"embed": None, "mlp": "model"})) == 2
    assert pairs(outlay.layout.from_annotations({"w": Named(jnp.ones((4, 8)), (Axis("embed"), Axis("mlp")))})) == [
        ("w", P("embed", "mlp"))
    ]


@dataclass
class Axis:
    name: str


@jax.tree_util.register_dataclass
@dataclass
class Named:
    """As haliax has them: an array, and an axis with a name for each of its dims."""

    array: Any
    axes: tuple[Axis, ...] = ()


def test_a_layout_from_annotations_composes():
    layout = outlay.layout.from_annotations(state_of_nnx, {"embed": None, "mlp": "model"}) + outlay.fsdp(min_size=8)
    layout += outlay.data_parallel()
    program = outlay.program(
        lambda state, batch: (state, {}),
        state_of_nnx,
        jnp.ones((8, 8)),
        layout=layout,
        mesh=outlay.mesh(data=4, model=2),
    )
    assert program.plan["params.layers.0.0.kernel"].spec == P("data", "model")
    assert program.plan["params.layers.2.1.kernel"].spec == P("model", "data")
    assert not any("annotations" in note for note in program.plan.notes)
    assert program.init(jax.random.key(0))["params"]["layers"][0][0]["kernel"][...].sharding.spec == P("data", "model")


def test_annotations_that_a_layout_leaves_out_are_told_and_those_it_follows_are_not():
    def state(key):
        params = variables(key)["params"]
        return {"params": params, "opt_state": optax.adam(1e-3).init(params)}

    shapes = jax.eval_shape(state, jax.random.key(0))
    (note,) = [note for note in outlay.data_parallel().plan(shapes, MESH).notes if "annotations" in note]
    assert note == (
        "2 leaves (1.0 KiB) carry annotations of the model that this layout does not follow, such as "
        "params.down.kernel: ('mlp', 'embed') there, P() here; "
        "outlay.layout.from_annotations(init) makes a layout of them"
    )
    followed = outlay.Layout([("params.up.kernel", P(None, "model"))]) + outlay.data_parallel()
    (note,) = [note for note in followed.plan(shapes, MESH).notes if "annotations" in note]
    assert note.startswith("1 leaf (512 B) carry annotations")


def test_names_without_a_rule_are_all_listed_with_the_nearest():
    with pytest.raises(LayoutError, match=r"the rules leave out 2 logical names of the model:") as error:
        outlay.layout.from_annotations(state_of_nnx, [("embeds", "model")])
    assert "'embed'\n    a dim of 6 arrays, such as params.layers.0.0.kernel, has it (did you mean 'embeds'?)" in str(
        error.value
    )
    assert 'fix: add ("mlp", None) to the rules' in str(error.value)


def test_axes_that_the_mesh_lacks_are_refused_by_the_plan():
    layout = outlay.layout.from_annotations(variables) + outlay.data_parallel()
    with pytest.raises(LayoutError, match=r"names 2 axes that .* lacks:(?s:.)*of from_annotations"):
        layout.plan(jax.eval_shape(variables, jax.random.key(0)), MESH)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"w": jnp.ones(3)}, r"no annotations: dict\n(?s:.)*fix: nn.with_partitioning"),
        (Linen(), r"no arrays: Linen\n(?s:.)*fix: outlay.layout.from_annotations\(lambda key: model.init"),
    ],
)
def test_models_without_annotations_are_refused(model, message):
    with pytest.raises(LayoutError, match=message):
        outlay.layout.from_annotations(model)
