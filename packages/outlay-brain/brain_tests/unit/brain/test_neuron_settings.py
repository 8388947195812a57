"""Settings by neuron: in every layout and in files; and steps that look at other neurons."""

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import outlay
from outlay.brain import (
    AdaptiveLeakySoma,
    Brain,
    ComposedLeakySoma,
    Connection,
    Constant,
    IzhikevichSoma,
    LeakySoma,
    LIFSoma,
    LinearSynapses,
    Module,
    N2NDelays,
    Neuron,
    PoissonSpiker,
    Port,
    RFSTracedSynapses,
    Soma,
    TracedSynapses,
)
from outlay.brain.module import BrainError
from outlay.core.error_types import ProgramError
from outlay.graph.rows import Rows
from outlay.program.row_checks import check_rows

LINEAR = LinearSynapses(Constant(30.0))


def brain(soma, synapses=LINEAR, **other) -> Brain:
    return Brain(
        {"eye": PoissonSpiker(max_freq=200.0), "n": Neuron(5, soma=soma, synapses=synapses, **other)},
        [Connection("inputs:x", "eye:signal"), Connection("eye:spikes", "n:in_spikes")],
        inputs={"x": (3,)},
        **({"dtype": "float16"} if isinstance(soma, AdaptiveLeakySoma) else {}),
    )


MANY = [-50.0, -45.0, -44.0, -43.0, -40.0]
CASES = {
    "leaky": (LeakySoma(resistance=0.1, threshold=np.array(MANY), potential_tau=np.linspace(5, 25, 5)), LINEAR),
    "composed": (
        ComposedLeakySoma(
            resistance=0.1,
            cooldown=np.arange(1.0, 6.0),
            clamp_duration=2.0,
            adaptation_delta=np.arange(5.0),
            threshold_delta=1.0,
        ),
        TracedSynapses(Constant(20.0), tau=np.arange(2.0, 7.0), base=np.arange(5.0)),
    ),
    "izhikevich": (
        IzhikevichSoma(recovery_timescale=np.linspace(0.02, 0.1, 5), potential_rest=np.linspace(-70, -60, 5)),
        RFSTracedSynapses(Constant(20.0), alpha=np.linspace(0.1, 0.9, 5)),
    ),
    "narrow": (
        AdaptiveLeakySoma(
            resistance=0.1, cooldown=[1, 2, 3, 4, 5], threshold_delta=np.arange(5.0), threshold_tau=np.arange(9.0, 14.0)
        ),
        LINEAR,
    ),
}


@pytest.mark.thorough  # test_init_by_rows.py has layouts, the next test settings
@pytest.mark.some_cases(1)
@pytest.mark.compiles
@pytest.mark.parametrize("case", CASES)
def test_every_layout_leaves_the_same_bits(case):
    model = brain(*CASES[case])
    pair = jax.devices()[:2]
    runs = [
        outlay.brain.run_brain(model, steps=40, inputs={"x": 1.0}, record=["**"], layout=layout, mesh=mesh)
        for layout, mesh in (
            (None, None),
            ("by-neuron", outlay.mesh(neurons=2, devices=pair)),
            (outlay.by_module({"eye": 0, "n": [0, 1]}), outlay.mesh(devices=pair, d=2)),
        )
    ]
    assert len({tuple(row) for row in runs[0]["n.soma.potential"].T.tolist()}) > 1, "the neurons differ"
    for run in runs[1:]:
        for address in runs[0].recording:
            np.testing.assert_array_equal(run[address], runs[0][address], err_msg=address)


def test_each_neuron_is_as_in_a_population_whose_setting_is_that_number():
    many = outlay.brain.run_brain(
        brain(LeakySoma(resistance=0.1, threshold=tuple(MANY))), steps=40, inputs={"x": 1.0}, record=["n:out_spikes"]
    )
    alone = outlay.brain.run_brain(
        brain(LeakySoma(resistance=0.1, threshold=MANY[1])), steps=40, inputs={"x": 1.0}, record=["n:out_spikes"]
    )
    np.testing.assert_array_equal(many["n:out_spikes"][:, 1], alone["n:out_spikes"][:, 1])


