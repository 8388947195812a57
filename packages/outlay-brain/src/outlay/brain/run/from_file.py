"""The recipe of a Brain's file, with the options that it takes on the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from outlay.brain.address import addresses
from outlay.brain.brain import Brain
from outlay.brain.files.read_brain import parse_shapes, read_brain
from outlay.brain.module import BrainError
from outlay.brain.run.brain_recipe import CHUNK, BrainRecipe
from outlay.errors import Problem
from outlay.kit import check_input, counted, matches, open_array

LOOK_MS = 500.0
"""How much of the potentials is recorded when nobody says what to record: enough for a picture."""
EXAMPLE = Path(__file__).with_name("ab_brain.toml")


def recipe_of(path: Path) -> Callable[..., BrainRecipe]:
    """Return the recipe function of a file; its parameters are options on the command line.

    They are `--input NAME=FILE` or `NAME=NUMBER`; `--shape NAME=4` or `NAME=28x28`, of an input whose shape a `.scfg`
    does not say; `--record PATTERN` and `--stride N`; `--window FROM..TO` in ms and
    `--trigger 'MODULE:PORT > RATE +- MS'`, outside of which nothing is recorded; `--chunk N` steps in one call of the
    program; `--seed N` of what is drawn at random in the state; `--kernel fast-cpu` for machine code; `--trust` to run
    the Python files that the file imports. Those that take a text may be repeated. Without `--record`,
    the potentials of the first 500 ms are recorded.

    Args:
        path: a Brain in Outlay's own TOML, or a `.scfg` of Spark.
    """

    # Parameters are called like the options that they become, though `input` then hides a built-in.
    def recipe(
        input: list[str] | None = None,
        record: list[str] | None = None,
        stride: int = 1,
        window: list[str] | None = None,
        trigger: list[str] | None = None,
        chunk: int = CHUNK,
        seed: int = 0,
        kernel: str = "jax",
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
            kernel=kernel,
        )

    return recipe


def _potentials(brain: Brain) -> list[str]:
    # Not `select_addresses`, which refuses a pattern that matches nothing: a Brain may have no soma.
    return [address for address in addresses(brain) if matches("*.soma.potential", address)]


ab_brain = recipe_of(EXAMPLE)
"""Two populations that excite themselves and inhibit each other: 640 neurons with plastic synapses."""


def read_inputs(words: Iterable[str]) -> dict[str, Any]:
    """Read inputs by name from texts such as `drive=drive.npy` or `light=0.5`.

    Args:
        words: `NAME=NUMBER`, or `NAME=FILE` with a `.npy`, a `.npz` (the array of that name, or its only one), a `.csv`
            with one row a step, or the folder of a Zarr array.

    Raises:
        BrainError: a text is none of these, or a file cannot be read; the message lists all of them.
    """
    inputs: dict[str, Any] = {}
    problems = []
    for word in words:
        name, equals, text = word.partition("=")
        try:
            if not equals or not name:
                raise ValueError("it names no input")
            inputs[name] = _value(name, text)
        except (OSError, ValueError, KeyError) as error:
            problems.append(
                Problem(
                    "input", word, f"it cannot be read: {error}", "NAME=NUMBER, or NAME=FILE (.npy, .npz, .csv or Zarr)"
                )
            )
    if problems:
        raise BrainError(f"{counted(len(problems), 'input')} cannot be read", problems)
    return inputs


def _value(name: str, text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return _array(name, Path(text))


def _array(name: str, path: Path) -> np.ndarray:
    if path.is_dir():
        return np.asarray(open_array(path.resolve()).read().result())
    if not path.exists():
        raise ValueError(f"there is no file {path}")
    check_input(path)
    if path.suffix == ".npy":
        # Mapped: a run reads the steps of a chunk at a time, and a file may be larger than the memory.
        return np.load(path, mmap_mode="r", allow_pickle=False)
    if path.suffix == ".npz":
        arrays = np.load(path, allow_pickle=False)
        names = list(arrays)
        if name not in names and len(names) != 1:
            raise ValueError(f"it has no array {name!r}, only {', '.join(names)}")
        return arrays[name if name in names else names[0]]
    if path.suffix == ".csv":
        return _csv(path)
    raise ValueError(f"{path.suffix or 'no suffix'} is not a format that is known")


def _csv(path: Path) -> np.ndarray:
    """Read one row per step; a first line of names is skipped."""
    with path.open(encoding="utf-8") as file:
        first = file.readline()
    # Numbers such as 1e-3 and nan have letters, too.
    is_named = any(character.isalpha() for character in first.lower().replace("e", "").replace("nan", ""))
    return np.loadtxt(path, delimiter=",", ndmin=2, skiprows=int(is_named))
