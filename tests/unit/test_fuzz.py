"""Damaged text of every form that Outlay reads from files and command lines ends in Outlay's own errors."""

import json
import random
import tomllib
from collections.abc import Callable
from pathlib import Path

import jax
import pytest
from jax.sharding import PartitionSpec as P

import outlay
from outlay.devices.hardware_file import overlay, read_tables
from outlay.devices.mesh_spec import MeshSpec

pytestmark = pytest.mark.compiles

NUM_MUTATIONS = 300
BITS = [
    "",
    "\0",
    "'",
    '"',
    "[",
    "]",
    "{",
    "}",
    "**",
    ".",
    "..",
    ",",
    "=",
    "@",
    "-1",
    "1e999",
    "nan",
    "true",
    "[[rule]]",
]
BITS += ["é", "😀", "9" * 30, "a" * 300, "\n", "#", "data", "params", "\ufeff"]
VALUES = [None, True, -1, 0, 1.5, 10**30, "x", "", [], {}, [None], [[]], {"a": 1}, "all", "float32", [1, 2], ["data"]]


def damaged_text(draw: random.Random, text: str) -> str:
    """One to five pieces cut out, doubled, exchanged or replaced."""
    for _ in range(draw.randint(1, 5)):
        start = draw.randint(0, len(text))
        end = min(len(text), start + draw.choice([0, 1, 1, 4, 20]))
        piece = draw.choice([draw.choice(BITS), text[start:end] * 2, text[start:end][::-1], chr(draw.randint(32, 600))])
        text = text[:start] + piece + text[end:]
    return text


def damaged_data(draw: random.Random, text: str) -> str:
    """JSON that is still JSON, with one to three of its values taken away or of another kind."""
    data = json.loads(text)
    for _ in range(draw.randint(1, 3)):
        owner, key = draw.choice(list(places(data)))
        if draw.random() < 0.2:
            del owner[key]
        else:
            owner[key] = draw.choice(VALUES)
    return json.dumps(data)


def places(data):
    keys = data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for key in keys:
        yield data, key
        yield from places(data[key])


STATE = {
    "params": {"embed": jax.ShapeDtypeStruct((64, 32), "float32"), "norm": [jax.ShapeDtypeStruct((32,), "bfloat16")]}
}
LAYOUT = """mesh = "data=4,model=2"
[[rule]]
match = "params.embed"
spec = ["model", "-"]
otherwise = "replicate"
[[rule]]
strategy = "fsdp"
axis = "data"
min_size = 16
[[rule]]
match = "ema.**"
follow = "params"
optional = true
"""
HARDWARE = """[h100]
memory_bandwidth = 3.0e12
[mine]
like = "h100"
peak_flops = { float32 = 60e12, bfloat16 = 900e12 }
devices_per_host = 4
"""
BUILT_IN = tomllib.loads((Path(outlay.__file__).parent / "devices" / "targets.toml").read_text())


def layout_file(text: str, folder: Path) -> None:
    file = folder / "layout.toml"
    file.write_text(text, encoding="utf-8")
    layout = outlay.layout.read_layout(file)
    str(layout.plan(STATE, outlay.mesh(data=4, model=2)))


def hardware_file(text: str, folder: Path) -> None:
    file = folder / "targets.toml"
    file.write_text(text, encoding="utf-8")
    overlay(BUILT_IN, read_tables(file), file)


def saved_plan(text: str, folder: Path) -> None:
    plan = outlay.layout.Plan.from_json(text)
    assert str(plan)
    assert plan.to_json()
    assert plan.replication >= 0
    assert all(leaf.num_copies * leaf.bytes_per_device >= 0 for leaf in plan)
    str(plan.diff(a_plan()))
    outlay.show(plan).to_html()


def a_plan() -> outlay.layout.Plan:
    layout = outlay.Layout([("params.embed", P("model"))]) + outlay.fsdp(min_size=16)
    return layout.plan(STATE, outlay.mesh(data=4, model=2))


def mesh_text(text: str, folder: Path) -> None:
    str(MeshSpec.parse(text).resolve(8))


def target_text(text: str, folder: Path) -> None:
    assert outlay.devices.Target.parse(text).num_devices


FORMS: dict[str, tuple[Callable[[str, Path], None], Callable[[random.Random, str], str], list[str]]] = {
    "layout file": (layout_file, damaged_text, [LAYOUT]),
    "hardware file": (hardware_file, damaged_text, [HARDWARE]),
    "saved plan, damaged text": (saved_plan, damaged_text, [a_plan().to_json()]),
    "saved plan, damaged values": (saved_plan, damaged_data, [a_plan().to_json()]),
    "mesh": (mesh_text, damaged_text, ["data=4,model=2", "data=-1,model=2@host", "replica=2, data=2, model=2"]),
    "target": (target_text, damaged_text, ["h100:32x8", "tpu-v5e:4x4*2", "cpu:8", "tpu-v4:2x2x4"]),
}


@pytest.mark.parametrize("form", FORMS)
def test_damaged_input_is_read_or_refused(form, tmp_path):
    read, damage, originals = FORMS[form]
    draw = random.Random(form)
    for original in originals:
        read(original, tmp_path)
    refused = 0
    for number in range(NUM_MUTATIONS):
        text = damage(draw, originals[number % len(originals)])
        try:
            read(text, tmp_path)
        except outlay.OutlayError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{form} number {number}: {text!r}") from error
    assert NUM_MUTATIONS // 4 < refused < NUM_MUTATIONS, "the damage should be neither harmless nor hopeless"
