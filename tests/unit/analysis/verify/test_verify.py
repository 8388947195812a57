"""A proof runs what the program runs, on its own state, and says what it did."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.unit.report import faults

import outlay


@pytest.fixture(scope="module")
def program() -> outlay.Program:
    return faults.program(faults.right)


@pytest.fixture(scope="module")
def same(program: outlay.Program) -> outlay.analysis.Verification:
    return outlay.verify(program, batches=faults.BATCHES)


@pytest.fixture(scope="module")
def different() -> outlay.analysis.Verification:
    return outlay.verify(faults.program(faults.forgotten_pmean), steps=1)


def test_every_array_of_every_step_is_compared(same: outlay.analysis.Verification) -> None:
    assert same.ok
    assert [(check.step, check.path) for check in same.checks] == [
        (step, path) for step in (1, 2, 3) for path in ("outputs.loss", "key", "w")
    ]
    assert [leaf.path for leaf in same.leaves] == ["outputs.loss", "key", "w"]


def test_the_users_state_and_jax_stay_as_they_were(program: outlay.Program) -> None:
    state = program.init(jax.random.key(1))
    outlay.verify(program, steps=1)
    assert jax.sharding.get_abstract_mesh().empty
    _, outputs = program(state, faults.BATCHES[0])
    assert np.isfinite(outputs["loss"])


@pytest.mark.compiles
def test_batches_may_be_an_iterator_and_too_few_are_refused(program: outlay.Program) -> None:
    assert outlay.verify(program, steps=2, batches=iter(faults.BATCHES)).ok
    for batches in (faults.BATCHES, iter(faults.BATCHES)):
        with pytest.raises(outlay.errors.ProgramError, match="4 steps need 4 batches, but there are 3\n  fix: steps=3"):
            outlay.verify(program, steps=4, batches=batches)
    with pytest.raises(outlay.errors.ProgramError, match="a single batch was passed"):
        outlay.verify(program, batches=faults.BATCHES[0])
    with pytest.raises(outlay.errors.LayoutError, match=r"batch\.y"):
        outlay.verify(program, steps=1, batches=[{"x": faults.BATCHES[0]["x"]}])


def test_a_list_of_batches_says_how_many_steps(program: outlay.Program) -> None:
    stages: list[str] = []
    verification = outlay.verify(program, batches=faults.BATCHES[:1], progress=stages.append)
    assert (verification.ok, verification.num_steps) == (True, 1)
    assert stages[:2] == ["making the state on one device", "tracing the step"]
    assert any(stage.startswith("step 1 of 1, on mesh data=8") for stage in stages)


def test_unverifiable_arguments_are_refused(program: outlay.Program) -> None:
    with pytest.raises(outlay.errors.ProgramError, match="takes a program, not a function"):
        outlay.verify(faults.right)
    with pytest.raises(outlay.errors.ProgramError, match="no reference 'one_device': did you mean 'one-device'"):
        outlay.verify(program, against="one_device")
    with pytest.raises(outlay.errors.ProgramError, match="steps=0"):
        outlay.verify(program, steps=0)
    with pytest.raises(outlay.errors.ProgramError, match="itself runs in mode manual"):
        outlay.verify(program, against="manual")
    with pytest.raises(outlay.errors.ProgramError, match="cannot run in mode auto"):
        outlay.verify(program, against="auto")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"steps": "3"}, "steps='3': a proof takes a whole number of steps"),
        ({"steps": 2.5}, "steps=2.5: a proof takes a whole number of steps"),
        ({"steps": True}, "steps=True: a proof takes a whole number of steps"),
        ({"key": 5}, r"key=5 is not a PRNG key\n  fix: key=jax.random.key\(5\)"),
        ({"key": {"params": 1}}, "is not a PRNG key"),
        ({"batches": 5}, "batches=5 holds no batches: it takes one batch per step"),
        ({"batches": "abc"}, "batches='abc' holds no batches"),
        ({"tolerance": 2}, "tolerance=2: it must be a share of an array's largest entry"),
        ({"tolerance": "1e-3"}, "tolerance='1e-3': it must be a share"),
        ({"tolerance": float("nan")}, "tolerance=nan: it must be a share"),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused(program: outlay.Program, arguments: Any, words: str) -> None:
    with pytest.raises(outlay.errors.ProgramError, match=words):
        outlay.verify(program, **arguments)


@pytest.mark.thorough  # test_kinds_of_keys.py has the keys
@pytest.mark.compiles
def test_old_and_other_keys_begin_a_proof_too(program: outlay.Program) -> None:
    for key in (jax.random.PRNGKey(3), np.asarray(jax.random.PRNGKey(3)), jax.random.key(3, impl="rbg")):
        assert outlay.verify(program, steps=1, key=key).ok


def test_a_proof_reads_as_text_data_and_page(
    same: outlay.analysis.Verification, different: outlay.analysis.Verification
) -> None:
    assert str(same).startswith(
        "the same: all 3 arrays of mode manual on mesh data=8 (8 simulated devices), against one"
    )
    text = str(different)
    assert text.startswith("different: 1 of 3 arrays of mode manual")
    assert "first: state w, step 1: 8.0x: summed where a mean was meant" in text
    assert "cause: the results of 8 devices are summed, where their mean was meant" in text
    assert "batches made up: floats normal, weights from 0.5 to 1.5; give your own with batches=" in text
    assert "1 step was compared; later steps may behave differently" in text
    facts = different.to_dict()
    assert facts["ok"] is False
    assert (facts["verdict"], same.to_dict()["verdict"]) == ("different", "same")
    assert facts["causes"][0].startswith("the results of 8 devices are summed")
    assert facts["first_wrong"].startswith("state w, step 1: 8.0x")
    assert "8.0x: summed where a mean was meant" in different.to_html()
    assert "the same: all 3 arrays" in same.to_html()


def key_bias_init(key: Any) -> Any:
    return {"bias": jnp.zeros(16), "w": jnp.sin(jnp.arange(96.0)).reshape(6, 16)}


def key_bias_loss(params: Any, batch: Any, keys: Any) -> Any:
    """A bias that the softmax takes out again: its gradient is nothing but rounding, which Adam makes steps of."""
    powers = jnp.concatenate([batch["x"] ** n for n in (1, 2, 3)], axis=1)[:, :16]
    scores = batch["x"] @ params["w"] + (powers @ params["bias"])[:, None]
    return -jax.nn.log_softmax(scores * 3)[:, 0], {}


@pytest.mark.some_cases(1)
@pytest.mark.compiles
@pytest.mark.parametrize("against", ["one-device", "manual"])
def test_gradients_that_are_nothing_but_rounding_are_no_fault(against: Any) -> None:
    optimizer = optax.adam(1e-2, eps=1e-30)
    step, init = outlay.train_step(key_bias_loss, optimizer), outlay.init_state(key_bias_init, optimizer)
    layout = outlay.fsdp(min_size=8) + outlay.data_parallel()
    program = outlay.program(step, init, faults.BATCHES[0], layout=layout, mesh=outlay.mesh(data=8))
    verification = outlay.verify(program, against=against, batches=faults.BATCHES)
    verification.raise_if_different()
    assert {check.kind for check in verification.checks} == {"gradient", "output", "state"}


@pytest.mark.compiles
def test_a_gradient_that_is_always_zero_but_for_rounding_is_no_doubt() -> None:
    def loss(params: Any, x: Any, keys: Any) -> Any:
        queries, of_keys = x @ params["q"], x @ params["k"] + params["key_bias"][None, None]
        y = jax.nn.softmax(queries @ of_keys.swapaxes(-1, -2)) @ x
        return ((y - x[:, ::-1]) ** 2).mean((1, 2)), {}

    def init(key: Any) -> Any:
        return {"q": jax.random.normal(key, (8, 8)), "k": jax.random.normal(key, (8, 8)), "key_bias": jnp.zeros(8)}

    x, optimizer = np.random.default_rng(0).normal(size=(16, 4, 8)).astype(np.float32), optax.sgd(0.1)
    step, init_both = outlay.train_step(loss, optimizer), outlay.init_state(init, optimizer)
    program = outlay.program(step, init_both, x, layout=outlay.data_parallel(), mesh=outlay.mesh(data=8))
    verification = outlay.verify(program, batches=[x], steps=1)
    assert verification.ok
    (gradient,) = (check for check in verification.checks if check.path == "grads.key_bias")
    assert gradient.note == "zero up to rounding"


@pytest.mark.compiles
def test_labels_of_made_up_batches_exist_and_weights_count() -> None:
    def loss(params: Any, batch: Any, keys: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(batch["x"] @ params["w"], batch["label"]), {}

    optimizer = optax.sgd(0.1)
    init = outlay.init_state(lambda key: {"w": jax.random.normal(key, (6, 3))}, optimizer)
    shapes = {
        "x": jax.ShapeDtypeStruct((16, 6), jnp.bfloat16),
        "label": jax.ShapeDtypeStruct((16,), jnp.int32),
        "weight": jax.ShapeDtypeStruct((16,), jnp.float32),
    }
    program = outlay.program(
        outlay.train_step(loss, optimizer), init, shapes, layout=outlay.data_parallel(), mesh=outlay.mesh(data=8)
    )
    verification = outlay.verify(program, steps=1)
    assert verification.ok
    assert all(np.isfinite(check.max_abs) for check in verification.checks)


@pytest.mark.thorough  # test_kinds_of_keys.py has the keys
@pytest.mark.compiles
def test_keys_in_the_batch_reach_both_alike() -> None:
    def step(state: Any, batch: Any) -> Any:
        noise = jax.vmap(lambda key: jax.random.normal(key))(batch)
        return state + noise.mean(), {"noise": noise}

    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 16))
    program = outlay.program(
        step, lambda key: jnp.ones(8), keys, layout=outlay.data_parallel(), mesh=outlay.mesh(data=8)
    )
    given = [jax.random.split(jax.random.key(3), 16)]
    assert outlay.verify(program, steps=1).ok
    assert outlay.verify(program, steps=1, batches=given).ok


def test_a_proof_without_gradients_says_so(same: outlay.analysis.Verification) -> None:
    assert not any(check.kind == "gradient" for check in same.checks)
    assert any(note.startswith("gradients were not compared") for note in same.notes)


def of(step: Any, init: Any, batch: Any, *, mesh: Any = None) -> outlay.Program:
    return outlay.program(step, init, batch, layout=outlay.data_parallel(), mesh=mesh or outlay.mesh(data=8))


@pytest.mark.compiles
def test_nan_on_both_sides_is_unknown_and_made_up_batches_avoid_it() -> None:
    def step(state: Any, batch: Any) -> Any:
        grad = jax.grad(lambda w: (jnp.log(batch["x"]) @ w).mean())(state)
        return state - 0.1 * grad, {}

    program = of(step, lambda key: jnp.ones(6), {"x": faults.BATCHES[0]["x"]})
    verification = outlay.verify(program, steps=1, batches=[{"x": faults.BATCHES[0]["x"]}])
    assert verification.verdict == "unknown"
    assert "the whole state, step 1: NaN in 6 of 6 entries on both sides" in str(verification)
    with pytest.raises(outlay.errors.VerifyError, match="unknown: nothing differs in 1 array"):
        verification.raise_if_different()
    verification.raise_if_different(allow_unknown=True)
    made = outlay.verify(program, steps=1)
    assert made.ok
    assert made.batches.startswith("made up: floats between 0.5 and 1.5")


@pytest.mark.compiles
def test_a_proof_that_cannot_show_a_fault_is_unknown() -> None:
    def zeros(key: Any) -> Any:
        return {"a": jnp.zeros((6, 5)), "c": jnp.zeros(5)}

    def step(state: Any, batch: Any) -> Any:
        grads = jax.grad(lambda s: jnp.mean((jax.nn.relu(batch @ s["a"]) @ s["c"] - 1) ** 2))(state)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), {}

    verification = outlay.verify(of(step, zeros, faults.BATCHES[0]["x"]), steps=1)
    assert verification.reasons[0].startswith(
        "all gradients or updates are zero, so that one counted twice would not show"
    )
    ones = np.ones((16, 6), np.float32)
    alike = of(lambda s, b: (s + b.mean(), {}), lambda key: jnp.ones(()), ones)
    verification = outlay.verify(alike, steps=1, batches=[ones])
    assert verification.reasons[0].startswith("every sample of the batches is the same, so that one left out")
    nothing = outlay.verify(of(lambda s, b: (s, {}), lambda key: {}, ones), steps=1)
    assert nothing.reasons == (
        "nothing was compared: the step returns neither state nor outputs; return what it computes",
    )


def test_state_that_a_step_leaves_as_it_was_is_the_same_without_a_note() -> None:
    program = of(lambda s, b: (s, {"mean": b.mean()}), lambda key: {"w": jnp.ones(6)}, faults.BATCHES[0]["x"])
    verification = outlay.verify(program, steps=1)
    assert verification.ok
    assert not any("w" in note.split() for note in verification.notes)


@pytest.mark.compiles
def test_made_up_tokens_and_labels_are_below_the_size_of_what_they_index() -> None:
    def step(state: Any, batch: Any) -> Any:
        def loss(w: Any) -> Any:
            scores = w["embed"][batch["tokens"]] @ w["out"]
            return optax.softmax_cross_entropy_with_integer_labels(scores, batch["label"]).mean()

        return jax.tree.map(lambda p, g: p - 0.1 * g, state, jax.grad(loss)(state)), {}

    def init(key: Any) -> Any:
        return {"embed": jax.random.normal(key, (32, 4)), "out": jax.random.normal(key, (4, 10))}

    shapes = {name: jax.ShapeDtypeStruct((16,), jnp.int32) for name in ("label", "tokens")}
    verification = outlay.verify(of(step, init, shapes), steps=1)
    assert verification.ok
    assert "integers random, label < 10, tokens < 32" in verification.batches


@pytest.mark.thorough  # test_own_meshes.py runs such steps
@pytest.mark.compiles
@pytest.mark.parametrize("axis", ["data", "own"])
def test_a_step_that_names_its_mesh_is_compared_with_one_device(axis: str) -> None:
    mesh = outlay.mesh(data=8)
    named = jax.make_mesh((8,), (axis,), axis_types=(jax.sharding.AxisType.Auto,))

    def step(state: Any, batch: Any, wrong: float = 1.0) -> Any:
        local = jax.shard_map(
            lambda b: jax.lax.pmean(b.mean(), axis) * jax.lax.axis_size(axis) ** wrong,
            mesh=named,
            in_specs=jax.P(axis),
            out_specs=jax.P(),
        )
        held = jax.lax.with_sharding_constraint(batch, jax.NamedSharding(named, jax.P(axis)))
        return state - local(batch), {"mean": held.mean()}

    def init(key: Any) -> Any:
        return jnp.ones(4)

    batch = faults.BATCHES[0]["x"]
    assert outlay.verify(of(lambda s, b: step(s, b, 0), init, batch, mesh=mesh), steps=1).ok
    verification = outlay.verify(of(lambda s, b: step(s, b, 1), init, batch, mesh=mesh), steps=1)
    assert verification.wrong[0].in_words.startswith("the whole state, step 1: 8.0x")


@pytest.mark.compiles
def test_a_tolerance_is_followed() -> None:
    def step(state: Any, batch: Any) -> Any:
        return state + jax.lax.pmean(batch.mean(), "data") * (1 + 1e-3 * (jax.lax.axis_size("data") > 1)), {}

    mesh = outlay.mesh(data=8)
    program = outlay.program(
        step, lambda key: jnp.ones(4), faults.BATCHES[0]["x"], layout=outlay.data_parallel(), mesh=mesh, mode="manual"
    )
    assert outlay.verify(program, steps=1).verdict == "different"
    verification = outlay.verify(program, steps=1, tolerance=1e-2)
    assert verification.ok
    assert "the tolerance given, 0.01 of the largest entry" in str(verification)


def test_whole_numbers_that_rounding_decides_in_one_step_are_told_by_another() -> None:
    def step(state: Any, batch: Any) -> Any:
        mean = batch.mean(0)
        return {"w": state["w"] - 0.1 * mean}, {"first": jnp.argmax(jnp.where(state["w"][0] == 1, 0, 1) * mean)}

    program = outlay.program(
        step,
        lambda key: {"w": jnp.ones(4)},
        np.ones((16, 4), np.float32),
        layout=outlay.data_parallel(),
        mesh=outlay.mesh(data=8),
    )
    assert outlay.verify(program, steps=1).verdict == "same"


def test_weights_that_are_made_up_differ() -> None:
    def step(state: Any, batch: Any) -> Any:
        mean = (batch["x"] * batch["weight"]).sum() / batch["weight"].sum()  # of each device, not of all
        return {"w": state["w"] - jax.lax.pmean(mean, "data")}, {}

    batch = {"x": np.ones(16, np.float32), "weight": np.ones(16, np.float32)}
    program = outlay.program(
        step,
        lambda key: {"w": jnp.ones(2)},
        batch,
        layout=outlay.data_parallel(),
        mesh=outlay.mesh(data=8),
        mode="manual",
    )
    assert outlay.verify(program, steps=1).verdict == "different"
