"""What mode placed cannot run of a pipeline is refused when the program is made; nothing here is compiled."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import outlay
from outlay import schedules
from outlay.errors import ProgramError
from outlay.program.multi_step import several_steps

pytestmark = pytest.mark.newest

WIDTH = 6
OPTIMIZER = optax.sgd(0.1)


def plain(params: Any, batch: Any, keys: jax.Array) -> Any:
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch, params["layers"])
    return x @ params["head"], {}


def made(loss: Any = plain, *, layers: int = 4, batch: int = 8, mode: Any = "placed", **of: Any) -> outlay.Program:
    def init(key: jax.Array) -> Any:
        return {"layers": jax.random.normal(key, (layers, WIDTH, WIDTH)), "head": jnp.ones(WIDTH)}

    schedule, mesh = of.pop("schedule", None), of.pop("mesh", {"stage": 2, "data": 4})
    step = of.pop("step", None) or outlay.train_step(loss, OPTIMIZER, **of.pop("how", {}))
    rules = of.pop("rules", None) or [("params.layers", outlay.layout.pipeline(**{"microbatches": 2, **of}))]
    return outlay.program(
        step,
        outlay.init_state(init, OPTIMIZER),
        np.ones((batch, WIDTH), np.float32),
        layout=outlay.Layout(rules) + outlay.data_parallel(),
        mesh=outlay.mesh(**mesh),
        mode=mode,
        schedule=schedule,
    )


@pytest.mark.any_jax
def test_the_program_says_its_schedule() -> None:
    program = made(schedule="zb-h1", microbatches=2)
    assert program.schedule == schedules.zero_bubble(2, 2)
    assert program.peak_held == ()
    assert program.pipelines.splitlines()[0] == "zb-h1: 2 stages, 2 microbatches: 7 ticks, 14.3 % of them idle"
    assert made().schedule.name == "1f1b"
    assert made(repeats=2).schedule.name == "interleaved 1f1b"


def test_a_run_asks_for_its_outputs_and_takes_steps_one_by_one() -> None:
    program = made()
    assert {name: one.shape for name, one in program.returned_outputs.items()} == {"loss": ()}
    with pytest.raises(ProgramError, match=r"dispatched one after the other\n  fix: steps_per_call=1"):
        several_steps(program, 2)


def test_on_absent_hardware_the_schedule_is_there_and_running_is_refused() -> None:
    program = made(mesh={"stage": 2, "data": 4, "target": "h100:1x8"})
    assert program.schedule.peak_held == (2, 1)
    assert "1f1b: 2 stages, 2 microbatches: 9 ticks, 33.3 % of them idle; held at once, by stage: 2, 1" in " ".join(
        str(outlay.show(program)).split()
    )
    with pytest.raises(outlay.errors.ExplainError, match="stages of mode placed are many programs"):
        outlay.explain(program)
    with pytest.raises(ProgramError, match="compile-only"):
        program.init(jax.random.key(0))


def test_absent_hosts_are_refused_with_their_number() -> None:
    _refused(
        r'each process runs the stages of its own devices, .* of 2 hosts is compile-only\n  fix: mode="auto"',
        mesh={"stage": 2, "data": 4, "target": "h100:2x4"},
    )


OTHER = schedules.gpipe(4, 8)


@pytest.mark.some_cases(8, newest=1)
@pytest.mark.parametrize(
    ("of", "message"),
    [
        ({"schedule": "zb-h2"}, r"no schedule 'zb-h2': did you mean 'zb-h1'\?.*fix: one of gpipe, 1f1b"),
        ({"schedule": 3}, "schedule=3: it is a schedule or the name of one.*fix: one of 'gpipe'"),
        (
            {"schedule": OTHER},
            "has 4 stages, the layout 2.*fix: stage=4 in the mesh.*has 8 microbatches, the layout 2.*microbatches=8 in",
        ),
        ({"schedule": "1f1b", "repeats": 2}, "'1f1b' goes through the stages once.*repeats=2.*schedule='interleaved'"),
        ({"schedule": "1f1b", "mode": "auto"}, 'this is mode auto.*fix: mode="placed"'),
        ({"schedule": "1f1b", "rules": [("params.**", outlay.replicate())]}, "the layout has no pipeline rule"),
        ({"mesh": {"stage": 1, "data": 8}}, "the mesh has stage=1.*fix: two stages or more"),
        ({"mesh": {"stage": 2, "data": 4, "explicit": True}}, "takes a mesh with automatic axes.*fix: outlay.mesh"),
    ],
    ids=["unknown", "a number", "other numbers", "repeats", "mode auto", "no rule", "one stage", "explicit axes"],
)
def test_a_schedule_that_does_not_fit_is_refused(of: dict[str, Any], message: str) -> None:
    _refused(message, **of)


def test_what_does_not_divide_is_refused_with_numbers() -> None:
    _refused(r"batch of 8 samples does not divide into 4 microbatches over data=4.*microbatches=2", microbatches=4)
    with pytest.raises(outlay.errors.LayoutError, match=r"5 layers .* do not divide into stage=2 stages"):
        made(layers=5)


def mixing(params: Any, batch: Any, keys: jax.Array) -> Any:
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch, params["layers"])
    return (x - x.mean(0, keepdims=True)) @ params["head"], {}


def scaled(params: Any, batch: Any, keys: jax.Array) -> Any:
    losses, _ = plain(params, batch, keys)
    return losses.mean(), {}


def regularized(params: Any, batch: Any, keys: jax.Array) -> Any:
    losses, _ = plain(params, batch, keys)
    return losses + jnp.sum(params["layers"] ** 2), {}


def sum_and_count(params: Any, batch: Any, keys: jax.Array) -> Any:
    losses, _ = plain(params, batch, keys)
    return (losses.sum(), jnp.sum(batch[:, 0])), {}


def sum_and_size(params: Any, batch: Any, keys: jax.Array) -> Any:
    losses, _ = plain(params, batch, keys)
    return (batch.shape[1] * losses.sum(), batch.size), {}


@pytest.mark.any_jax
def test_a_loss_whose_parts_do_not_add_up_is_refused_with_its_line() -> None:
    _refused(rf"{__file__}:\d+\n    sub takes samples together, .*fix: return one loss per sample", loss=mixing)
    _refused(r"takes samples together, .*\(sum, count\), metrics", loss=scaled, how={"reduction": "mean"})
    made(sum_and_count, how={"reduction": "mean"})
    made(sum_and_size, how={"reduction": "mean"})
    _refused(r"reads layers after the scan, where the last stage has only its own", loss=regularized)


def test_a_step_by_hand_is_refused() -> None:
    def step(state: Any, batch: Any) -> Any:
        return state, {"loss": plain(state.params, batch, None)[0].sum()}

    _refused("does not say which gradients it takes.*fix: make it with outlay.train_step", step=step)


def _has_loop(**of: Any) -> bool:
    """Return whether a stage has a loop over its layers; without one, nothing but sums may be a stack."""

    def loss(params: Any, batch: Any, keys: jax.Array) -> Any:
        layer = jax.checkpoint(_layer) if of.get("recomputed") else _layer
        x, _ = jax.lax.scan(layer, batch, params["layers"], unroll=of.get("unroll", 1))
        return x @ params["head"], {}

    program = made(loss, layers=of["layers"])
    parts = [one for one in program.lowered_parts if "jit_backward" in one.as_text()]
    (loop,) = {"stablehlo.while" in part.as_text() for part in parts}
    shape = f"{of['layers'] // 2}x{WIDTH}x{WIDTH}"
    taken = [part.as_text().partition("@main(")[2].partition(") ->")[0] for part in parts]
    assert [text.count(f"tensor<{shape}xf32>") for text in taken] == [1 + loop] * 2
    if not loop:  # and to the sums rows are added in place
        whole = shape.replace("x", ",")
        assert not re.findall(rf"= f32\[{whole}\]\S* copy\(", parts[0].compile().as_text())
    return loop


def test_few_layers_of_a_stage_are_no_loop() -> None:
    assert not _has_loop(layers=8)
    assert _has_loop(layers=10)
    assert not _has_loop(layers=10, unroll=5)
    # All of them could be recomputed at once.
    assert _has_loop(layers=8, recomputed=True)


def _layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
    return jnp.tanh(x @ w), None


def heavy_after(params: Any, batch: Any, keys: jax.Array) -> Any:
    """Behind the layers, as much again as two of them."""
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch, params["layers"])
    square = jnp.outer(params["head"], params["head"])
    return jnp.tanh(jnp.tanh(x @ square) @ square) @ params["head"], {}


def test_a_balanced_cut_gives_fewer_layers_to_a_stage_with_more_besides() -> None:
    program = made(heavy_after, layers=8, cut="balanced")
    head, cut, *rows = program.pipelines.splitlines()
    assert head == made(heavy_after, layers=8).pipelines.splitlines()[0]
    assert re.fullmatch(r"8 layers, 5 \+ 3; by the FLOPs of stages \d+\.\d % of the time is idle", cut)
    assert [row[:8] for row in rows] == ["stage 0 ", "stage 1 "]
    assert cut in " ".join(str(outlay.show(program)).split())
    assert program.plan["params.layers"].dims == ((), ("stage",), ())
    equal = made(heavy_after, layers=8).pipelines.splitlines()[1]
    assert equal.startswith("8 layers, 4 each; ")
    (idle, idle_equal) = (float(re.findall(r"([\d.]+) %", text)[0]) for text in (cut, equal))
    assert idle < idle_equal
    # Nothing besides the layers to speak of.
    assert made(layers=8, cut="balanced").pipelines.splitlines()[1].startswith("8 layers, 4 each; ")


@pytest.mark.parametrize(
    ("of", "message"),
    [
        ({"cut": (3, 2)}, r"cut 3 \+ 2 is 5 layers in 2 groups, and here are 4 layers and 2 groups \(2 stages\)"),
        ({"cut": (1, 1, 1, 1)}, r"is 4 layers in 4 groups, and here are 4 layers and 2 groups.*fix: cut=\"balanced\""),
        ({"cut": "balanced", "layers": 3, "repeats": 2}, r"3 layers are fewer than 4 groups \(2 stages x 2 repeats\)"),
        ({"cut": (3, 1), "mode": "auto"}, r"cut 3 \+ 1\): in one XLA program .*fix: mode=\"placed\""),
        ({"cut": "balanced", "mode": "auto"}, r"cut balanced\): in one XLA program all stages compute the same"),
    ],
    ids=["another sum", "other groups", "too few", "numbers in auto", "balanced in auto"],
)
def test_a_cut_that_cannot_be_is_refused(of: dict[str, Any], message: str) -> None:
    _refused(message, **of)


@pytest.mark.parametrize("cut", ["even", (), (3, 0), (1.5, 2.5), 4])
def test_what_is_no_cut_is_refused(cut: Any) -> None:
    with pytest.raises(outlay.errors.LayoutError, match="it is one of 'equal', 'balanced', or a number of layers"):
        outlay.layout.pipeline(microbatches=2, cut=cut)


def _refused(message: str, **of: Any) -> None:
    with pytest.raises(ProgramError) as caught:
        made(**of)
    assert re.search(message, str(caught.value), re.DOTALL), str(caught.value)
