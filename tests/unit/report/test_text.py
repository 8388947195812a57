import io

import jax
import numpy as np
from jax.sharding import PartitionSpec as P
from rich.console import Console
from tests.unit.report.arrays import mesh_of, pod, put, shape_on

from outlay.devices.device_names import format_ids
from outlay.layout.layout import Layout
from outlay.layout.placement import replicate
from outlay.render.page import Deferred, Line, Page
from outlay.render.text import is_longer
from outlay.report.show import show


def printed(shown, width, **how):
    out = io.StringIO()
    Console(file=out, width=width, **how).print(shown)
    return out.getvalue()


def a_plan():
    layout = Layout([("w", P("data", None))]) + replicate()
    shapes = {"w": jax.ShapeDtypeStruct((8, 4), np.float32), "b": jax.ShapeDtypeStruct((4,), np.float32)}
    return layout.plan(shapes, mesh_of(data=8))


def test_piped_text_has_no_colour():
    shown = show(put((4, 8), mesh_of(x=2, y=4), "x", "y"))
    assert "\x1b" not in printed(shown, 80)
    assert "\x1b" not in str(shown)
    assert "\x1b[" in printed(shown, 80, force_terminal=True, color_system="standard", legacy_windows=False)


def test_narrow_terminals_lose_the_reasons_and_say_so():
    shown = show(a_plan())
    narrow, wide = printed(shown, 100), printed(shown, 200)
    assert "the reasons are left out" in narrow
    assert "reason" not in narrow.splitlines()[2]
    assert "reason" in wide.splitlines()[2]
    assert "left out" not in wide


def test_columns_that_nothing_fills_are_not_printed():
    header = str(show({"a": put((8,), mesh_of(x=8), "x"), "b": put((8,), mesh_of(x=8))})).splitlines()[2]
    assert header.split() == ["path", "shape", "local", "dtype", "spec", "a", "device", "copies"]


def test_pictures_wider_than_the_terminal_go_on_below():
    text = printed(show(shape_on((64, 256), pod(data=2, model=32), "data", "model")), 60)
    assert max(map(len, text.splitlines())) <= 60
    numbers = {int(word) for line in text.splitlines() if "│" in line for word in line.split("│")[1:] if word.strip()}
    assert numbers == set(range(64))


def test_256_devices_stay_readable():
    mesh = pod(data=32, model=8)
    whole = str(show(shape_on((1024,), mesh)))
    assert "0-255" in whole
    columns = str(show(shape_on((1024,), mesh, "model")))
    assert "3-251 by 8" in columns
    blocks = str(show(shape_on((1024, 512), mesh, "data", "model")))
    assert max(map(len, blocks.splitlines())) < 100
    assert len(blocks.splitlines()) < 45


def test_ids_in_few_words():
    assert format_ids([5]) == "5"
    assert format_ids([3, 1, 2]) == "1-3"
    assert format_ids([0, 4]) == "0,4"
    assert format_ids([0, 2, 4, 6]) == "0,2,4,6"
    assert format_ids([0, 1, 3, 4, 6, 7, 9, 10, 12, 20]) == "0,1,3,4,..,20 (10)"


def test_paths_are_not_markup():
    assert "[bold]" in str(show({"[bold]": np.ones(2), "b": np.ones(2)}))


def test_on_a_narrow_terminal_rules_are_numbers_with_a_legend():
    """Patterns would break the table's lines; numbers and a list below say the same."""
    narrow = printed(show(a_plan()), 100).splitlines()
    (row,) = (line for line in narrow if line.startswith("w "))
    assert row.split()[-1] == "1"
    assert [line.strip() for line in narrow if line.startswith("rule")] == ["rule 1. w", "rule 2. **"]


def test_a_deferred_block_is_made_only_if_the_others_do_not_tell():
    made = []

    def lines():
        made.append("lines")
        return [Line("made late")] * 3

    page = Page(title="a page", headline="a page", blocks=[Line("first"), Deferred(lines), Line("last")])
    assert is_longer(page, 2, 80)
    assert not made
    assert is_longer(page, 5, 80)
    assert not is_longer(page, 6, 80)
    assert made
