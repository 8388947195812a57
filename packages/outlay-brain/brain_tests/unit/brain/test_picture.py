import itertools

import numpy as np
import pytest
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from outlay.brain.brain import Brain
from outlay.brain.connections import Connection
from outlay.brain.decoders import ExponentialIntegrator
from outlay.brain.encoders import LinearSpiker, TopologicalLinearSpiker
from outlay.brain.neuron import Neuron
from outlay.brain.picture import HEIGHT, WIDTH, draw, route
from outlay.brain.picture_layout import columns_of, placed

BRAIN = Brain(
    {
        "out": ExponentialIntegrator(2),
        "A_in": Neuron(4, 1.0),
        "A_ex": Neuron(5),
        "eye": LinearSpiker(),
    },
    [
        Connection("inputs:light", "eye:signal"),
        Connection("eye:spikes", "A_ex:in_spikes"),
        Connection("A_ex:out_spikes", "A_ex:in_spikes", 2.0),
        Connection("A_in:out_spikes", "A_ex:in_spikes"),
        Connection("A_ex:out_spikes", "A_in:in_spikes"),
        Connection("A_ex:out_spikes", "out:spikes", 5.0),
    ],
    inputs={"light": (3,)},
    outputs={"action": "out:signal"},
)


def test_every_module_input_and_output_has_a_box_and_every_connection_an_arrow():
    (axes,) = draw(BRAIN.wiring).axes
    assert len([patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]) == 6
    assert len([patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]) == 7
    texts = [text.get_text() for text in axes.texts]
    for expected in ("light", "eye", "A_ex", "A_in", "out", "action", "Neuron\n5", "2 steps", "5 steps"):
        assert expected in texts


def test_text_is_large_enough_to_read_and_stays_in_its_box():
    class SimplifiedAdaptiveTopologicalNeuronOfMine(Neuron):
        pass

    modules = {"A": TopologicalLinearSpiker(), "B": SimplifiedAdaptiveTopologicalNeuronOfMine(5)}
    links = [Connection("inputs:light", "A:signal"), Connection("A:spikes", "B:in_spikes")]
    figure = draw(Brain(modules, links, inputs={"light": (3,)}).wiring)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert any("Simplified" in text.get_text() for text in axes.texts)
    for text in axes.texts:
        assert text.get_fontsize() >= 10
        across = text.get_window_extent().transformed(axes.transData.inverted()).width
        assert across < WIDTH, text.get_text()


def test_signals_go_from_left_to_right():
    (axes,) = draw(BRAIN.wiring).axes
    at = {text.get_text(): text.get_position()[0] for text in axes.texts}
    assert at["light"] < at["eye"] < at["A_ex"] < at["A_in"] == at["out"] < at["action"]


def test_the_boxes_do_not_touch():
    (axes,) = draw(BRAIN.wiring).axes
    boxes = [patch.get_bbox() for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])


# The module graph of Spark's tutorial of 2026: populations that excite and inhibit each other, each with an input.
POPULATIONS = {"A_ex": ("A_ex", "B_in", "eye"), "B_ex": ("B_ex", "A_in", "eye"), "A_in": ("A_ex",), "B_in": ("B_ex",)}
TUTORIAL = [
    ("light", "eye"),
    *((source, name) for name, sources in POPULATIONS.items() for source in (*sources, f"mod_{name}")),
    *((name, "out") for name in ("A_ex", "B_ex")),
]


def every_graph():
    yield TUTORIAL
    names = "abcdefg"
    pairs = list(itertools.permutations(names, 2))
    for seed in range(40):
        picked = np.random.default_rng(seed).permutation(len(pairs))[: 4 + seed % 9]
        yield [pairs[i] for i in picked]


def points_along(points, bend, num=60):
    """Points of an arrow, which is straight between the given ones or, where there are two, an arc (`arc3`)."""
    (x0, y0), (x1, y1) = points[0], points[-1]
    if len(points) == 2 and bend:
        t = np.linspace(0, 1, num)
        cx, cy = (x0 + x1) / 2 + bend * (y1 - y0), (y0 + y1) / 2 - bend * (x1 - x0)
        return [
            ((1 - s) ** 2 * x0 + 2 * s * (1 - s) * cx + s**2 * x1, (1 - s) ** 2 * y0 + 2 * s * (1 - s) * cy + s**2 * y1)
            for s in t
        ]
    return [
        tuple(np.asarray(a) + s * (np.asarray(b) - np.asarray(a)))
        for a, b in itertools.pairwise(points)
        for s in np.linspace(0, 1, num)
    ]


@pytest.mark.thorough
def test_no_arrow_runs_behind_a_box():
    for edges in every_graph():
        names = list(dict.fromkeys(name for edge in edges for name in edge))
        layout = placed(columns_of(names, edges), edges)
        for edge in edges:
            points, bend = route(edge, layout)
            for name in names:
                x, y = layout.columns[name] * 3.0, layout.rows[name] * 1.3
                inside = [
                    (px, py)
                    for px, py in points_along(points, bend)
                    if abs(px - x) < WIDTH / 2 - 1e-6 and abs(py - y) < HEIGHT / 2 - 1e-6
                ]
                assert edge[0] == edge[1] or not inside, (edge, name)


def test_columns_follow_the_signal_through_cycles_and_past_inputs():
    columns = columns_of(list(dict.fromkeys(name for edge in TUTORIAL for name in edge)), TUTORIAL)
    assert [columns[name] for name in ("light", "eye", "A_ex", "B_ex", "A_in", "B_in")] == [0, 1, 2, 2, 3, 3]


@pytest.mark.compiles
def test_the_ending_of_the_file_says_the_format(tmp_path):
    BRAIN.picture(tmp_path / "brain.png")
    BRAIN.picture(tmp_path / "brain.svg")
    assert (tmp_path / "brain.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "brain.svg").read_text()
