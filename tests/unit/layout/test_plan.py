import json

import jax
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.layout.abstract import abstract, shape

import outlay

MESH = abstract(data=4, model=2)
STATE = {"params": {"w": shape(1024, 256), "b": shape(256)}, "step": shape(dtype="int32")}
LAYOUT = outlay.Layout([("params.w", P("data", "model")), ("params.b", outlay.replicate())])


@pytest.fixture
def plan():
    return (LAYOUT + outlay.data_parallel()).plan(STATE, MESH, batch=shape(64, 3))


def test_a_leaf_carries_its_place_its_bytes_and_its_reason(plan):
    leaf = plan["params.w"]
    assert (leaf.spec, leaf.local_shape, leaf.num_copies) == (P("data", "model"), (256, 128), 1)
    assert (leaf.bytes_total, leaf.bytes_per_device) == (2**20, 2**17)
    assert (leaf.rule, leaf.reason) == ("1. params.w", "dim 0 over data by rule 1; dim 1 over model by rule 1")
    assert plan["params.b"].reason == "rule 2 says replicate()"
    assert plan["step"].reason == "a scalar is whole everywhere"


def test_totals_count_the_state_and_not_the_batch(plan):
    assert plan.bytes_total == 2**20 + 1024 + 4
    assert plan.bytes_per_device == dict.fromkeys(range(8), 2**17 + 1024 + 4)
    assert plan.replication == 8 * (2**17 + 1028) / plan.bytes_total
    assert [leaf.path for leaf in plan.of_kind("batch")] == ["batch"]


def test_an_unknown_path_names_what_was_meant(plan):
    with pytest.raises(KeyError, match=r"no leaf 'parms\.w' in the plan: did you mean 'params\.w'"):
        plan["parms.w"]


def test_the_text_is_a_table_with_totals(plan):
    text = str(plan)
    lines = text.splitlines()
    assert lines[0] == "mesh data=4, model=2 (8 abstract devices)"
    (row,) = [line for line in lines if line.startswith("params.w")]
    assert row.split()[:5] == ["params.w", "(1024,", "256)", "(256,", "128)"]
    for cell in ("float32", "P('data', 'model')", "128.0 KiB", "1. params.w", "dim 0 over data by rule 1"):
        assert cell in row
    assert lines[-1] == "state: 3 leaves, 1.0 MiB counted once, 129.0 KiB a device, replication 1.01"


def test_uneven_devices_are_shown_from_least_to_most():
    text = str(outlay.by_module({"a": 0, "b": 3}).plan({"a": {"w": shape(256)}, "b": {"w": shape(512)}}, MESH))
    assert "0 B to 2.0 KiB a device, replication 1.00" in text


def test_json_is_plain_read_back_equal_and_says_the_totals(plan):
    data = json.loads(plan.to_json())
    assert data["bytes_total"] == plan.bytes_total
    assert data["leaves"][0]["device_ids"] == "all"
    assert outlay.layout.Plan.from_json(plan.to_json()) == plan
    placed = outlay.by_module({"a": [2, 5]}).plan({"a": {"w": shape(8)}}, MESH)
    assert outlay.layout.Plan.from_json(placed.to_json()) == placed


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"mesh": 3}', '{"mesh": {"axes": []}}', '{"leaves": 1}'])
def test_text_that_is_no_saved_plan_is_refused(text):
    with pytest.raises(outlay.errors.LayoutError, match=r"not a saved plan \(.*\); write one with plan\.to_json\(\)"):
        outlay.layout.Plan.from_json(text)


def test_planning_on_real_devices_gives_their_ids():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    plan = LAYOUT.plan(STATE, mesh)
    assert plan["params.w"].device_ids == tuple(device.id for device in mesh.devices.flat)
    assert plan.mesh.kind == "simulated"


def test_an_axis_that_splits_nothing_is_noted():
    plan = outlay.Layout([("w", P("data"))]).plan({"w": shape(8)}, MESH)
    assert plan.notes == ("axis 'model' splits nothing: its 2 devices hold the same arrays and repeat the same work",)
    assert str(plan).endswith(f"note: {plan.notes[0]}")


def test_a_layout_that_splits_everything_or_places_modules_has_no_notes():
    assert outlay.Layout([("w", P("data", "model"))]).plan({"w": shape(8, 8)}, MESH).notes == ()
    assert outlay.by_module({"a": 1}).plan({"a": {"w": shape(8)}}, MESH).notes == ()


def test_a_shape_that_no_device_count_divides_is_said_to_bring_nothing():
    layout = outlay.fsdp("data", min_size=1, otherwise="replicate")
    (note,) = layout.plan({"w": shape(256, 832)}, abstract(data=6)).notes
    assert "gains nothing: every leaf is replicated 6 times (+4.1 MiB of copies)" in note
    assert "no dim of w (256, 832) is divisible by 6, nor of any other leaf" in note


def test_replicating_what_could_be_split_says_how_much_could():
    (note,) = outlay.Layout([outlay.replicate()]).plan({"w": shape(256, 832), "b": shape(3)}, MESH).notes
    assert "1 of 2 leaves have a dim that is divisible by 8" in note


def test_one_device_has_nothing_to_note():
    assert outlay.Layout([outlay.replicate()]).plan({"w": shape(8)}, abstract(data=1)).notes == ()


def test_equal_layers_are_one_line_and_the_text_says_where_all_are():
    layer = {"up": shape(64, 256), "down": shape(256, 64)}
    layers = [dict(layer) for _ in range(40)]
    layers[7] = {"up": shape(64, 512), "down": shape(512, 64)}  # which is not like the others
    plan = (outlay.fsdp(min_size=8) + outlay.data_parallel()).plan({"params": {"layers": layers}}, MESH)
    lines = str(plan).splitlines()
    assert len(lines) == 9
    assert any(line.startswith("params.layers.{0..6,8..39}.up x39 ") for line in lines)
    assert any(line.startswith("params.layers.7.up  ") for line in lines)
    assert "(80 rows in 4, similar ones folded; all of them: plan.to_json(), or plan[path] for one)" in lines


def test_a_plan_of_a_screen_or_two_prints_every_leaf():
    layers = [{"up": shape(64, 256)} for _ in range(30)]
    plan = (outlay.fsdp(min_size=8) + outlay.data_parallel()).plan({"params": {"layers": layers}}, MESH)
    assert "alike" not in str(plan)
    assert "params.layers.29.up" in str(plan)
