"""A REPL shows one line of every value, a notebook its text and its page, however much it holds."""

import dataclasses
import functools
import inspect
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter

import outlay
from outlay.core.one_line import OneLine

MOST = 2_000
"""Characters of a `repr`: two or three lines of a wide terminal hold less."""


def init(key):
    return {"layer": {"up": jax.random.normal(key, (8, 16)), "down": jnp.zeros((16, 8))}}


def step(params, x):
    def loss_of(params):
        y = x
        for layer in params.values():
            y = y + jax.nn.relu(y @ layer["up"]) @ layer["down"]
        return jnp.mean(y**2)

    loss, grads = jax.value_and_grad(loss_of)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), {"loss": loss, "part": {"first": loss}}


@functools.cache
def values() -> dict[str, Any]:
    x, mesh = np.ones((16, 8), np.float32), outlay.mesh(data=8)
    layout = outlay.fsdp("data", min_size=64) + outlay.data_parallel()
    program = outlay.program(step, init, x, layout=layout, mesh=mesh)
    whole = outlay.program(step, init, x, layout=outlay.data_parallel(), mesh=mesh)
    return {
        "layout": layout,
        "program": program,
        "plan": program.plan,
        "difference": whole.plan.diff(program.plan),
        "no difference": whole.plan.diff(whole.plan),
        "show": outlay.show(program),
        "explain": outlay.explain(program),
        "estimate": outlay.estimate(program, target="h100:1x8"),
        "verify": outlay.verify(program),
        "fit": outlay.fit(program, [x] * 3, steps=3, key=jax.random.key(0), progress=False),
    }


NAMES = ["layout", "program", "plan", "difference", "no difference", "show", "explain", "estimate", "verify", "fit"]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_shows_text_and_page_and_a_repl_one_line(name):
    value = values()[name]
    shown, _ = DisplayFormatter().format(value)
    assert repr(value).startswith(f"<{type(value).__name__}")
    assert "\n" not in repr(value)
    assert len(repr(value)) < 300
    assert shown["text/plain"] == str(value)
    assert "<iframe" in shown["text/html"]


def test_the_line_says_what_it_is_its_sizes_and_its_verdict():
    lines = {name: repr(values()[name]) for name in NAMES}
    assert lines["layout"] == "<Layout: 3 rules: **, batch.**, **>"
    assert lines["plan"].startswith("<Plan: mesh data=8 (8 simulated devices); state: 2 leaves, 1.0 KiB counted once")
    assert lines["difference"] == "<PlanDiff: 0 added, 0 removed, 2 changed>"
    assert re.search(r"sent by \d+ collectives, peak .* a device, fits, \d+ finding", lines["explain"])
    assert lines["verify"].startswith("<Verification: the same: all 4 arrays")
    assert lines["fit"].startswith("<Fit: 3 steps in ")
    assert "loss" in lines["fit"]


def test_the_page_of_a_fit_has_a_curve_for_each_number_by_step():
    page = values()["fit"].to_html()
    data = re.findall(r'data-chart="([^"]*)"><script type="application/json">(.*?)</script>', page)
    assert [name for name, _ in data] == ["loss", "part.first"]
    assert all('"x":[1.0,2.0,3.0]' in text.replace(" ", "") for _, text in data), data


def test_every_value_inside_a_report_prints_in_a_line():
    """Each type that a report is made of, in its largest instance here: what a debugger shows of it."""
    longest: dict[str, int] = {}
    seen: set[int] = set()
    stack = list(values().values())
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, OneLine) or dataclasses.is_dataclass(value):
            name = type(value).__name__
            longest[name] = max(longest.get(name, 0), len(repr(value)))
            stack += (
                [getattr(value, field.name) for field in dataclasses.fields(value)]
                if name != "Program" and (dataclasses.is_dataclass(value))
                else []
            )
        elif isinstance(value, list | tuple):
            stack += value
        elif isinstance(value, dict):
            stack += value.values()
    assert len(longest) > 30
    assert not {name: length for name, length in longest.items() if length > MOST}


def test_a_plan_of_5_000_leaves_prints_in_a_line_and_its_page_is_no_larger_than_one_of_200():
    def block(number):
        return {f"w{j}": jax.ShapeDtypeStruct((8, 4 + number % 7), "float32") for j in range(10)}

    shapes = {f"block{number}": block(number) for number in range(500)}
    plan = outlay.fsdp("data", min_size=1).plan(shapes, outlay.mesh(data=8))
    other = outlay.Layout([("**", outlay.replicate())]).plan(shapes, outlay.mesh(data=8))
    assert len(plan) == 5_000
    assert len(repr(plan)) < 300
    assert len(repr(plan.diff(other))) < 300
    assert len(plan.to_html()) < 200_000
    assert len(plan.diff(other).to_html()) < 200_000
    assert len(str(plan)) < 100_000


def test_no_public_class_prints_its_address():
    """`<... object at 0x7f...>` says nothing; protocols have no instances."""
    modules = [outlay, *(each for name in outlay.__all__ if inspect.ismodule(each := getattr(outlay, name)))]
    public = {getattr(module, name) for module in modules for name in getattr(module, "__all__", ())}
    classes = {each for each in public if inspect.isclass(each) and not getattr(each, "_is_protocol", False)}
    assert len(classes) > 100
    assert not sorted(each.__name__ for each in classes if each.__repr__ is object.__repr__)


def test_what_a_run_is_made_of_prints_in_a_line(tmp_path):
    data = outlay.TrainData(np.ones((1000, 4)), batch_size=10)
    assert repr(data) == "<TrainData: 1000 examples in batches of 10>"
    sequences = outlay.train.BucketedData([np.arange(3)] * 5, lengths=[4, 8], batch_size=2)
    assert repr(sequences) == "<BucketedData: 5 sequences, lengths [4, 8], batches of 2>"
    assert repr(outlay.Checkpoints(tmp_path)) == f"<Checkpoints in {tmp_path}>"
    assert repr(outlay.train.MetricsLog([], folder=tmp_path)) == f"<MetricsLog of {tmp_path} to nothing>"


def test_what_holds_arrays_shows_their_types_and_not_their_numbers():
    state = outlay.TrainState({"w": jnp.ones((64, 64))}, (), jnp.int32(0), jax.random.key(0), {})
    assert repr(state).startswith("TrainState(params={'w': float32[64, 64]}, opt_state=(), step=int32[]")
    examples = outlay.datasets.Examples(1000, lambda numbers: numbers, "numbers.npy", tuple(map(str, range(1000))))
    assert len(repr(examples)) < 300
    assert repr(examples).startswith("Examples(num=1000, read=")
