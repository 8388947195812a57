import pytest
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from outlay.brain.brain import Brain
from outlay.brain.connections import Connection
from outlay.brain.decoders import ExponentialIntegrator
from outlay.brain.encoders import LinearSpiker
from outlay.brain.neuron import Neuron
from outlay.brain.picture import draw

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
    for expected in ("light", "eye", "A_ex", "A_in", "out", "action", "Neuron, 5", "2 steps", "5 steps"):
        assert expected in texts


def test_signals_go_from_left_to_right():
    (axes,) = draw(BRAIN.wiring).axes
    at = {text.get_text(): text.get_position()[0] for text in axes.texts}
    assert at["light"] < at["eye"] < at["A_ex"] < at["A_in"] == at["out"] < at["action"]


def test_the_boxes_do_not_touch():
    (axes,) = draw(BRAIN.wiring).axes
    boxes = [patch.get_bbox() for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])


@pytest.mark.compiles
def test_the_ending_of_the_file_says_the_format(tmp_path):
    BRAIN.picture(tmp_path / "brain.png")
    BRAIN.picture(tmp_path / "brain.svg")
    assert (tmp_path / "brain.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "brain.svg").read_text()
