"""From how many tokens a device on computing takes as long as exchanges over an axis: arithmetic by hand."""

import pytest

from outlay.analysis.cost.thresholds import Exchange, Threshold, needed, thresholds

PARTS = {"products": 0.6, "memory": 0.3, "kernels": 0.1, "communication": 0.5, "overhead": 9.0}


def test_parameters_and_gradients_are_hidden_by_enough_tokens():
    """Two gathers and a scatter of 0.3 s against 1 s of computing for 1000 tokens: 300 tokens take as long."""
    (one,) = thresholds([Exchange("data", 0.2, True), Exchange("data", 0.1, True)], PARTS, 1000)
    assert (one.axes, one.num_needed, one.growing_seconds) == ("data", 300, 0.0)
    assert one.fixed_seconds == pytest.approx(0.3)
    assert one.compute_seconds == pytest.approx(1.0)


def test_of_activations_no_number_of_tokens_is_too_few():
    (one,) = thresholds([Exchange("model", 0.4, False)], PARTS, 1000)
    assert one.num_needed == 0
    assert "grow with the tokens: 40% of computing, however many a device has" in one.in_words()


def test_what_grows_leaves_less_time_to_hide_the_rest():
    assert needed(0.3, 0.4, 1.0, 1000) == 500
    assert needed(0.3, 1.2, 1.0, 1000) is None
    words = Threshold("model", 0.3, 1.2, 1.0, 1000, None).in_words("samples")
    assert "1.20 times as long as computing: more samples a device do not help" in words


def test_axes_that_cost_nothing_are_left_out():
    (one,) = thresholds([Exchange("data", 0.2, False), Exchange("model", 0.001, False)], PARTS, 1000)
    assert (one.axes, one.num_needed) == ("data", 0)
    assert thresholds([Exchange("data", 0.2, True)], {"communication": 1.0}, 1000) == ()
    assert thresholds([Exchange("data", 0.2, True)], PARTS, 0) == ()


def test_nothing_is_said_of_an_axis_over_which_parameters_may_be_moved_unseen():
    """A sum of the backward pass may be of gradients that could not be followed to their parameters."""
    unseen = Exchange("data", 0.4, None)
    assert thresholds([unseen, Exchange("data", 0.2, True)], PARTS, 1000) == ()
    # Next to the sum of a loss it is unseen all the same.
    assert thresholds([unseen, Exchange("data", 0.001, False)], PARTS, 1000) == ()
    (other,) = thresholds([unseen, Exchange("expert", 0.2, True)], PARTS, 1000)
    assert other.axes == "expert"


def test_the_backward_pass_of_split_layers_sends_what_their_forward_pass_does_and_more():
    (one,) = thresholds([Exchange("model", 0.2, False), Exchange("model", 0.4, None)], PARTS, 1000)
    assert one.num_needed == 0
    assert one.growing_seconds == pytest.approx(0.6)


def test_little_that_may_be_either_hides_nothing():
    (one,) = thresholds([Exchange("data", 0.2, True), Exchange("data", 0.005, None)], PARTS, 1000)
    assert one.num_needed == 202
