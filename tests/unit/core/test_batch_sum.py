import pytest

from outlay.core.constrain import current_marker, current_runner, gradient_of_sums, per_device
from outlay.core.context_values import within


def plain(sums, params, samples):
    return "gradient", sums(params, samples)


def total(params, samples):
    return params * sum(samples)


def test_without_a_runner_the_gradient_is_taken_as_it_stands():
    assert gradient_of_sums(plain, total, 2, [1, 2]) == ("gradient", 6)


def test_a_runner_is_asked_within_its_block_only():
    def half(gradient, sums, params, samples):
        return gradient(sums, params, samples[:1])

    with within(current_runner, half):
        assert gradient_of_sums(plain, total, 2, [1, 2]) == ("gradient", 2)
        with within(current_runner, None):
            assert gradient_of_sums(plain, total, 2, [1, 2]) == ("gradient", 6)
        assert gradient_of_sums(plain, total, 2, [1, 2]) == ("gradient", 2)
    assert gradient_of_sums(plain, total, 2, [1, 2]) == ("gradient", 6)


def test_constants_are_marked_within_a_block_only_even_when_it_fails():
    def fail():
        assert per_device("zeros") == "own zeros"
        raise KeyError

    assert per_device("zeros") == "zeros"
    with pytest.raises(KeyError), within(current_marker, lambda tree: f"own {tree}"):
        fail()
    assert per_device("zeros") == "zeros"
