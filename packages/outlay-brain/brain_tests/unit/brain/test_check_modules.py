"""Mistakes in a module of one's own: each names the module, and what to write."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import pytest

from outlay.brain.brain import Brain
from outlay.brain.connections import Connection
from outlay.brain.module import BrainError, Module, Port


@dataclass(frozen=True)
class Adds(Module):
    units: int = 5
    by_neuron = ("x",)

    def inputs(self):
        return {"i": Port("values")}

    def outputs(self, shapes):
        return {"o": Port("values", (self.units,))}

    def init(self, key, shapes, *, dt, dtype):
        return {"x": jnp.zeros(self.units, dtype)}

    def step(self, state, inputs, *, dt):
        return {"x": state["x"] + inputs["i"].sum()}, {"o": state["x"]}


def stepped(**methods):
    module = dataclass(frozen=True)(type("Mine", (Adds,), methods))()
    brain = Brain({"mine": module}, [Connection("inputs:u", "mine:i")], inputs={"u": (3,)}, outputs={"y": "mine:o"})
    return brain.step(brain.init(jax.random.key(0)), {"u": jnp.ones(3)})


def a_step(returned):
    return {"step": lambda self, state, inputs, *, dt: returned(state)}


def an_init(made):
    return {"init": lambda self, key, shapes, *, dt, dtype: made()}


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (a_step(lambda s: (s, {"o": jnp.zeros(3)})), "step returned shape (3,), and outputs says (5,)"),
        (a_step(lambda s: (s, {})), "mine:o\n    step returned nothing for it"),
        (a_step(lambda s: (s, {"o": s["x"], "p": s["x"]})), "step returned it, and outputs does not name it"),
        (a_step(lambda s: (s, {"o": "text"})), "mine:o\n    step returned a str"),
        (a_step(lambda s: ({"x": s["x"].astype(int)}, {"o": s["x"]})), "step took float32[5] and returned int32[5]"),
        (a_step(lambda s: ({"x": jnp.zeros(7)}, {"o": s["x"]})), "step took float32[5] and returned float32[7]"),
        (a_step(lambda s: ({}, {"o": s["x"]})), "mine.x\n    step took float32[5] and returned nothing"),
        (a_step(lambda s: None), "step returned None\n    fix: return state, outputs"),
        (a_step(lambda s: (s, {"o": s["x"]}, 3)), "step returned a tuple of 3"),
        (an_init(lambda: None), "init returned None\n    fix: a dict of arrays by name"),
        (an_init(lambda: {"x": 3}), "mine.x\n    init made a int\n    fix: an array"),
        ({"by_neuron": ("xx",)}, "by_neuron names 'xx', and its state has no such leaf\n    fix: did you mean 'x'?"),
        ({"outputs": lambda self, shapes: ["o"]}, "mine\n    outputs returned ['o']\n    fix: a Port by name"),
        ({"outputs": lambda self, shapes: {"o": Port("values", 5)}}, "outputs returned what is not a shape: o 5"),
    ],
)
def test_what_a_module_does_not_do_is_told(methods, message):
    with pytest.raises(BrainError) as error:
        stepped(**methods)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("methods", "kind", "method"),
    [
        (a_step(lambda s: 1 / 0), ZeroDivisionError, "step"),
        (a_step(lambda s: s if s["x"].sum() > 0 else None), jax.errors.TracerBoolConversionError, "step"),
        (an_init(lambda: {}["nope"]), KeyError, "init"),
        ({"outputs": lambda self, shapes: {}["nope"]}, KeyError, "outputs"),
    ],
)
def test_an_exception_of_the_users_own_names_the_module(methods, kind, method):
    with pytest.raises(kind) as error:
        stepped(**methods)
    assert f"in {method} of module 'mine', Mine" in error.value.__notes__
