"""Annotations that libraries place while a model is made, that name a mesh, that a stack hides; arrays with names."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.core import Tracer
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import outlay

MESH = outlay.mesh(data=4, model=2)
X = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
REST = outlay.replicate() + outlay.data_parallel()
SHARDING: Any = NamedSharding(MESH, P(None, "model"))
WHOLE = nn.initializers.lecun_normal()


def ran(step: Any, init: Any, batch: Any, layout: Any) -> outlay.Program:
    """The program, one step of which gives what `jax.jit` gives."""
    program = outlay.program(step, init, batch, layout=layout, mesh=MESH)
    _, outputs = program(program.init(jax.random.key(0)), batch)
    _, expected = jax.jit(step)(jax.jit(init)(jax.random.key(0)), batch)
    np.testing.assert_allclose(outputs["y"], expected["y"], rtol=1e-5, atol=1e-5)
    return program


class Attention(nn.Module):
    """Kernels that Linen makes flat, and reshapes after it has placed them."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        kernel_init = nn.with_partitioning(WHOLE, (None, "model", None))
        out_kernel_init = nn.with_partitioning(WHOLE, ("model", None, None))
        return nn.MultiHeadDotProductAttention(num_heads=4, kernel_init=kernel_init, out_kernel_init=out_kernel_init)(x)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("annotated", [True, False], ids=["from annotations", "by other rules"])
def test_linens_attention_with_annotations_becomes_a_program(annotated: bool) -> None:
    batch = X.reshape(8, 2, 8)

    def init(key):
        return Attention().init(key, batch)

    layout = outlay.layout.from_annotations(init) if annotated else outlay.fsdp(min_size=8)
    program = ran(lambda s, x: (s, {"y": Attention().apply(s, x)}), init, batch, layout + REST)
    if annotated:
        kernel = program.plan["params.MultiHeadDotProductAttention_0.query.kernel"]
        assert kernel.spec == P(None, "model", None)
        assert "P('model')" in str(layout)
        assert "P('model',)" not in str(layout)