def test_a_file_holds_them(tmp_path):
    model = brain(*CASES["composed"])
    outlay.brain.write_brain(model, tmp_path / "b.toml")
    text = (tmp_path / "b.toml").read_text()
    assert "cooldown = [1.0, 2.0, 3.0, 4.0, 5.0]  # ms" in text
    assert outlay.brain.read_brain(tmp_path / "b.toml") == model
    assert hash(model.modules["n"]) == hash(outlay.brain.read_brain(tmp_path / "b.toml").modules["n"])
    # A byte order mark, as some editors write.
    with_units = text.replace("cooldown = [1.0, ", 'cooldown = ["1000 us", ')
    (tmp_path / "c.toml").write_text(with_units, encoding="utf-8-sig")
    assert outlay.brain.read_brain(tmp_path / "c.toml") == model


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: brain(LeakySoma(threshold=(-40.0, -41.0))), r"soma\.threshold has 2 values\n.*each of the 5 neurons"),
        (lambda: brain(LeakySoma(threshold=(-40.0,) * 4 + (-55.0,))), "threshold is -55 mV, below potential_reset"),
        (lambda: brain(LeakySoma(potential_tau=(1.0, 2.0, 3.0, 4.0, -5.0))), "potential_tau is"),
        (lambda: brain(LeakySoma(), delays=N2NDelays(max_delay=(1.0,) * 5)), "only soma and synapses take settings"),
        (lambda: brain(LeakySoma(resistance=-1.0)), "resistance is -1 GOhm/ms"),
        (lambda: brain(LIFSoma(resistance=-1.0)), "resistance is -1 MOhm"),
        (lambda: brain(ComposedLeakySoma(cooldown=0.4)), "cooldown is 0.4 ms, 0.4 steps"),
        (lambda: brain(AdaptiveLeakySoma(cooldown=(1.0, 2.0, 2.5, 1.0, 1.0))), "cooldown is 2.5 ms, 2.5 steps"),
    ],
)
def test_what_cannot_be_is_refused_in_words(make, match):
    with pytest.raises(BrainError, match=match):
        make()


@dataclass(frozen=True)
class Own(Soma):
    """A soma that looks at other neurons, or only seems to."""

    kind: str

    def init(self, key, units, *, dt, dtype):
        keys = jnp.tile(jax.random.key_data(key), (units, 1))
        return {"potential": jnp.zeros(units, dtype), "key": keys, "number": jnp.arange(units)}

    def step(self, state, current, *, dt):
        v = 0.9 * state["potential"] + current
        match self.kind:
            case "mean":
                v = v - current.mean()
            case "number":
                v = v / len(current)
            case "noise":
                v = v + jax.random.normal(jax.random.key(0), current.shape)
            case "neighbour":
                v = v + jnp.roll(current, 1)
            case "largest":
                v = jnp.where(current == current.max(), v, 0)
            case "pairs":
                v = v + jnp.exp(-((current[:, None] - current[None]) ** 2)).sum(1)
            case "branch":
                v = jax.lax.cond(current.sum() > 0, lambda v: v, lambda v: -v, v)
            case "unused":
                current.mean()
            case "own noise":
                keys = jax.vmap(lambda k, n: jax.random.fold_in(jax.random.wrap_key_data(k), n))(
                    state["key"], state["number"]
                )
                v = v + jax.vmap(lambda k: jax.random.gamma(k, 2.0))(keys)
            case "each":
                v = jax.nn.softplus(jnp.clip(v, -10, 10)) * jax.scipy.special.erf(v)
        return {**state, "potential": v}, v > 30


def check(module: Module) -> None:
    ends = [Connection("inputs:x", "eye:signal"), Connection("eye:spikes", "n:in_spikes")]
    model = Brain({"eye": PoissonSpiker(), "n": module}, ends, inputs={"x": (3,)})
    check_rows(Rows(model.graph, {"n": 5}, "rows", 2))


@pytest.mark.parametrize("kind", ["mean", "number", "noise", "neighbour", "largest", "pairs", "branch"])
def test_a_soma_that_looks_at_other_neurons_is_refused_where_they_are_split(kind):
    with pytest.raises(ProgramError, match=rf"n\.soma\n.*{__file__}:\d+"):
        check(Neuron(5, soma=Own(kind)))


@pytest.mark.parametrize("kind", ["unused", "own noise", "each"])
def test_a_soma_that_does_not_is_split(kind):
    check(Neuron(5, soma=Own(kind)))


def test_a_layout_by_neuron_asks():
    model = brain(Own("mean"))
    with pytest.raises(ProgramError, match="reduce_sum looks at other neurons"):
        outlay.brain.run_brain(model, steps=4, layout="by-neuron")
    with pytest.raises(ProgramError, match="reduce_sum looks at other neurons"):
        outlay.brain.run_brain(model, steps=4, layout=outlay.by_module({"eye": 0, "n": [0, 1]}))
    outlay.brain.run_brain(model, steps=4, inputs={"x": 0.5})


@dataclass(frozen=True)
class Pool(Module):
    """A module of one's own, split by neuron."""

    units: int = 5
    norm: bool = True
    by_neuron = ("v",)

    def inputs(self):
        return {"in_spikes": Port("spikes")}

    def outputs(self, shapes):
        return {"out": Port("values", (self.units,))}

    def init(self, key, shapes, *, dt, dtype):
        return {"v": jnp.zeros(self.units, dtype)}

    def step(self, state, inputs, *, dt):
        total = inputs["in_spikes"].astype(jnp.float32).sum()
        v = state["v"] + total if self.norm is None else state["v"] + total - state["v"].sum()
        return {"v": v}, {"out": v}


def test_a_module_that_looks_at_other_neurons_is_refused_too():
    with pytest.raises(ProgramError, match="reduce_sum looks at other neurons"):
        check(Pool())
    check(dataclasses.replace(Pool(), norm=None))
