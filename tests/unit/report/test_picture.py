import pytest
from tests.unit.report.arrays import mesh_of, pod, put, shape_on

from outlay.report.array_blocks import draw
from outlay.report.show import show


def picture(array):
    return draw(show(array).blocks)


@pytest.mark.parametrize(
    ("shape", "spec", "drawn"),
    [
        ((), (), (None, None)),
        ((8,), ("a",), (None, 0)),
        ((8, 8), (None, "a"), (0, 1)),
        ((8, 8, 8), (), (1, 2)),
        ((8, 8, 8), ("a",), (0, 2)),
        ((8, 8, 8, 8), ("a", None, "b"), (0, 2)),
        ((8, 8, 8, 8), ("a", "b", "c"), (1, 2)),
    ],
)
def test_the_dims_that_are_split_are_drawn(shape, spec, drawn):
    drawing = picture(put(shape, mesh_of(a=2, b=2, c=2), *spec))
    assert (drawing.row_dim, drawing.column_dim) == drawn


def test_more_split_dims_than_two_make_panels():
    drawing = picture(put((4, 8, 8, 2), mesh_of(a=2, b=2, c=2), "a", "b", "c"))
    assert [panel.title for panel in drawing.panels] == ["[0:2, :, :, :]", "[2:4, :, :, :]"]
    assert [panel.cells for panel in drawing.panels] == [
        (((0,), (1,)), ((2,), (3,))),
        (((4,), (5,)), ((6,), (7,))),
    ]
    assert drawing.rows == drawing.columns == ("0:4", "4:8")


def test_a_long_row_is_wrapped_into_lines():
    drawing = picture(shape_on((1024, 3), pod(data=32, model=8), ("data", "model")))
    assert drawing.rows[:2] == ("0:64", "64:128")
    assert drawing.panels[0].cells[1][:2] == ((16,), (17,))
    assert {len(row) for row in drawing.panels[0].cells} == {16}
    assert sum(len(row) for row in drawing.panels[0].cells) == 256


def test_thirty_two_blocks_are_not_wrapped():
    drawing = picture(shape_on((64, 64), pod(data=32, model=8), "data"))
    assert sorted((len(drawing.rows), len(drawing.columns))) == [1, 32]
