"""Recipes in which something of the user's own goes wrong, or prints where it should not."""

import os
from typing import Any

import jax.numpy as jnp
import numpy as np

import outlay

BATCH = {"x": np.ones((8, 3), np.float32)}


def made(name: str = "ok", **fields: Any) -> outlay.Recipe:
    given: dict[str, Any] = {
        "init": lambda key: {"w": jnp.zeros(3)},
        "step": lambda state, batch: (state, {"loss": batch["x"].mean()}),
        "data": [BATCH] * 3,
        "steps": 3,
        "layouts": {"dp": outlay.Layout([*outlay.data_parallel(), ("w", outlay.replicate())])},
    }
    return outlay.Recipe(name, **{**given, **fields})


def fine() -> outlay.Recipe:
    return made()


def vector() -> outlay.Recipe:
    return made(step=lambda state, batch: (state, {"loss": batch["x"].mean(0), "n": batch["x"].sum()}))


def short() -> outlay.Recipe:
    return made(steps=5)


def empty() -> outlay.Recipe:
    return made(data=[])


class Feed:
    def __getitem__(self, step: int) -> Any:
        if step:
            raise ConnectionError("no data server")
        return BATCH


def no_server() -> outlay.Recipe:
    return made(data=Feed())


def broken_step() -> outlay.Recipe:
    def step(state, batch):
        return state, {"loss": 1 / 0}

    return made(step=step)


def broken_ends() -> outlay.Recipe:
    return made(evaluate=lambda program, state: 1 / 0, sample=lambda program, state: 3)


def outside() -> outlay.Recipe:
    return made("../../elsewhere")


def zero_byte() -> outlay.Recipe:
    return made("a\0b")


def long_name() -> outlay.Recipe:
    return made("n" * 300)


def noisy() -> outlay.Recipe:
    print("noise of the recipe")
    os.system("echo noise of a child")
    return made(sample=lambda program, state: print("noise at the end") or "a sample")


def hostile() -> outlay.Recipe:
    name = "w\x1b]0;title\x07"
    return made(
        init=lambda key: {name: jnp.zeros(3)},
        layouts={"dp": outlay.Layout([*outlay.data_parallel(), ("**", outlay.replicate())])},
    )
