"""A damaged address is read or refused, never a failure of another kind."""

import random

import pytest
from tests.unit.cli.command import ROOT
from tests.unit.test_fuzz import NUM_MUTATIONS, damaged_text

import outlay
from outlay.brain.address import select_addresses

ADDRESSES = ("*_ex:out_spikes", "**.soma.potential", "B_in.synapses.kernel", "*:*")


@pytest.mark.compiles
def test_a_damaged_address_is_read_or_refused():
    brain = outlay.brain.read_brain(ROOT / "examples" / "ab_brain.toml")
    draw, refused = random.Random("address"), 0
    for address in ADDRESSES:
        select_addresses(brain, [address])
    for number in range(NUM_MUTATIONS):
        text = damaged_text(draw, ADDRESSES[number % len(ADDRESSES)])
        try:
            select_addresses(brain, [text])
        except outlay.OutlayError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"number {number}: {text!r}") from error
    assert NUM_MUTATIONS // 4 < refused < NUM_MUTATIONS, "the damage should be neither harmless nor hopeless"
