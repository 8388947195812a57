"""`outlay.explore`: every mesh shape with every layout, by arithmetic; the page follows what is chosen."""

import html
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.cli.command import LINE, command_here
from tests.unit.report.test_browser import browser, dom  # noqa: F401 - fixtures

import outlay
from outlay.layout.placement import spec_text


@pytest.fixture(scope="module")
def program():
    def init(key):
        return {"up": jax.random.normal(key, (16, 32)), "down": jnp.zeros((32, 16))}

    def step(state, batch):
        return state, jnp.mean(batch @ state["up"] @ state["down"])

    layout = outlay.fsdp(min_size=1) + outlay.data_parallel()
    return outlay.program(step, init, np.ones((8, 16), np.float32), layout=layout, mesh=outlay.mesh(data=4, model=2))


def test_each_figure_is_that_of_the_plan_on_that_mesh(program):
    explored = outlay.explore(program, {"fsdp": program.layout, "whole": outlay.data_parallel()})
    assert {each.mesh for each in explored} == {f"data={8 // n},model={n}" for n in (1, 2, 4, 8)}
    for each in explored:
        layout = {"fsdp": program.layout, "whole": outlay.data_parallel()}[each.layout]
        sizes = {name: int(size) for name, size in (axis.split("=") for axis in each.mesh.split(","))}
        plan = layout.plan(program.state_shapes, outlay.mesh(**sizes), batch=program.batch_shapes)
        assert each.bytes_per_device == max(plan.bytes_per_device.values())
    assert explored.chosen == ("data=4,model=2", "fsdp")
    assert not program.is_compiled


def test_what_a_mesh_refuses_is_told_and_what_fits_nowhere_is_left_out(program):
    uneven = outlay.Layout([("up", P("model"))]) + outlay.data_parallel()
    explored = outlay.explore(program, {"rows": uneven}, meshes=["data=4,model=2", "data=1,model=3"])
    fits, refused = explored
    assert fits.plan is not None
    assert refused.plan is None
    assert "indivisible dim: up" in refused.why_not
    assert "zero1" not in {each.layout for each in outlay.explore(program)}


def test_a_rule_for_a_value_that_the_step_names_is_no_reason_to_refuse():
    def step(state, batch):
        return state, outlay.constrain(batch @ state["w"], "hidden").mean()

    layout = outlay.Layout([("hidden", P("data"))]) + outlay.fsdp(min_size=1) + outlay.data_parallel()
    init, batch = lambda key: {"w": jnp.zeros((16, 32))}, np.ones((8, 16), np.float32)
    program = outlay.program(step, init, batch, layout=layout, mesh=outlay.mesh(data=8))
    explored = outlay.explore(program, {"own": layout})
    assert {each.mesh: each.why_not for each in explored if each.plan is None} == {}
    assert "refused" not in str(explored)


def test_what_is_refused_stands_below_the_table_whose_columns_fit(program):
    uneven = outlay.Layout([("up", P("model"))]) + outlay.data_parallel()
    page = outlay.explore(program, {"rows": uneven}, meshes=["data=4,model=2", "data=1,model=3"]).to_html()
    assert "<h2>Refused</h2>" in page
    assert re.search(r"data=1,model=3 rows: indivisible dim: up", html.unescape(page))


@pytest.mark.processes
def test_the_page_shows_what_is_chosen(program, dom):  # noqa: F811
    explored = outlay.explore(program, {"fsdp": program.layout, "whole": outlay.data_parallel()})
    for mesh, layout in (explored.chosen, ("data=8,model=1", "whole")):
        page = dom(explored, f"mesh={mesh}&layout={layout}")
        (each,) = (each for each in explored if (each.mesh, each.layout) == (mesh, layout))
        table = page.partition('id="explore-leaves"')[2].partition("</table>")[0]
        cells = [html.unescape(text) for text in re.findall(r"<td[^>]*>(?:<code[^>]*>)?([^<]*)", table)]
        assert cells[:2] == ["down", spec_text(each.plan["down"].spec)]
        assert f"replication {each.plan.replication:.2f}" in page


def test_the_command_explores_the_recipes_own_layouts(tmp_path):
    output = command_here("show", LINE, "--devices", "8", "--explore", "--html", "page.html", cwd=tmp_path)
    assert output.exit_code == 0, output.stderr
    assert "ways to lay it out" in output.stdout
    assert "fsdp" in output.stdout
    assert 'id="explore-mesh"' in (tmp_path / "page.html").read_text()
