"""The recipe of a Brain's file, with the options that it takes on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from outlay.brain.address import addresses
from outlay.brain.brain import Brain
from outlay.brain.files.read import parse_shapes, read_brain
from outlay.core.patterns import matches
from outlay.recipes.brain.brain_recipe import CHUNK, BrainRecipe
from outlay.recipes.brain.inputs.files import read_inputs

LOOK_MS = 500.0
"""How much of the potentials is recorded when nobody says what to record: enough for a picture."""
EXAMPLE = Path(__file__).with_name("ab_brain.toml")


def recipe_of(path: Path) -> Callable[..., BrainRecipe]:
    """The recipe function of a file, whose parameters are options on the command line.

    They are `--input NAME=FILE` or `NAME=NUMBER`; `--shape NAME=4` or `NAME=28x28`, of an input whose shape a `.scfg`
    does not say; `--record PATTERN` and `--stride N`; `--window FROM..TO` in ms and
    `--trigger 'MODULE:PORT > RATE +- MS'`, outside of which nothing is recorded; `--chunk N` steps in one call of the
    program; `--seed N` of what is drawn at random in the state; `--trust` to run the Python files that
    the file imports. Those that take a text may be repeated. Without
    `--record`, the potentials of the first 500 ms are recorded.

    Args:
        path: a Brain in Outlay's own TOML, or a `.scfg` of Spark.
    """

    def recipe(
        input: list[str] | None = None,
        record: list[str] | None = None,
        stride: int = 1,
        window: list[str] | None = None,
        trigger: list[str] | None = None,
        chunk: int = CHUNK,
        seed: int = 0,
        shape: list[str] | None = None,
        trust: bool = False,
    ) -> BrainRecipe:
        brain = read_brain(path, inputs=parse_shapes(shape or ()), trust=trust)
        looks = record is None and not window and not trigger
        return BrainRecipe.of(
            brain,
            name=path.stem,
            inputs=read_inputs(input or ()),
            record=_potentials(brain) if record is None else record,
            stride=stride,
            windows=[(0, LOOK_MS)] if looks else window or (),
            triggers=trigger or (),
            seed=seed,
            chunk=chunk,
        )

    return recipe


def _potentials(brain: Brain) -> list[str]:
    return [address for address in addresses(brain) if matches("*.soma.potential", address)]


ab_brain = recipe_of(EXAMPLE)
"""Two populations that excite themselves and inhibit each other: 640 neurons with plastic synapses."""
