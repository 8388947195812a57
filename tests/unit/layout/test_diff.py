import json

from jax.sharding import PartitionSpec as P
from tests.unit.layout.abstract import abstract, shape

import outlay

MESH = abstract(data=4, model=2)


def plan(state, *rules, mesh=MESH):
    return outlay.Layout([*rules, outlay.replicate()]).plan(state, mesh)


def test_the_same_plan_has_no_difference_though_its_rules_are_written_otherwise():
    state = {"w": shape(8, 4)}
    one = plan(state, ("w", P("data")))
    other = plan(state, ("*", P("data", None)))
    assert one["w"].rule != other["w"].rule
    assert not one.diff(other)
    assert str(one.diff(other)) == "the plans are the same"


def test_leaves_that_came_and_went_are_told_apart():
    difference = plan({"a": shape(8), "b": shape(2)}).diff(plan({"b": shape(2), "c": shape(4)}))
    assert [leaf.path for leaf in difference.removed] == ["a"]
    assert [leaf.path for leaf in difference.added] == ["c"]
    assert difference.changed == ()
    assert difference.removed[0].bytes_per_device == (32, 0)
    assert difference.added[0].bytes_per_device == (0, 16)
    assert difference.bytes_total == (40, 24)
    assert difference.bytes_per_device == (40, 24)


def test_a_leaf_split_otherwise_changes_its_dims_and_its_piece():
    state = {"w": shape(8, 4), "b": shape(4)}
    difference = plan(state, ("w", P("data"))).diff(plan(state, ("w", P(None, "model"))))
    (leaf,) = difference.leaves
    assert (leaf.path, leaf.what, leaf.fields) == ("w", "changed", ("dims", "local_shape"))
    assert leaf.bytes_per_device == (32, 64)
    assert difference.bytes_total == (144, 144)
    assert difference.bytes_per_device == (48, 80)


def test_shape_dtype_and_devices_are_compared():
    before = plan({"a": shape(8), "b": shape(8), "c": shape(8)}, ("c", outlay.layout.on(1)))
    after = plan({"a": shape(4), "b": shape(8, dtype="bfloat16"), "c": shape(8)}, ("c", outlay.layout.on(2)))
    assert {leaf.path: leaf.fields for leaf in before.diff(after).changed} == {
        "a": ("shape", "local_shape"),
        "b": ("dtype",),
        "c": ("device_ids",),
    }


def test_another_mesh_is_a_difference_even_of_no_leaves():
    difference = plan({}).diff(plan({}, mesh=abstract(data=8)))
    assert difference
    assert difference.leaves == ()
    assert str(difference).startswith("mesh data=4, model=2 (8 abstract devices) -> mesh data=8 (8 abstract devices)")


def test_more_devices_on_the_same_axis_change_the_piece():
    state = {"w": shape(16)}
    difference = plan(state, ("w", P("data"))).diff(plan(state, ("w", P("data")), mesh=abstract(data=8)))
    assert difference.changed[0].fields == ("local_shape",)


def test_the_text_of_a_diff_has_bytes_before_and_after():
    before = plan({"w": shape(256, 4), "old": shape(2)}, ("w", P("data")))
    after = plan({"w": shape(256, 4), "new": shape(3)}, ("w", P()))
    text = str(before.diff(after))
    assert "1 added, 1 removed, 1 changed" in text
    assert "spec P('data', None) -> P(), local (64, 4) -> (256, 4)" in text
    assert "1.0 KiB -> 4.0 KiB" in text
    assert text.splitlines()[-1].endswith("counted once, 1.0 KiB -> 4.0 KiB on the fullest device")


def test_the_data_is_json_and_says_both_sides():
    state = {"w": shape(8, 4)}
    difference = plan(state, ("w", P("data"))).diff(plan(state, ("w", outlay.layout.on(3))))
    data = json.loads(json.dumps(difference.to_dict()))
    assert data["bytes_per_device"] == [32, 128]
    assert data["leaves"] == [
        {
            "path": "w",
            "what": "changed",
            "fields": {
                "dims": [[["data"], []], [[], []]],
                "local_shape": [[2, 4], [8, 4]],
                "device_ids": [list(range(8)), [3]],
            },
            "bytes_per_device": [32, 128],
        }
    ]
