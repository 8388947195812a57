"""After its first call a program hands its leaves to the compiled step as a list, so that trees are flattened once."""

import sys
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import outlay
from outlay.core.jax_compat import call_over_leaves
from outlay.errors import ProgramError
from outlay.program.program import _SMALL

BATCH = {"x": np.ones((8, 2), np.float32), "none": None}


def init(key):
    return {"z": (jnp.zeros((8, 4)), [jnp.ones(16)]), "a": [key, jnp.zeros((), jnp.int32)], "none": None}


def step(state, batch):
    (first, (second,)), (key, count) = state["z"], state["a"]
    key, own = jax.random.split(key)
    first = first + jax.random.normal(own, first.shape) * batch["x"].mean()
    return {"z": (first, [second * 2]), "a": [key, count + 1], "none": None}, {"count": count, "nothing": None}


@pytest.fixture(scope="module")
def program():
    layout = outlay.fsdp(min_size=8) + outlay.data_parallel()
    made = outlay.program(step, init, BATCH, layout=layout, mesh="data=8")
    made(made.init(jax.random.key(0)), BATCH)
    return made


@pytest.fixture
def state(program):
    state, _ = program(program.init(jax.random.key(0)), BATCH)
    return program(state, jax.device_put(BATCH))[0]


def test_a_call_flattens_no_tree_of_unknown_structure(program, state):
    batch = jax.device_put(BATCH)
    entered = []

    def note(frame, event, _):
        if event == "call" and "tree" in Path(frame.f_code.co_filename).name:  # jax/_src/tree.py and tree_util.py
            entered.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        program(state, batch)
        of_a_call = list(entered)
        jax.tree.leaves(batch)
    finally:
        sys.setprofile(before)
    assert of_a_call == []
    assert entered, "the hook sees no work on trees at all"


def test_a_call_enters_one_function_of_outlay(program, state):
    batch, entered = jax.device_put(BATCH), []

    def note(frame, event, _):
        if event == "call" and Path(frame.f_code.co_filename).is_relative_to(Path(outlay.__file__).parent):
            entered.append(frame.f_code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        program(state, batch)
    finally:
        sys.setprofile(before)
    assert entered == ["Program.__call__"]


def _as_numbers(leaf):
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def test_many_calls_compute_what_plain_jit_computes(program):
    state, expected = program.init(jax.random.key(3)), jax.jit(init)(jax.random.key(3))
    for _ in range(4):
        state, outputs = program(state, BATCH)
        expected, of_jit = jax.jit(step)(expected, BATCH)
    assert jax.tree.structure((state, outputs)) == jax.tree.structure((expected, of_jit))
    for leaf, other in zip(*map(jax.tree.leaves, ((state, outputs), (expected, of_jit))), strict=True):
        leaf, other = map(_as_numbers, (leaf, other))
        np.testing.assert_allclose(leaf, other, rtol=1e-6)


def test_a_dictionary_in_another_order_is_the_same_state(program, state):
    count = int(state["a"][1])
    later, _ = program({name: state[name] for name in ("none", "z", "a")}, BATCH)
    assert int(later["a"][1]) == count + 1


@pytest.mark.parametrize(
    "other",
    [
        lambda state: {**state, "a": tuple(state["a"])},
        lambda state: {**state, "z": list(state["z"])},
        lambda state: {**state, "none": jnp.zeros(())},
        lambda state: {**state, "a": state["a"][::-1]},
    ],
    ids=["a tuple for a list", "a list for a tuple", "an array for None", "two leaves swapped"],
)
def test_the_same_leaves_in_other_containers_are_refused(program, state, other):
    with pytest.raises(ProgramError, match="state"):
        program(other(state), BATCH)


def test_a_state_that_was_used_up_is_refused_before_it_reaches_the_step(program, state):
    program(state, BATCH)
    with pytest.raises(ProgramError, match="used already"):
        program(state, BATCH)


@pytest.mark.parametrize("leaf", ["first", "last"])
def test_a_leaf_that_another_function_took_is_named(leaf):
    layout = outlay.fsdp(min_size=8) + outlay.data_parallel()
    start = {"first": np.ones((8, 4), np.float32), "last": np.zeros(8, np.float32)}
    add = outlay.program(
        lambda state, batch: (jax.tree.map(lambda leaf: leaf + batch.mean(), state), {}),
        lambda key: jax.tree.map(jnp.asarray, start),
        np.ones((8, 2), np.float32),
        layout=layout,
        mesh="data=8",
    )
    batch = jax.device_put(np.ones((8, 2), np.float32))
    state, _ = add(add.init(jax.random.key(0)), batch)
    state, _ = add(state, batch)
    jax.jit(lambda leaf: leaf + 1, donate_argnums=0)(state[leaf])
    with pytest.raises(ProgramError, match=f"1 leaf is gone: {leaf}"):
        add(state, batch)
    tied = dict.fromkeys(start, jax.device_put(np.ones(8, np.float32), jax.NamedSharding(add.mesh, jax.P("data"))))
    with pytest.raises(ProgramError, match="first"):
        add(tied, batch)


def test_what_jax_does_not_let_call_by_leaves_is_left_alone():
    assert call_over_leaves(object()) is None


def large(size):
    """Return a program whose state has so many bytes on a device, a batch for it, and its state after two calls."""
    made = outlay.program(
        lambda state, batch: ({"w": state["w"] + batch.mean()}, {}),
        lambda key: {"w": jnp.zeros((8, size // 4))},
        np.ones((8, 2), np.float32),
        layout=outlay.fsdp(min_size=8) + outlay.data_parallel(),
        mesh="data=8",
    )
    batch = jax.device_put(np.ones((8, 2), np.float32))
    state, _ = made(made.init(jax.random.key(0)), batch)
    return made, batch, made(state, batch)[0]


@pytest.mark.parametrize("over", [0, 4])
def test_a_large_state_is_gone_when_its_user_lets_go_of_it(over):
    made, batch, state = large(_SMALL + over)
    leaf = weakref.ref(state["w"])
    del state
    assert (leaf() is None) is bool(over), "a small one is what the next call is compared with"
    made(made.init(jax.random.key(0)), batch)
    assert leaf() is None


@pytest.mark.parametrize("over", [0, 4])
def test_a_leaf_that_was_put_into_the_state_in_place_is_seen(over):
    made, batch, state = large(_SMALL + over)
    state["w"] = jax.device_put(np.full(state["w"].shape, 5, np.float32), state["w"].sharding)
    state, _ = made(state, batch)
    assert float(state["w"][0, 0]) == 6


def test_one_array_put_twice_into_the_returned_state_in_place_is_donated_once():
    made = outlay.program(
        lambda state, batch: (jax.tree.map(lambda leaf: leaf + batch.mean(), state), {}),
        lambda key: {"a": jnp.zeros(8), "b": jnp.ones(8)},
        np.ones((8, 2), np.float32),
        layout=outlay.fsdp(min_size=8) + outlay.data_parallel(),
        mesh="data=8",
    )
    batch = jax.device_put(np.ones((8, 2), np.float32))
    state, _ = made(made.init(jax.random.key(0)), batch)
    state, _ = made(state, batch)
    state["b"] = state["a"]
    state, _ = made(state, batch)
    np.testing.assert_array_equal(state["b"], np.full(8, 3))
