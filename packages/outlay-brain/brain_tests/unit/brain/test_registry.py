import subprocess
import sys

import pytest

from outlay.brain.module import BrainError
from outlay.brain.registry import kind_of, name_of, register, registered, registered_names
from outlay.brain.somas.leaky import AdaptiveLeakySoma
from outlay.brain.somas.soma import Soma


def test_a_class_is_found_by_its_name_and_its_name_by_the_class():
    assert registered("adaptive_leaky", kind="soma") is AdaptiveLeakySoma
    assert name_of(AdaptiveLeakySoma, kind="soma") == "adaptive_leaky"
    assert "adaptive_leaky" in registered_names("soma")


def test_the_kind_of_a_base_class_is_that_of_what_derives_from_it():
    assert kind_of(Soma) == "soma"
    assert kind_of(float) is None
    assert kind_of(int | float) is None


def test_a_name_that_nothing_has():
    with pytest.raises(BrainError, match=r"there is no soma 'adaptive_leeky'\n  fix: did you mean 'adaptive_leaky'\?"):
        registered("adaptive_leeky", kind="soma")


def test_two_classes_of_one_name_are_refused_and_one_that_is_made_again_is_not():
    def make() -> type:
        @register("remade", kind="test of names")
        class Remade:
            pass

        return Remade

    make()
    again = make()
    assert registered("remade", kind="test of names") is again, "a cell of a notebook may run twice"
    with pytest.raises(BrainError, match=r"the name 'remade' is that of .*Remade already"):

        @register("remade", kind="test of names")
        class Other:
            pass


def test_a_class_without_a_name_says_how_to_give_it_one():
    class Nameless:
        pass

    with pytest.raises(BrainError, match=r"@register\('nameless', kind='soma'\) above its class"):
        name_of(Nameless, kind="soma")


@pytest.mark.processes
def test_the_names_that_outlay_brings_are_known_before_any_file_was_read():
    program = "from outlay.brain import registered; print(registered('leaky', kind='soma').__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280, check=True)
    assert done.stdout == "LeakySoma\n"
