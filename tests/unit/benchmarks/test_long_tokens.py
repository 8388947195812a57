"""What is printed of long sequences on absent hardware."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

import outlay


@pytest.mark.thorough
@pytest.mark.compiles
def test_memory_on_a_gpu_falls_with_the_devices_and_exchanges_are_at_the_line_of_the_call(monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    program_of = importlib.import_module("long_sequences").program_of
    programs = [program_of(65_536, "ring", devices) for devices in (2, 8)]
    few, many = (program.compiled.memory_analysis().temp_size_in_bytes for program in programs)
    assert few > 3 * many
    report = outlay.explain(programs[0])
    lines = {str(each.source) for each in report.collectives if each.kind == "collective-permute"}
    assert all("long_sequences.py:34" in line for line in lines)
    assert lines
