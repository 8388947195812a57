"""The Brain agrees bit for bit as users compile it: other tests leave XLA's optimization of machine code out."""

import pytest
from tests.unit.cli.command import outlay_command


@pytest.mark.parametrize("options", [("--mode", "placed"), ("--layout", "by-neuron")])
def test_s0_15_the_spikes_are_those_of_one_device(tmp_path, options):
    done = outlay_command("verify", "ab_brain", "--devices", "6", "--steps", "2", *options, cwd=tmp_path, XLA_FLAGS="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "allowed for exact: each part rounds the same wherever it runs" in done.stdout
