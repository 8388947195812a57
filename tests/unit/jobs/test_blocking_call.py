"""What a frame calls while it stands there: a frame asks about its own caller, which stands in that very call."""

import ast
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from outlay.jobs import blocking_call
from outlay.jobs.blocking_call import called_by
from outlay.jobs.join import _is_compiled


def ask(*_):
    return called_by(sys._getframe(1))


class Trainer:
    step = staticmethod(ask)

    @property
    def costly(self):
        raise AssertionError("code of the program was run")

    def method(self):
        return called_by(sys._getframe(1))


OWNER = SimpleNamespace(step=ask, inner=SimpleNamespace(step=ask))


def test_a_name_of_the_function_of_the_module_and_of_an_object():
    own = ask
    assert own(1) == (ask,)
    assert ask(1, "two") == (ask,)
    assert OWNER.step(1) == (ask, OWNER)
    assert OWNER.inner.step(own(2)) == (ask, OWNER.inner)


def test_a_method_and_a_static_one():
    trainer = Trainer()
    assert trainer.method() == (vars(Trainer)["method"], trainer)
    assert trainer.step() == (ask, trainer)


def test_what_has_no_name_is_nobody_knows_what():
    assert (lambda: ask)()() == ()
    assert [ask][0]() == ()
    assert (
        ask(
            1,
        )
        == ()
    )
    space = {"ask": ask}
    exec("answer = ask()", space)  # without a file there is no text to look at
    assert space["answer"] == ()


def test_no_code_of_the_program_is_run():
    space = SimpleNamespace(trainer=Trainer(), ask=ask)
    frame = SimpleNamespace(f_locals={"space": space}, f_globals={}, f_code=None)
    name = ast.parse("space.trainer.costly", mode="eval").body
    assert isinstance(blocking_call._named(name, frame)[0], property)


@pytest.mark.parametrize(
    ("value", "is_compiled"),
    [(jax.jit(lambda x: x), True), (jnp.ones(2), True), (len, False), (None, False), (Trainer(), False)],
    ids=["jitted", "array", "python", "nothing", "object"],
)
def test_what_jax_compiles(value, is_compiled):
    assert _is_compiled(value) is is_compiled
