import dataclasses

import numpy as np
import pytest
from tests.unit.recipes import small

import outlay
from outlay.core.error_types import LayoutError, MeshError, RecipeError
from outlay.recipes.prepare import prepare


def test_without_choices_it_is_the_recipes_default():
    prepared = prepare(small.line())
    assert prepared.layout_name == "dp"
    assert dict(prepared.program.mesh.shape) == {"data": 8}


def test_the_mesh_goes_with_the_layout_unless_another_is_asked_for():
    recipe = dataclasses.replace(
        small.line(), layouts={"two": outlay.data_parallel()}, meshes={"two": "data=-1,model=2"}
    )
    assert dict(prepare(recipe).program.mesh.shape) == {"data": 4, "model": 2}
    assert dict(prepare(recipe, mesh="data=8").program.mesh.shape) == {"data": 8}


def test_a_layout_from_a_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('[[rule]]\nmatch = "params.w"\nspec = ["data"]\n\n[[rule]]\nstrategy = "data_parallel"\n')
    prepared = prepare(small.line(), layout=str(file))
    assert prepared.layout_name == str(file)
    assert prepared.program.plan["params.w"].local_shape == (4,)


def test_an_unknown_layout_lists_the_recipes_own():
    with pytest.raises(
        RecipeError, match=r"no layout 'fsd': did you mean 'fsdp'\?\n  fix: use one of dp, replicated, zero1"
    ):
        prepare(small.line(), layout="fsd")


def test_a_mesh_that_does_not_fit_the_devices():
    with pytest.raises(MeshError):
        prepare(small.line(), mesh="data=3")


def test_a_layout_that_does_not_fit_the_mesh():
    with pytest.raises(LayoutError, match="axis 'data' is not in"):
        prepare(small.line(), mesh="batch=8")


def test_a_file_brings_its_mesh_unless_another_is_asked_for(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('mesh = "data=4,model=2"\n[[rule]]\nstrategy = "data_parallel"\n')
    assert dict(prepare(small.line(), layout=str(file)).program.mesh.shape) == {"data": 4, "model": 2}
    assert dict(prepare(small.line(), layout=str(file), mesh="data=8").program.mesh.shape) == {"data": 8}


def test_a_layout_may_depend_on_the_number_of_devices():
    recipe = dataclasses.replace(small.line(), layouts={"many": lambda n: outlay.data_parallel(f"over{n}")})
    assert prepare(recipe, mesh="over8=8").program.plan["batch.x"].local_shape == (2, 32)


def test_a_mode_alone_takes_the_first_layout_that_goes_with_it():
    recipe = dataclasses.replace(small.line(), modes={"fsdp": "manual"})
    assert prepare(recipe, mode="manual").layout_name == "fsdp"
    assert prepare(recipe, mode="auto").layout_name == "dp"
    assert prepare(small.line(), mode="manual").layout_name == "dp"


def test_a_layout_may_keep_the_optimizers_state_on_the_host():
    own, away = (prepare(small.line(), layout=name).program.plan for name in ("zero1", "zero1+host"))
    assert {leaf.path for leaf in away if leaf.stored == "host"} == {
        leaf.path for leaf in own if leaf.path.startswith("opt_state.")
    }
    assert [leaf.spec for leaf in away] == [leaf.spec for leaf in own]


def test_where_nothing_is_to_keep_on_the_host_it_says_so():
    recipe = dataclasses.replace(small.line(), layouts={"any": lambda num_devices: outlay.data_parallel()})
    plain = dataclasses.replace(recipe, init=lambda key: {"w": np.zeros(3)}, step=lambda state, batch: (state, {}))
    with pytest.raises(LayoutError, match=r"opt_state\.\*\*"):
        prepare(plain, layout="any+host")
