import math

import numpy as np
import pytest

from outlay.train.run_folder import loss_plot


def history(losses):
    return [{"step": number, "loss": loss} for number, loss in enumerate(losses, 1)]


def test_a_loss_plot_has_every_step_and_the_running_mean():
    losses = np.linspace(2.0, 1.0, 50)
    each, mean = loss_plot(history(losses)).axes[0].lines
    np.testing.assert_array_equal(each.get_ydata(), losses)
    np.testing.assert_allclose(mean.get_ydata()[1:-1], losses[1:-1])  # a straight line is its own running mean
    assert each.get_xdata()[[0, -1]].tolist() == [1, 50]


@pytest.mark.parametrize(("last", "scale"), [(1.5, "linear"), (0.001, "log"), (0.0, "linear"), (math.nan, "linear")])
def test_a_loss_that_falls_far_is_drawn_in_logarithms(last, scale):
    assert loss_plot(history([2.0, 1.8, last])).axes[0].get_yscale() == scale


def test_one_step_can_be_drawn():
    assert len(loss_plot(history([2.0])).axes[0].lines) == 1
