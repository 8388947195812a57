"""Every example goes through every command that takes a program: what is shown to users must work in all of them.

In `make test` each goes through one or two, and through the others in the thorough run.
"""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from tests.unit.cli.command import command_here

import outlay
from outlay.recipes import prepare
from outlay.recipes.choose import Job, answer
from outlay.recipes.prepare import Prepared
from outlay.recipes.program_options import ProgramOptions

pytestmark = pytest.mark.usefixtures("blank_pictures", "one_program_an_example")

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = {"pencil_fft", "two_stage_pipeline"}
"""Examples that make no recipe: running them is all that can be done, and another test does."""

BRAINS = {"cart_pole.py:recipe", "ab_brain.toml"}
"""Examples of outlay-brain, which `make test-house` does without."""
ABSENT = set() if "brain" in outlay.__all__ else BRAINS
WRONG = {"planted_fault.py:recipe"}
"""Examples that are there to be found wrong."""


def as_recipe(name: str) -> outlay.Recipe:
    names = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    layouts = {"fsdp": outlay.fsdp(min_size=64, otherwise="replicate") + outlay.data_parallel()}
    data = [names["make_batch"]()] * 4
    return outlay.Recipe(name, names["init"], names["step"], data, steps=2, layouts=layouts)


def plain_pytree() -> outlay.Recipe:
    return as_recipe("plain_pytree")


def flax_linen_mlp() -> outlay.Recipe:
    return as_recipe("flax_linen_mlp")


def flax_nnx_mlp() -> outlay.Recipe:
    return as_recipe("flax_nnx_mlp")


def haiku_mlp() -> outlay.Recipe:
    return as_recipe("haiku_mlp")


STEPS = {function.__name__: f"{__file__}:{function.__name__}" for function in (plain_pytree, flax_linen_mlp)}
STEPS |= {function.__name__: f"{__file__}:{function.__name__}" for function in (flax_nnx_mlp, haiku_mlp)}
RECIPES = {
    f"{path.name}{':recipe' if path.suffix == '.py' else ''}": str(path) + (":recipe" if path.suffix == ".py" else "")
    for path in sorted(EXAMPLES.iterdir())
    if path.suffix == ".toml" or (path.suffix == ".py" and path.stem not in SCRIPTS | set(STEPS))
}
ALL = {name: text for name, text in {**STEPS, **RECIPES}.items() if name not in ABSENT}


@pytest.fixture(scope="module")
def one_program_an_example() -> Iterator[None]:
    """Plan and compile each example once for all commands, which ask for the same program."""
    made: dict[str, Prepared] = {}
    own = prepare.prepare_with

    def prepare_once(recipe: outlay.Recipe, options: ProgramOptions) -> Prepared:
        assert set(options.given()) == {"--devices"}, "another program"
        if recipe.name not in made:
            made[recipe.name] = own(recipe, options)
        return made[recipe.name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "prepare_with", prepare_once)
        yield


def run(tmp_path: Path, command: str, name: str, *options: str, code: int = 0) -> str:
    with jax.numpy_rank_promotion("allow"):  # as users have it
        result = command_here(command, ALL[name], "--devices", "8", *options, cwd=tmp_path)
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("name", ALL)
def test_show_and_explain_of_every_example(name, tmp_path):
    assert "device" in run(tmp_path, "show", name)
    assert "memory of a device" in run(tmp_path, "explain", name, "--all")


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("name", [name for name in ALL if name != "ab_brain.toml"])  # test_brain_parity.py does
def test_every_example_is_proved(name, tmp_path):
    run(tmp_path, "verify", name, "--steps", "1", code=1 if name in WRONG else 0)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("name", [name for name in reversed(ALL) if name != "ab_brain.toml"])
def test_every_example_runs(name, tmp_path):
    run(tmp_path, "run", name, "--steps", "2", "--run-folder", "run")
    assert any((tmp_path / "run").iterdir())


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("name", [name for name in ALL if name not in BRAINS])
def test_choose_takes_every_example(name, tmp_path):
    """What each process of `outlay choose` does."""
    usual = ("fsdp" if name in STEPS else "dp", "data=8")
    layout, mesh = {"particle_mesh.py:recipe": ("pencils", "a=4,b=2")}.get(name, usual)
    job = Job(ALL[name], (), layout, mesh, None, "cpu:8", str(tmp_path))
    with jax.numpy_rank_promotion("allow"):
        assert answer(job)["price"]["fits"]
