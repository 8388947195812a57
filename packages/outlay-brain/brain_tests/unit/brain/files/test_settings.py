import pytest

from outlay.brain.files.settings import UnitError, number_in


@pytest.mark.parametrize(
    ("text", "unit", "number"),
    [
        ("20 ms", "ms", 20.0),
        ("0.02 s", "ms", 20.0),
        ("20", "ms", 20.0),
        ("-60mV", "mV", -60.0),
        ("-0.06 V", "mV", -60.0),
        ("100 MOhm", "GOhm", 0.1),
        ("0.8 MΩ", "MOhm", 0.8),
        ("2 kHz", "Hz", 2000.0),
        ("1.5e-3 nA", "pA", 1.5),
        ("500 us", "ms", 0.5),
        ("500 µs", "ms", 0.5),
        ("1_000 ms", "s", 1.0),
        ("3 1/s", "1/s", 3.0),
        ("0.5", "", 0.5),
    ],
)
def test_a_number_is_converted_to_the_unit_of_its_setting(text, unit, number):
    assert number_in(text, unit) == number


@pytest.mark.parametrize(
    ("text", "unit", "what"),
    [
        ("20 mV", "ms", "'20 mV' is a voltage in mV, and this is a time in ms"),
        ("20 sec", "ms", "'20 sec' is in 'sec', and this is a time in ms"),
        ("20 ms", "", "'20 ms' is a time in ms, and this is a number without a unit"),
        ("twenty ms", "ms", "'twenty ms' is not a number"),
        ("20 m s", "ms", "'20 m s' is not a number"),
        ("", "ms", "'' is not a number"),
    ],
)
def test_what_is_no_number_of_the_unit_is_refused(text, unit, what):
    with pytest.raises(UnitError) as error:
        number_in(text, unit)
    fix = 'a number in ms, such as 20.0 or "20 ms"' if unit else "a number, such as 20.0"
    assert str(error.value) == f"{what}\n{fix}"
