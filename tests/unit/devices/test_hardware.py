from importlib import resources

import pytest

from outlay.analysis.cost.links import collective_seconds
from outlay.core.error_types import TargetError
from outlay.devices.hardware import BUILT_IN, hardware_of, known_hardware
from outlay.devices.hardware_file import overlay, read_tables
from outlay.devices.target import Target

NEW = """
[mi300x]
like = "h100"
name = "AMD MI300X"
memory_bytes = 192e9
peak_flops = { bfloat16 = 1307e12 }
"""


@pytest.fixture
def user_file(tmp_path, monkeypatch):
    path = tmp_path / "targets.toml"
    monkeypatch.setenv("OUTLAY_TARGETS", str(path))

    def write(text):
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture(autouse=True)
def no_file_of_ones_own(tmp_path_factory, monkeypatch):
    monkeypatch.delenv("OUTLAY_TARGETS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


def problems(error):
    headline, *lines = str(error.value).splitlines()
    return headline, [line.strip() for line in lines]


def test_what_is_built_in_makes_sense_and_is_read_as_a_users_file_would_be():
    with resources.as_file(resources.files("outlay.devices") / "targets.toml") as path:
        checked = overlay({}, read_tables(path), path)
    assert known_hardware() == {key: hardware_of(key, table, BUILT_IN) for key, table in checked.items()}


def test_the_hardware_that_is_built_in():
    known = known_hardware()
    of_kind = {kind: [key for key, one in known.items() if one.kind == kind] for kind in ("cpu", "gpu", "tpu")}
    assert of_kind["cpu"] == ["cpu"]
    assert {"v100-16gb", "a100-80gb", "h100", "h100-a3", "gh200", "b300", "gb300", "mi355x", "l4"} < {*of_kind["gpu"]}
    assert of_kind["tpu"] == ["tpu-v3", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-ironwood"]
    h100 = known["h100"]
    assert (h100.kind, h100.memory_bytes, h100.devices_per_host) == ("gpu", 84_942_979_072, 8)
    assert (h100.peak_flops["bfloat16"], h100.intra_host_link_bandwidth, h100.scale_out_bandwidth) == (
        989e12,
        450e9,
        50e9,
    )
    assert h100.device_kinds == ("NVIDIA H100 80GB HBM3",)
    assert h100.compiler["compute_capability"] == [9, 0]
    assert known["tpu-v5p"].torus_dims == 3
    assert {hardware.source for hardware in known.values()} == {"built in"}


def test_what_a_built_in_table_starts_from():
    known = known_hardware()
    assert known["gb300"].devices_per_host == known["gb200"].devices_per_host == 72
    assert known["h100-a3"].scale_out_bandwidth == 7e9
    assert known["h100-a3"].peak_flops == known["h100"].peak_flops
    assert {key for key, one in known.items() if not one.compiler} == {"cpu", "mi300x", "mi325x", "mi355x"}
    assert known["tpu-ironwood"].devices_per_chip == 2


def test_two_a5000_are_a_host_and_four_such_hosts_a_machine():
    target = Target.parse("a5000:4x2")
    assert (target.num_devices, target.hardware.devices_per_host) == (8, 2)
    inside, across = (collective_seconds("all-reduce", 2**30, [group], target) for group in ([0, 1], [0, 2]))
    assert 2 < across / inside < 3
    # The latency of one machine, not of a network: a short exchange takes as long either way.
    inside, across = (collective_seconds("all-reduce", 2**10, [group], target) for group in ([0, 1], [0, 2]))
    assert inside == pytest.approx(across, rel=0.1)


def test_a_limit_on_power_lowers_the_clock_and_no_peak(user_file):
    user_file('[h100-500w]\nlike = "h100"\nwatts = 500\n[slow]\nlike = "h100-500w"\npeak_share = 0.8\n')
    known = known_hardware()
    assert known["h100"].clock_share == 1
    assert known["h100-500w"].clock_share ** 3 == pytest.approx(500 / 700)
    assert known["slow"].clock_share == pytest.approx(0.8 * known["h100-500w"].clock_share)
    # What a run reaches is told as a share of the data sheet, whatever limits its devices had.
    assert known["slow"].peak_flops == known["h100"].peak_flops


def test_limits_that_cannot_be_are_refused(user_file):
    user_file(
        '[weak]\nlike = "h100"\nwatts = 70\n[strong]\nlike = "h100"\nwatts = 7000\n'
        '[text]\nlike = "h100"\nwatts = "500"\n'
        '[mine]\nlike = "cpu"\nwatts = 65\n[alone]\nkind = "gpu"\nname = "Alone"\nmemory_bytes = 8e9\n'
        "memory_bandwidth = 1e12\npeak_flops = { float32 = 1e13 }\nintra_host_link_bandwidth = 1e10\n"
        "scale_out_bandwidth = 1e9\ndevices_per_host = 2\nwatts = 300\n"
    )
    with pytest.raises(TargetError) as error:
        known_hardware()
    shown = [line.partition(", known:")[0] for line in problems(error)[1]]
    limits = "such a device can be limited to 175 to 700 W (rated_watts); say a limit in between, or leave watts out"
    assert shown == [
        f"[weak] watts = 70 is impossible: {limits}",
        f"[strong] watts = 7000 is impossible: {limits}",
        "[text] watts must be a number of watts above 0, not '500'",
        "[mine] watts: no key of a cpu",
        "[alone] watts is a limit, and rated_watts is missing: add the power at which peak_flops are reached",
    ]
    user_file('[h100-500w]\nlike = "h100"\npeak_share = 80\n')
    with pytest.raises(TargetError, match=r"peak_share must be a share of peak_flops, above 0 and at most 1, not 80"):
        known_hardware()


def test_speeds_that_cannot_be_are_listed(user_file):
    user_file(
        "[h100]\nmemory_bandwidth = 3352\npeak_flops = { bfloat16 = 989 }\nmemory_bytes = 80\nclock_ghz = 1980\n"
        '[mine]\nlike = "a100-80gb"\nintra_host_link_bandwidth = 9e12\nlink_floor = 42\n'
    )
    with pytest.raises(TargetError) as error:
        known_hardware()
    headline, lines = problems(error)
    assert headline.endswith("has 9 problems")
    expected = (
        "[h100] memory_bandwidth = 3352 is impossible: hardware has 1e+07 to 1e+15 bytes/s; is it in another unit?"
    )
    assert expected in lines
    assert "[h100] peak_flops of bfloat16 = 989 is impossible: hardware has 1e+08 to 1e+18 FLOP/s" in "".join(lines)
    starts = ("[h100] memory_bytes = 80", "[h100] clock_ghz = 1980", "[mine] link_floor = 42")
    assert all(any(line.startswith(start) for line in lines) for start in starts)
    faster = "[mine] intra_host_link_bandwidth = 9e+12 is impossible: it exceeds the"
    assert any(line.startswith(faster) for line in lines)


def test_a_single_number_is_changed_and_the_others_stay(user_file):
    user_file("")
    before = known_hardware()["h100"]
    path = user_file("[h100]\nscale_out_bandwidth = 100e9\npeak_flops = { float8 = 1e15 }\n")
    after = known_hardware()["h100"]
    assert (before.scale_out_bandwidth, after.scale_out_bandwidth) == (50e9, 100e9)
    assert after.peak_flops == {**before.peak_flops, "float8": 1e15}
    assert after.memory_bytes == before.memory_bytes
    assert after.source == str(path)
    assert known_hardware()["h200"].source == "built in"


def test_a_new_table_may_start_from_another(user_file):
    user_file(NEW + '[mi300x-slow]\nlike = "mi300x"\nscale_out_bandwidth = 1e9\n[h100]\nlink_latency = 1e-3\n')
    known = known_hardware()
    new, slow = known["mi300x"], known["mi300x-slow"]
    assert (new.name, new.memory_bytes, new.devices_per_host) == ("AMD MI300X", 192_000_000_000, 8)
    assert new.peak_flops["bfloat16"] == 1307e12
    assert new.link_latency == 1e-3, "it starts from the h100 of the same file"
    assert (slow.memory_bytes, slow.scale_out_bandwidth) == (new.memory_bytes, 1e9)


def test_without_a_file_named_the_one_at_home_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".config" / "outlay").mkdir(parents=True)
    (tmp_path / ".config" / "outlay" / "targets.toml").write_text(NEW, encoding="utf-8")
    assert "mi300x" in known_hardware()


def test_every_problem_of_a_file_is_listed(user_file):
    path = user_file(
        "[h100]\nmemory_byte = 1\nmemory_bandwidth = 'fast'\nclock_ghz = -1\ntorus_dims = 2\n"
        "[mine]\nname = 'x'\n[other]\nkind = 'gpu'\nname = 'y'\n[Big]\nlike = 'h10'\n"
        "[a]\nlike = 'b'\n[b]\nlike = 'a'\n[h200]\npeak_flops = { bf16 = 1e12 }\ndevices_per_host = 2.5\n"
    )
    with pytest.raises(TargetError) as error:
        known_hardware()
    headline, lines = problems(error)
    assert headline == f"{path} has 11 problems"
    assert lines[0] == "[h100] memory_byte: unknown key, did you mean 'memory_bytes'?"
    assert lines[1] == "[h100] memory_bandwidth must be a number of bytes/s above 0, not 'fast'"
    assert lines[2] == "[h100] clock_ghz must be a number of GHz above 0, not -1"
    assert lines[3].startswith("[h100] torus_dims: no key of a gpu")
    kinds = "it must be one of 'cpu', 'gpu', 'tpu', or begin with a table to start from"
    assert lines[4] == f'[mine] kind is missing; {kinds}: like = "h100"'
    assert lines[5].startswith("[other] lacks memory_bytes, memory_bandwidth, peak_flops, intra_host")
    assert lines[6] == "[Big] like = 'h10': there is no such table, did you mean 'h100' or 'h100-a3'?"
    assert lines[7] == "[a] like refers back to itself: a -> b -> a"
    assert lines[8] == "[b] like refers back to itself: b -> a -> b"
    assert lines[9].startswith("[h200] peak_flops must be a table of FLOP/s above 0 by dtype (float64, float32")
    assert lines[10] == "[h200] devices_per_host must be a whole number above 0, not 2.5"


@pytest.mark.parametrize("value", ["true", "nan", "inf", "0", '"1e9"', "[1]"])
def test_a_speed_is_a_number_above_0(user_file, value):
    user_file(f"[cpu]\nmemory_bandwidth = {value}\n")
    with pytest.raises(TargetError, match=r"\[cpu\] memory_bandwidth must be a number of bytes/s above 0"):
        known_hardware()


def test_a_name_that_no_target_could_say_is_refused(user_file):
    user_file('["my:gpu"]\nlike = "h100"\n')
    with pytest.raises(TargetError, match=r"\[my:gpu\] must be named with small letters, digits"):
        known_hardware()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[h100]\nx = \n", r"not TOML: .*:2:5\n    Invalid value"),
        ("memory_bytes = 1\n", "holds 'memory_bytes' outside of a table\n  fix: begin"),
    ],
)
def test_a_file_that_is_none_is_refused(user_file, text, message):
    user_file(text)
    with pytest.raises(TargetError, match=message):
        known_hardware()


def test_a_file_that_is_named_must_be_there(monkeypatch, tmp_path):
    monkeypatch.setenv("OUTLAY_TARGETS", str(tmp_path / "none.toml"))
    with pytest.raises(TargetError, match=r"OUTLAY_TARGETS=.*none.toml: there is no such file\n  fix:"):
        known_hardware()
