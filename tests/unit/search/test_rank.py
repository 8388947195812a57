from tests.unit.search.pretend import GIB, compiled, price, screened

from outlay.search.reasons import why_slower
from outlay.search.search import ranked


def verdicts(*outcomes):
    return [(each.candidate.layout, each.verdict) for each in ranked(outcomes)]


def test_what_fits_is_ranked_by_time_then_what_does_not_by_memory_then_failures():
    outcomes = [
        compiled(screened("failed"), None, "it raised"),
        compiled(screened("huge"), price(0.1, peak=300)),
        compiled(screened("slow"), price(3)),
        compiled(screened("late"), None, "stopped after 3 s", timed_out=True),
        compiled(screened("big"), price(0.1, peak=81)),
        compiled(screened("fast"), price(1)),
    ]
    assert verdicts(*outcomes) == [
        ("fast", "chosen"),
        ("slow", "slower"),
        ("big", "does not fit"),
        ("huge", "does not fit"),
        ("failed", "failed"),
        ("late", "timed out"),
    ]


def test_of_two_as_fast_the_smaller_is_chosen():
    first, second = ranked([compiled(screened("a"), price(1, peak=40)), compiled(screened("b"), price(1.005, peak=20))])
    assert (first.candidate.layout, second.candidate.layout) == ("b", "a")
    assert second.why == "as fast, as far as an estimate knows, with 40.0 GiB of memory against 20.0 GiB"


def test_of_two_as_fast_the_one_that_overlaps_is_chosen_where_there_is_memory_enough():
    """Without the preset a step needs less memory and waits more; that was chosen with 47 of 79 GiB used."""
    overlapping = compiled(screened("a"), price(1, peak=50, parts=parts(communication=0.1)))
    waiting = compiled(screened("b"), price(0.98, peak=40, parts=parts(communication=0.3)))
    first, second = ranked([waiting, overlapping])
    assert first.candidate.layout == "a"
    assert first.why == "as fast as the fastest, as far as an estimate knows, and more of what it sends overlaps"
    assert second.why == "as fast, as far as an estimate knows, with 300 ms of waiting for exchanges against 100 ms"


def test_of_two_as_fast_the_one_that_needs_less_is_chosen_where_memory_is_scarce():
    overlapping = compiled(screened("a"), price(0.98, peak=70, parts=parts(communication=0.1)))
    waiting = compiled(screened("b"), price(1, peak=65, parts=parts(communication=0.3)))
    fits_by_itself = compiled(screened("c"), price(1.01, peak=59, parts=parts(communication=0.4)))
    first, _ = ranked([overlapping, waiting])
    assert first.candidate.layout == "b"
    assert first.why == "as fast as the fastest, as far as an estimate knows, with the least memory"
    assert ranked([overlapping, waiting, fits_by_itself])[0].candidate.layout == "c"


def test_a_program_that_does_not_fit_says_what_it_needs():
    (only,) = ranked([compiled(screened("a"), price(peak=96))])
    assert (only.verdict, only.why) == ("does not fit", "needs 96.0 GiB of 80.0 GiB a device")


def parts(**changes):
    return {"products": 0.5, "memory": 0.0, "communication": 0.5, "overhead": 0.0, **changes}


def moving(seconds: float, **axes: tuple[float, float]):
    """A price with so many seconds and GiB over each axis."""
    return price(
        seconds,
        parts=parts(communication=sum(spent for spent, _ in axes.values())),
        seconds_by_axes={name: spent for name, (spent, _) in axes.items()},
        bytes_by_axes={name: int(gib * GIB) for name, (_, gib) in axes.items()},
    )


def test_a_loser_that_moves_more_says_over_which_axes_it_loses_most_time():
    winner = moving(1, data=(0.5, 1), model=(0.1, 1))
    assert why_slower(moving(2, data=(1.5, 3), model=(0.4, 90)), winner) == (
        "2.00x the time: moves 3.00x the bytes over data between hosts (3.0 GiB against 1.0 GiB)"
    )
    assert why_slower(moving(2, data=(0.6, 3), model=(1.4, 90)), winner).endswith(
        "moves 90x the bytes over model (90.0 GiB against 1.0 GiB)"
    )


def test_a_loser_that_moves_what_the_first_does_not():
    assert why_slower(moving(2, data=(0.5, 1), model=(1, 9)), moving(1, data=(0.5, 1))).endswith(
        "moves 9.0 GiB over model, where the first moves nothing"
    )


def test_the_same_bytes_over_axes_of_another_name_are_no_reason():
    """FSDP over data=256 and over data=128,context=2 moves the same parameters."""
    loser, winner = moving(2, **{"data+context": (1.5, 9), "context": (0.2, 0.5)}), moving(1, data=(1, 9))
    assert why_slower(loser, winner).endswith("spends 1.7 s against 1 s waiting for collectives")


def test_a_loser_that_computes_more():
    assert why_slower(price(1.5, parts=parts(products=1.0), flops=1.33e12), price(1)) == (
        "1.50x the time: computes 1.33x as much on each device (1.33 TFLOP against 1 TFLOP)"
    )


def test_a_loser_that_only_takes_longer():
    assert why_slower(price(1.5, parts=parts(memory=0.5)), price(1)).endswith(
        "spends 500 ms against 0 s moving data in memory"
    )
    assert why_slower(moving(1.5, data=(1, 1)), moving(1, data=(0.5, 1))).endswith(
        "spends 1 s against 500 ms waiting for collectives"
    )


def test_steps_of_other_batches_are_ranked_by_the_example():
    small = compiled(screened("small", num_samples=8), price(1))
    large = compiled(screened("large", num_samples=32), price(2, flops=2e12))
    first, second = ranked([small, large])
    assert first.candidate.layout == "large"
    assert (
        second.why
        == "2.00x the time: computes 2.00x as much on each device (4 TFLOP against 2 TFLOP), for as many examples"
    )
    assert first.price_per_sample.seconds == 2 / 32
