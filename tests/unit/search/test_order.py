from tests.unit.search.pretend import GIB, price, screened

from outlay.search.screening import correction, in_order, next_to_compile, without_preset

CAPACITY = 80 * GIB


def order(left, taken=(), priced=()):
    ordered = in_order(left, taken, priced, CAPACITY)
    assert ordered[0] == next_to_compile(left, taken, priced, CAPACITY)
    return [(each.candidate.layout, each.expected.seconds) for each in ordered]


def test_each_layout_has_a_turn_before_a_layout_has_two():
    left = [screened("dp", 1), screened("dp", 2), screened("fsdp", 3), screened("fsdp", 1.5), screened("tp", 9)]
    assert order(left) == [("dp", 1), ("fsdp", 1.5), ("tp", 9), ("dp", 2), ("fsdp", 3)]


def test_what_is_not_expected_to_fit_comes_last_the_smallest_first():
    left = [screened("dp", 1, gib=100), screened("zero1", 2, gib=90), screened("fsdp", 3, gib=5)]
    assert order(left) == [("fsdp", 3), ("zero1", 2), ("dp", 1)]


def test_what_the_compiler_said_corrects_what_is_expected_to_fit():
    left = [screened("dp", 1, gib=50), screened("fsdp", 3, gib=20)]
    tried = screened("tp", 1, gib=10)
    assert order(left)[0] == ("dp", 1)
    assert order(left, [tried], [(tried, price(peak=20))])[0] == ("fsdp", 3)
    assert correction([(tried, price(peak=20))]) == 2
    assert correction([]) == 1


def test_every_third_turn_goes_to_the_fastest_that_needs_clearly_less_memory():
    left = [
        screened("dp", 1, gib=60),
        screened("dp", 1.1, gib=59),
        screened("dp", 1.2, gib=58),
        screened("dp", 4, gib=40),
        screened("dp", 5, gib=20),
        screened("dp", 6, gib=50),
    ]
    assert [seconds for _, seconds in order(left)] == [1, 1.1, 4, 1.2, 5, 6]


def test_what_takes_larger_batches_is_compared_by_the_example():
    left = [screened("dp", 1, num_samples=8), screened("dp", 1.5, num_samples=16)]
    assert [seconds for _, seconds in order(left)] == [1.5, 1]


def test_each_batch_has_a_turn_after_each_layout_has_had_one():
    left = [screened("dp", 1, num_samples=8), screened("dp", 2, num_samples=8), screened("dp", 9, num_samples=4)]
    assert [seconds for _, seconds in order([*left, screened("fsdp", 9)])] == [1, 9, 9, 2]


def test_what_the_host_keeps_is_no_layout_that_waits_for_a_turn():
    left = [screened("dp", 1), screened("dp+host", 3), screened("dp", 2), screened("tp", 4)]
    assert order(left) == [("dp", 1), ("tp", 4), ("dp", 2), ("dp+host", 3)]


def test_the_fastest_that_fits_is_the_one_to_try_without_the_preset():
    slow, fast, big = screened("dp"), screened("fsdp", num_samples=16), screened("tp")
    first = without_preset([(slow, price(1)), (fast, price(1.5)), (big, price(0.1, peak=99))])
    assert str(first.candidate) == "fsdp data=8 --compiler-options none"
    assert first.expected == fast.expected
    assert without_preset([(big, price(0.1, peak=99))]) is None
