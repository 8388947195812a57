"""What pictures show, read back from their parts; how they look is for eyes."""

import numpy as np
import pytest

from outlay.brain.picture import colour
from outlay.brain.run.run_plots import potentials_plot, raster_plot, rates_plot, weights_plot
from outlay.brain.run.run_statistics import bin_steps, binned_rates


def test_a_raster_stacks_populations_with_the_first_at_the_top():
    spikes = {"A": (np.array([1.0, 2.0]), np.array([0, 4])), "B": (np.array([3.0]), np.array([2]))}
    (axes,) = raster_plot(spikes, {"A": 5, "B": 3}, start=0, end=10).axes
    a, b = (points.get_offsets() for points in axes.collections)
    assert a.tolist() == [[1, 0], [2, 4]]
    assert b[0, 1] > 4 + 2
    bottom, top = axes.get_ylim()
    assert bottom > top
    assert [label.get_text() for label in axes.get_yticklabels()] == ["A (5)", "B (3)"]


def test_rates_are_means_over_bins_and_neurons():
    times, rates = binned_rates(np.array([2, 0, 2, 4, 4]), num_neurons=4, dt=0.5, per_bin=2)
    assert times.tolist() == [0.5, 1.5, 2.25]
    assert rates.tolist() == [500, 1500, 2000]


@pytest.mark.parametrize(("num_steps", "dt", "steps"), [(100, 1.0, 5), (100, 0.1, 50), (10_000, 1.0, 50), (3, 20.0, 1)])
def test_bins_are_no_shorter_than_5_ms_and_no_more_than_200(num_steps, dt, steps):
    assert bin_steps(num_steps, dt) == steps


def test_rates_of_nothing():
    assert len(rates_plot({"A": np.zeros(0)}, {"A": 3}, 1.0).axes[0].lines[0].get_xdata()) == 0


def test_potentials_break_where_nothing_was_recorded():
    times = np.array([0.0, 1, 2, 50, 51])
    (axes,) = potentials_plot({"A.soma.potential": np.arange(5.0)[:, None]}, times).axes
    assert np.isnan(axes.lines[0].get_ydata()).tolist() == [False, False, False, True, False, False]


def test_a_population_has_the_same_colour_in_every_picture():
    potentials = potentials_plot({"B.soma.potential": np.zeros((4, 1))}, np.arange(4), ["A", "B"])
    assert potentials.axes[0].lines[0].get_color() == colour(1)
    weights = weights_plot({"B.synapses.kernel": (np.zeros(3), np.ones(3))}, ["A", "B"])
    assert colour(1) in {_hex(patch.get_edgecolor()) for patch in weights.axes[0].patches}


def _hex(rgba):
    from matplotlib.colors import to_hex

    return to_hex(rgba)


def test_weights_that_are_not_finite_are_left_out():
    figure = weights_plot({"A.synapses.kernel": (np.zeros(3), np.array([np.nan, 1.0, np.inf]))})
    assert figure.axes[0].get_xlim()[1] < 2


def test_a_notebook_shows_a_figure_as_a_picture():
    figure = rates_plot({"a": np.zeros(20)}, {"a": 3}, 1.0)
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_text_is_read_on_the_page_that_a_figure_is_made_for():
    """At half of 1200 pixels, or all of it, no letter is lower than ten of them."""
    figures = {
        540: (
            rates_plot({"A": np.ones(100)}, {"A": 10}, 1.0),
            potentials_plot({"A.soma": np.zeros((9, 3))}, np.arange(9)),
        ),
        1140: (
            raster_plot({"A": (np.ones(2), np.zeros(2))}, {"A": 5}, start=0, end=10),
            weights_plot({"A.synapses.kernel": (np.zeros(5), np.ones(5))}),
        ),
    }
    for width, made in figures.items():
        for figure in made:
            texts = [text for axes in figure.axes for text in (*axes.get_xticklabels(), *axes.get_yticklabels())]
            assert min(text.get_fontsize() for text in texts) * width / (72 * figure.get_figwidth()) >= 10
