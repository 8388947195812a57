import dataclasses

import pytest

from outlay.devices.compile_only import gpu_target_config
from outlay.devices.hardware import known_hardware

pytestmark = pytest.mark.newest


def test_numbers_are_written_as_the_compiler_reads_them():
    h100 = known_hardware()["h100"]
    odd = dataclasses.replace(
        h100,
        name='The "one"',
        memory_bandwidth=3352.32e9,
        compiler={**h100.compiler, "l2_bytes": 50e6, "clock_ghz": 2.0},
    )
    lines = [line.strip() for line in gpu_target_config(odd).splitlines()]
    assert "memory_bandwidth: 3352320000000" in lines
    assert "device_memory_size: 84942979072" in lines
    assert "l2_cache_size: 50000000" in lines
    assert "clock_rate_ghz: 2" in lines
    assert "cuda_compute_capability { major: 9 minor: 0 }" in lines
    assert r'device_description_str: "The \"one\""' in lines
