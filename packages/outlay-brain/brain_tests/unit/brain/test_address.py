import pytest
from brain_tests.unit.brain.run.tiny import tiny

from outlay.brain.address import addresses, port_addresses, select_addresses
from outlay.brain.module import BrainError

SPIKES, POTENTIAL, KERNEL = "eye:out_spikes", "eye.soma.potential", "eye.synapses.kernel"


def test_ports_come_before_leaves():
    assert addresses(tiny()) == (SPIKES, "count:signal", POTENTIAL, KERNEL)


def test_ports_of_one_kind():
    assert port_addresses(tiny(), "spikes") == (SPIKES,)
    assert port_addresses(tiny(), "values") == ("count:signal",)


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        ("*:out_spikes", (SPIKES,)),
        ("**:*", (SPIKES, "count:signal", POTENTIAL, KERNEL)),
        ("*:*", (SPIKES, "count:signal")),
        ("*:out_*", (SPIKES,)),
        ("e*.soma.potential", (POTENTIAL,)),
        ("**.potential", (POTENTIAL,)),
        ("eye.**", (POTENTIAL, KERNEL)),
        ("*.soma:potential", (POTENTIAL,)),
        ("*.soma:spikes", (SPIKES,)),
        ("eye.synapses:kernel", (KERNEL,)),
    ],
)
def test_a_pattern_chooses(pattern, chosen):
    assert select_addresses(tiny(), [pattern]) == chosen


def test_an_address_is_chosen_once():
    assert select_addresses(tiny(), ["**.kernel", "eye.**", "eye.soma:spikes", "*:out_spikes"]) == (
        KERNEL,
        POTENTIAL,
        SPIKES,
    )


def test_what_matches_nothing_is_an_error_that_lists_all():
    with pytest.raises(BrainError) as caught:
        select_addresses(tiny(), ["eye:out_spike", "eye.soma.potentials", POTENTIAL])
    assert [problem.where for problem in caught.value.problems] == ["eye:out_spike", "eye.soma.potentials"]
    assert f"did you mean {SPIKES!r}?" in str(caught.value)
    assert f"did you mean {POTENTIAL!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "fix"),
    [
        ("eye", "it names a module, but no port and no leaf of it\n    fix: eye.** or eye:*"),
        ("cache.eye.out_spikes", "fix: eye:out_spikes"),
        ("eye..soma", "two dots in a row"),
        ("eye:", "MODULE:PORT"),
    ],
)
def test_what_is_written_wrongly_says_how_to_write_it(pattern, fix):
    with pytest.raises(BrainError) as caught:
        select_addresses(tiny(), [pattern])
    assert fix in str(caught.value)
