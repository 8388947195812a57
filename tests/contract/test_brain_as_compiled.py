"""The Brain agrees bit for bit as users compile it: other tests leave XLA's optimization of machine code out."""

from tests.unit.cli.command import outlay_command


def test_s0_15_the_placed_brain_has_the_spikes_of_one_device(tmp_path):
    options = ("--devices", "6", "--mode", "placed", "--steps", "1")
    done = outlay_command("verify", "ab_brain", *options, cwd=tmp_path, XLA_FLAGS="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "allowed for exact: each part rounds the same wherever it runs" in done.stdout
