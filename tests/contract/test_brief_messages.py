"""No message of an error is longer than 2 KB, however many offenders there are; all of them are in its details."""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.cli.command import command_here

import outlay
from outlay.core.error_types import OutlayError, Problem

MOST = 2_000
NUM = 20_000
MANY = 600
"""Leaves of states that are traced here."""
FOR_PLANS = 4_000
# Words of letters, since names that differ in numbers alone are told as one.
NAMES = ["".join(letters) for letters in itertools.islice(itertools.product(string.ascii_lowercase, repeat=4), NUM)]
X = np.ones((8, 4), np.float32)
LAYOUT, MESH = outlay.data_parallel(), "data=8"


def public_errors() -> list[type[OutlayError]]:
    return sorted(
        (one for one in vars(outlay.errors).values() if isinstance(one, type) and issubclass(one, OutlayError)),
        key=lambda one: one.__name__,
    )


def test_an_error_of_20000_offenders_is_brief_and_keeps_them_all() -> None:
    problems = [Problem(f"kind {i % 9}", name, f"{name} is wrong", "mend it") for i, name in enumerate(NAMES)]
    kind = outlay.errors.ProgramError
    listed = "\n".join(["20,000 leaves differ:", *(f"  {name}: is wrong" for name in NAMES), "  fix: mend them"])
    for error in (
        kind("20,000 problems:", problems),
        kind(listed),
        kind("20,000 leaves differ: " + ", ".join(NAMES)),
        kind("20,000 leaves differ:\n" + ", ".join(NAMES) + "\n  fix: mend them"),
    ):
        text, details = str(error), error.details
        assert len(text.encode()) <= MOST
        assert text.startswith("20,000 ")
        assert NAMES[0] in text
        assert "error.details" in text or "[...]" in text
        assert all(name in details for name in NAMES[::997])
    assert str(kind(listed)).endswith("\n  fix: mend them")
    assert str(kind("漢字" * 9000, problems[:50])).count("漢") > 50
    assert len(str(kind("漢字\x1b" * 9000, problems[:50])).encode()) <= MOST


@pytest.mark.parametrize("kind", public_errors())
def test_every_error_of_outlay_says_what_it_has_to_say_in_this_way(kind: type[OutlayError]) -> None:
    assert (kind.__init__, kind.__str__) == (OutlayError.__init__, OutlayError.__str__)


def leaves(make: Callable[[], Any], num: int = MANY) -> dict[str, Any]:
    return {name: make() for name in NAMES[:num]}


def zeros(key: Any) -> Any:
    return leaves(lambda: jnp.zeros(8))


def same(state: Any, batch: Any) -> Any:
    return state, {"mean": batch.mean()}


def program(step: Any = same, init: Any = zeros, batch: Any = X) -> Any:
    return outlay.program(step, init, batch, layout=LAYOUT, mesh=MESH)


def program_of(step: Any, init: Any = zeros) -> Callable[[Any], Any]:
    return lambda made: program(step, init)


LISTING: dict[str, Callable[[Any], Any]] = {
    "a rule that matches nothing": lambda made: outlay.Layout([("nothing", P("data"))]).plan(
        SHAPES, outlay.mesh(data=8)
    ),
    "dims that do not divide": lambda made: outlay.Layout([("**", P("data"))]).plan(SHAPES, outlay.mesh(data=8)),
    "rules": lambda made: outlay.Layout([(name, P("data")) for name in NAMES[:FOR_PLANS]]).plan(
        {"w": SHAPES["aaaa"]}, outlay.mesh(data=8)
    ),
    "no arrays": program_of(same, lambda key: leaves(lambda: "text")),
    "values that init makes": program_of(same, lambda key: leaves(lambda: np.full(1, 2**40))),
    "dtypes that a step changes": program_of(lambda s, x: (jax.tree.map(lambda w: w.astype(jnp.bfloat16), s), {})),
    "leaves that a step drops": program_of(lambda s, x: ({"aaaa": s["aaaa"]}, {})),
    "outputs that are no arrays": program_of(lambda s, x: (s, leaves(lambda: "text"))),
    "a step that returns its state alone": program_of(lambda s, x: s),
    "other leaves": lambda made: made({name: np.zeros(9, np.float32) for name in NAMES[:MANY]}, X),
    "other names": lambda made: made({f"{name}.x": jnp.zeros(8) for name in NAMES[:MANY]}, X),
    "leaves that live elsewhere": lambda made: made(jax.device_put(zeros(None), jax.devices()[1]), X),
    "texts in a call": lambda made: made(leaves(lambda: "text"), X),
    "batches": lambda made: made(zeros(None), leaves(lambda: X)),
    "put of other leaves": lambda made: made.put({"other": jnp.zeros(8)}),
    "put of texts": lambda made: made.put(leaves(lambda: "text")),
    "a donated state": lambda made: [made(state := made.init(jax.random.key(0)), X), made(state, X)],
}
SHAPES = {name: jax.ShapeDtypeStruct((7,), "float32") for name in NAMES[:FOR_PLANS]}


@pytest.fixture(scope="module")
def made() -> Any:
    return program()


@pytest.mark.parametrize("name", LISTING)
def test_what_lists_offenders_is_brief(name: str, made: Any) -> None:
    with pytest.raises(OutlayError) as caught:
        LISTING[name](made)
    text = str(caught.value)
    assert len(text.encode()) <= MOST, text[:3000]
    assert "fix:" in text
    assert len(caught.value.details) >= len(text.split("all of it:")[0])


def test_the_command_line_shows_all_with_traceback(tmp_path: Path) -> None:
    file = tmp_path / "layout.toml"
    file.write_text("".join(f'[[rule]]\nmatch = "{name}"\nspec = ["data"]\n' for name in NAMES[:300]))
    words = ["explain", "digits", "--devices", "8", "--layout", str(file)]
    brief, whole = (command_here(*more, *words, cwd=tmp_path).stderr for more in ([], ["--traceback"]))
    assert "unused rule" in brief
    assert len(brief.encode()) < 2_048
    assert all(name in whole for name in NAMES[:300])
