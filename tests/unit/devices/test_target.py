import math
import subprocess
import sys

import hypothesis.strategies as st
import pytest
from hypothesis import given

from outlay.core.error_types import TargetError
from outlay.devices.hardware import known_hardware
from outlay.devices.target import Target

SIZES = st.integers(1, 999)


@st.composite
def targets(draw):
    hardware = draw(st.sampled_from(list(known_hardware().values())))
    if hardware.kind == "cpu":
        return Target(hardware, (draw(SIZES),))
    if hardware.kind == "gpu":
        return Target(hardware, (draw(SIZES), draw(st.integers(1, hardware.devices_per_host))))
    torus = tuple(draw(st.lists(SIZES, min_size=hardware.torus_dims, max_size=hardware.torus_dims)))
    return Target(hardware, torus, draw(st.integers(1, 9)))


@given(targets())
def test_what_is_written_reads_back(target):
    assert Target.parse(str(target)) == target
    assert eval(repr(target)) == target
    assert hash(Target.parse(str(target))) == hash(target)
    assert target.num_devices == math.prod(target.torus or target.shape) * target.num_slices
    assert target.num_devices % target.num_hosts == 0 or target.hardware.kind == "tpu"


@given(st.text(alphabet="h10:x*28 -cputv5e", max_size=14))
def test_any_text_is_a_target_or_refused(text):
    try:
        target = Target.parse(text)
    except TargetError as error:
        message = str(error)
    else:
        message = f"{text.strip()!r} fix: write" if target.num_devices >= 1 else ""
    assert "  fix: " in message or repr(text.strip()) in message


@pytest.mark.parametrize(
    ("text", "shape", "num_devices", "num_hosts", "compile_only"),
    [
        ("cpu:8", (8,), 8, 1, False),
        ("h100:32x8", (32, 8), 256, 32, True),
        ("a100-80gb:2x4", (2, 4), 8, 2, True),
        ("tpu-v5e:4x4", (4, 4), 16, 4, True),
        ("tpu-v5e:1x1", (1, 1), 1, 1, True),
        ("tpu-v5p:2x2x4", (2, 2, 4), 16, 4, True),
        ("tpu-v5e:4x4*2", (4, 4), 32, 8, True),
    ],
)
def test_shapes_hosts_and_devices(text, shape, num_devices, num_hosts, compile_only):
    target = Target.parse(text)
    assert (target.shape, target.num_devices, target.num_hosts) == (shape, num_devices, num_hosts)
    assert target.is_compile_only is compile_only
    assert str(target) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "h10:1x8",
            r"'h10:1x8': there is no hardware 'h10', did you mean 'h100' or .*\n  known: cpu, .*tpu-v6e.*\n  fix:",
        ),
        ("H100:1x8", r"no hardware 'H100', did you mean 'h100'\?"),
        ("h100", r"'h100': it has no shape\n  fix: write h100:1x8; targets are"),
        ("h100:8-8", r"'8-8' is not a shape\n  fix: write h100:1x8"),
        ("h100:0x8", r"'0x8' is not a shape"),
        ("tpu-v5e:4x4*0", r"'4x4\*0' is not a shape\n  fix: write tpu-v5e:4x4;"),
        (
            "h100:8",
            r"is 8 the hosts or the devices\?.*\n  fix: write h100:1x8 \(8 devices\) or h100:8x8 \(64 devices\)",
        ),
        ("h100:64", r"fix: write h100:8x8 \(64 devices\) or h100:64x8 \(512 devices\)"),
        ("h100:1", r"fix: write h100:1x1 \(1 device\) or h100:1x8 \(8 devices\)"),
        (
            "h100:2x16",
            r"2 hosts x 16 devices = 32, but a host has at most 8 h100\n  fix: write h100:4x8\n  or set devices",
        ),
        ("h100:1x2x4", r"hosts x devices per host, but it has 3 numbers\n  fix: write h100:1x8"),
        ("h100:2x4*2", r"only TPUs come in slices\n  fix: write h100:4x4"),
        ("cpu:2x4", r"simulated devices have one number\n  fix: write cpu:8"),
        ("tpu-v5e:16", r"the torus of tpu-v5e has 2 dims, but there is 1 number\n  fix: write tpu-v5e:4x4"),
        ("tpu-v5p:4x4*3", r"the torus of tpu-v5p has 3 dims, but there are 2 numbers\n  fix: write tpu-v5p:2x2x4\*3"),
    ],
)
def test_what_does_not_parse_says_what_to_write(text, message):
    with pytest.raises(TargetError, match=message):
        Target.parse(text)


def test_a_target_made_by_hand_is_checked_too():
    with pytest.raises(TargetError, match="every size must be at least 1\n  fix: write cpu:8"):
        Target(known_hardware()["cpu"], (0,))


@pytest.mark.processes
def test_targets_do_without_jax():
    program = "import sys, outlay.devices.target; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=280)
