import jax
import pytest

from outlay.analysis.cost.calibrate import Sizes, calibrate, fit
from outlay.core.error_types import OutputError, TargetError
from outlay.devices.hardware import known_hardware

SMALL = Sizes(exchanged=(2**8, 2**10), copied=2**10, product=(8, 8), widths=(8, 16), patience=0)


@pytest.fixture(scope="module")
def calibration():
    messages = []
    fitted = calibrate(jax.devices()[:4], sizes=SMALL, on_progress=messages.append)
    assert "all-to-all of 4" in messages
    return fitted


@pytest.fixture
def user_file(tmp_path, monkeypatch):
    path = tmp_path / "targets.toml"
    path.write_text("")
    monkeypatch.setenv("OUTLAY_TARGETS", str(path))
    return path


@pytest.mark.thorough  # test_calibrate.py of the command measures some
def test_every_kind_of_collective_is_measured_for_every_size_of_group(calibration):
    measured = calibration.measured
    kinds = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"}
    assert set(measured.collectives) == kinds
    assert all(set(sizes) == {2, 4} for sizes in measured.collectives.values())
    assert measured.num_devices == 4
    assert set(calibration.peak_flops) == {"float32", "bfloat16"}
    assert calibration.hardware.measured is measured


@pytest.mark.thorough  # the command is in cli/test_calibrate.py
def test_what_was_measured_is_read_back_by_all_who_ask_for_hardware(calibration, user_file):
    before = known_hardware()["cpu"]
    calibration.write(user_file.with_name("calibrated.toml"))
    after = known_hardware()["cpu"]
    assert after.measured == calibration.measured
    assert (after.memory_bandwidth, dict(after.peak_flops)) == (
        calibration.memory_bandwidth,
        {**before.peak_flops, **calibration.peak_flops},
    )
    assert after.source.endswith("calibrated.toml")
    assert known_hardware()["h100"].source == "built in"


def test_a_users_own_numbers_come_first(calibration, user_file):
    calibration.write(user_file.with_name("calibrated.toml"))
    user_file.write_text("[cpu]\nmemory_bandwidth = 123e9\n")
    assert known_hardware()["cpu"].memory_bandwidth == 123e9
    assert known_hardware()["cpu"].measured == calibration.measured


def test_other_hardware_in_the_file_stays(calibration, user_file):
    path = user_file.with_name("calibrated.toml")
    path.write_text("[h100]\nmemory_bandwidth = 3e12\n[h100.peak_flops]\nbfloat16 = 7e14\n")
    with pytest.raises(OutputError, match="Outlay did not make it"):  # it would lose its comments
        calibration.write(path)
    calibration.write(path, force=True)
    calibration.write(path)
    known = known_hardware()
    assert (known["h100"].memory_bandwidth, known["h100"].peak_flops["bfloat16"]) == (3e12, 7e14)
    assert known["h100"].peak_flops["float8"] == 1979e12
    assert path.read_text().count("[cpu]") == 1


def test_a_table_that_nobody_measured_so_is_refused(calibration, user_file):
    path = user_file.with_name("calibrated.toml")
    calibration.write(path)
    path.write_text(path.read_text().replace("num_devices = 4", "num_devices = 0"))
    with pytest.raises(TargetError, match=r"\[cpu\] measured must be the table that outlay calibrate writes"):
        known_hardware()


def test_a_file_that_cannot_be_written(calibration, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TargetError, match=r"cannot be created: .*\n  fix: --output FILE"):
        calibration.write(tmp_path / "file" / "calibrated.toml")


def test_a_single_device_has_nobody_to_exchange_with():
    fitted = calibrate(jax.devices()[:1], sizes=SMALL)
    assert fitted.measured.collectives == {}
    assert "products in float32" in str(fitted)


@pytest.mark.parametrize(
    ("times", "cost"),
    [
        ([1e-5 + 1e-6, 1e-5 + 1e-3], (1e-5, 1e9)),
        ([0.95e-6, 1e-3], (0.0, 1e9)),
        ([2e-5, 1e-5], (1e-5, 1e15)),
    ],
    ids=["a line", "one that would start below nothing", "noise alone"],
)
def test_the_line_through_measured_times(times, cost):
    fitted = fit([1e3, 1e6], times)
    assert (fitted.seconds_per_call, fitted.bytes_per_second) == pytest.approx(cost, rel=0.05)
