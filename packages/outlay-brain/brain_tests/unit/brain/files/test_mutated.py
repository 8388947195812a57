"""Files of Brains with something in them changed at random: each is read, or refused in Outlay's own words."""

import contextlib
import copy
import json
import lzma
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlay.brain.brain import Brain
from outlay.brain.files.read_brain import read_brain, read_neuron
from outlay.brain.module import BrainError

DATA = Path(__file__).parents[3] / "data"
JUNK = (
    *(None, True, False, 0, -1, 1, 1e308, -1e308, 0.5, 1e-320, 10**9, 2**70, -(2**70), 10**400),
    *(float("nan"), float("inf"), "", "x", "1 ms", "é\u0000", "__call__", "float64", "NaN"),
    *([], [1, 2, 3], [[1], [2]], ["A_ex"], {}, {"a": 1}),
)
NAMES = ("x", "__type__", "config", "inputs", "units", "dt")


def loaded(name: str) -> dict:
    content = (DATA / name).read_bytes()
    parsed = json.loads(lzma.decompress(content) if content.startswith(b"\xfd") else content)
    return json.loads(parsed) if isinstance(parsed, str) else parsed


def places(value: object, path: tuple = ()) -> Iterator[tuple]:
    """The way to everything within a value, but for what only the graph editor reads."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if not str(key).startswith("__graph_editor"):
            yield from places(item, (*path, key))


def at(value: object, path: tuple) -> object:
    for key in path:
        value = value[key]
    return value


def mutate(data: dict, rng: random.Random) -> None:
    """Delete, replace, rename, copy or change something somewhere."""
    everywhere = list(places(data))
    if not everywhere:
        return
    path, other = rng.choice(everywhere), rng.choice(everywhere)
    parent, key, draw = at(data, path[:-1]), path[-1], rng.random()
    if draw < 0.25:
        del parent[key]
    elif draw < 0.6:
        parent[key] = rng.choice(JUNK)
    elif draw < 0.7 and isinstance(parent, dict):
        parent[rng.choice((*NAMES, f"{key}x"))] = parent.pop(key)
    elif draw < 0.8:
        parent[key] = copy.deepcopy(at(data, other))
    elif isinstance(parent[key], int | float):
        parent[key] = -parent[key] * rng.choice((1, 1e3, 1e6, 0.1))
    elif isinstance(parent[key], str):
        parent[key] = parent[key] + rng.choice('.:*é\n"')
    elif isinstance(parent, list):
        parent.append(parent[key])


@pytest.mark.thorough  # test_scfg.py refuses each mistake
@pytest.mark.parametrize(
    ("file", "shapes", "seed"),
    [
        ("example_ab_model.scfg", {}, 1),
        ("spark_1_2.scfg", {"drive": (4,)}, 2),
        ("ab_brain_2026_04.scfg", {"signal": (4,)}, 3),
        ("alif_mod_neuron.scfg", None, 4),
    ],
)
def test_100_mutations_of_a_file_of_spark_are_read_or_refused(tmp_path, file, shapes, seed):
    whole, rng, path = loaded(file), random.Random(seed), tmp_path / "model.scfg"
    for number in range(100):
        data = copy.deepcopy(whole)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            mutate(data, rng)
        path.write_text(json.dumps(data))
        try:
            with contextlib.suppress(BrainError):
                read = read_neuron(path, units=12) if shapes is None else read_brain(path, inputs=shapes)
                # To trace how a state is made takes most of the time, and refuses little that was read.
                assert number % 4 or not isinstance(read, Brain) or str(read.inspect())
        except Exception as error:
            error.add_note(f"in mutation {number}; its file is {path}")
            raise