class Annotated(nnx.Module):
    """A kernel whose annotation is a sharding on a mesh of its own."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        kernel_init = nnx.with_partitioning(WHOLE, SHARDING)
        self.dense = nnx.Linear(16, 16, kernel_init=kernel_init, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.dense(x)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("annotated", [True, False], ids=["from annotations", "by other rules"])
def test_annotations_of_nnx_may_be_shardings_on_a_mesh(annotated: bool) -> None:
    graph = nnx.graphdef(nnx.eval_shape(lambda: Annotated(nnx.Rngs(0))))

    def init(key):
        return nnx.state(Annotated(nnx.Rngs(key)), nnx.Param)

    layout = outlay.layout.from_annotations(init) if annotated else outlay.fsdp(min_size=8)
    program = ran(lambda s, x: (s, {"y": nnx.merge(graph, s)(x)}), init, X, layout + REST)
    assert program.plan["dense.kernel"].spec == (P(None, "model") if annotated else P("data", None))
    assert any("annotations" in note for note in program.plan.notes) != annotated


def stacked(names: tuple[str | None, ...], metadata: dict[str, Any]) -> Any:
    def init(key: jax.Array) -> Any:
        @nnx.vmap(in_axes=0, out_axes=0, **metadata)
        def layer(key: jax.Array) -> Any:
            return nnx.Linear(16, 16, kernel_init=nnx.with_partitioning(WHOLE, names), rngs=nnx.Rngs(key))

        return nnx.state(layer(jax.random.split(key, 4)), nnx.Param)

    return init


@pytest.mark.parametrize("names", [(None, "model"), ("model", None)])
def test_annotations_of_stacked_layers_of_nnx_are_right_or_refused_with_the_edit(names: Any) -> None:
    with pytest.raises(outlay.errors.LayoutError) as refused:
        outlay.layout.from_annotations(stacked(names, {}))
    spec = ", ".join('"model"' if name else "None" for name in names)
    assert f"{names} names 2 dims, and the array (4, 16, 16) has 3" in str(refused.value)
    assert "transform_metadata={nnx.PARTITION_NAME: None}" in str(refused.value)
    assert f"('kernel', P(None, {spec}))" in str(refused.value)
    by_edit = stacked(names, {"transform_metadata": {nnx.PARTITION_NAME: None}})
    with nnx.use_eager_sharding(False):
        shapes = jax.eval_shape(by_edit, jax.random.key(0))
    plan = (outlay.layout.from_annotations(by_edit) + REST).plan(shapes, MESH)
    assert plan["kernel"].spec == P(None, *names)


@pytest.mark.parametrize("fails", [AssertionError(), TypeError("of its own")], ids=["assertion", "another error"])
def test_init_is_traced_without_a_mesh_where_tracing_with_one_fails(fails: Exception) -> None:
    def init(key: jax.Array) -> Any:
        if not jax.sharding.get_abstract_mesh().empty:
            raise fails
        return {"w": jax.random.normal(key, (16, 16))}

    ran(lambda s, x: (s, {"y": x @ s["w"]}), init, X, REST)


def test_an_error_that_init_has_in_any_case_is_the_one_that_is_raised() -> None:
    def init(key: jax.Array) -> Any:
        inside = "in" if not jax.sharding.get_abstract_mesh().empty else "outside of"
        raise KeyError(f"{inside} the mesh")

    with pytest.raises(KeyError, match="in the mesh"):
        outlay.program(lambda s, x: (s, {}), init, X, layout=REST, mesh=MESH)


def test_an_axis_that_the_mesh_lacks_is_no_reason_to_leave_it() -> None:
    layer = nn.Dense(16, kernel_init=nn.with_partitioning(WHOLE, (None, "modle")))
    with pytest.raises(outlay.errors.ProgramError, match="did you mean 'model'"):
        outlay.program(
            lambda s, x: (s, {"y": layer.apply(s, x)}), lambda key: layer.init(key, X), X, layout=REST, mesh=MESH
        )


@jax.tree_util.register_pytree_with_keys_class
class Named:
    """As penzai has them: an array whose last axes have names, which its constructor compares with the shape."""

    def __init__(self, data_array: Any, names: Any) -> None:
        assert isinstance(data_array, jax.Array | Tracer)
        sizes = data_array.shape[data_array.ndim - len(names) :]
        self.data_array, self.named_axes = data_array, OrderedDict(zip(names, sizes, strict=True))

    def tree_flatten_with_keys(self) -> Any:
        return ((jax.tree_util.GetAttrKey("data_array"), self.data_array),), tuple(self.named_axes)

    @classmethod
    def tree_unflatten(cls, names: Any, children: Any) -> Named:
        return cls(children[0], names)


@jax.tree_util.register_pytree_with_keys_class
class Labelled:
    """As penzai has them: a value with a label."""

    def __init__(self, label: str, value: Any) -> None:
        self.label, self.value = label, value

    def tree_flatten_with_keys(self) -> Any:
        return ((jax.tree_util.GetAttrKey("value"), self.value),), self.label

    @classmethod
    def tree_unflatten(cls, label: str, children: Any) -> Labelled:
        return cls(label, *children)


def labelled(key: jax.Array) -> list[Labelled]:
    kernel = Named(jax.random.normal(key, (2, 16, 16)), ("features", "features_out"))
    return [Labelled("mlp/Affine_0/Linear.weights", kernel), Labelled("mlp/bias", Named(jnp.ones(16), ("features",)))]


def test_labels_are_paths_and_named_axes_annotations() -> None:
    optimizer = optax.adam(1e-2)

    def init(key: jax.Array) -> Any:
        params: Any = labelled(key)
        return {"params": params, "opt_state": optimizer.init(params)}

    def step(state: Any, x: Any) -> Any:
        kernel, bias = (one.value.data_array for one in state["params"])
        return state, {"y": x @ kernel.sum(0) + bias[None]}

    layout = outlay.layout.from_annotations(init, {"features": None, "features_out": "model"})
    program = ran(step, init, X, layout + REST)
    assert program.plan["params.mlp.Affine_0.Linear.weights"].spec == P(None, None, "model")
    assert program.plan["opt_state.0.mu.mlp.Affine_0.Linear.weights"].spec == P(None, None, "model")
    rule = outlay.Layout([("params.**.Linear.weights", P("model"))])
    other = ran(step, init, X, rule + REST)
    assert other.plan["params.mlp.Affine_0.Linear.weights"].spec == P("model", None, None)
    assert any("'features_out') there" in note for note in other.plan.notes)


def test_labels_that_arrays_share_stand_behind_their_positions() -> None:
    twice = [Labelled("a/w", jnp.ones(4)), Labelled("a/w", jnp.ones(4)), Labelled("b", jnp.ones(4))]
    paths = [leaf.path for leaf in outlay.Layout([outlay.replicate()]).plan(twice, MESH).state]
    assert paths == ["0.a.w", "1.a.w", "2.b"]


# treescope, which penzai imports, asks NumPy 2.5 for each of its public names
@pytest.mark.filterwarnings("ignore:The chararray class is deprecated")
def test_penzais_own_models() -> None:
    from penzai import pz
    from penzai.models.simple_mlp import MLP

    def make(key):
        return MLP.from_config(name="mlp", init_base_rng=key, feature_sizes=[16, 32, 16])

    static, _ = pz.unbind_params(make(jax.random.key(0)), freeze=True)

    def init(key):
        return {"params": pz.unbind_params(make(key), freeze=True)[1]}

    def step(state: Any, x: Any) -> Any:
        y = pz.bind_variables(static, state["params"])(pz.nx.wrap(x, "batch", "features"))
        return state, {"y": y.unwrap("batch", "features")}

    layout = outlay.layout.from_annotations(init, {"features": None, "features_out": "model"})
    program = ran(step, init, X, layout + REST)
    assert program.plan["params.mlp.Affine_0.Linear.weights"].spec == P(None, "model")
    with pytest.raises(outlay.errors.ProgramError, match=r"pz.unbind_params\(model, freeze=True\)"):
        outlay.program(step, make, X, layout=REST, mesh=MESH)
