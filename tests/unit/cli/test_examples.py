"""`outlay examples`: what comes with Outlay is listed, and copied without replacing anything."""

import re

from tests.unit.cli.command import ROOT, command_here


def test_examples_are_listed_each_with_what_it_shows(tmp_path):
    output = command_here("examples", "list", cwd=tmp_path)
    assert output.exit_code == 0
    assert len(output.stdout.splitlines()) == len([*(ROOT / "examples").glob("*.[pt]*")])
    assert re.search(r"^equinox_mlp\.py +An Equinox model on eight devices", output.stdout, re.MULTILINE)


def test_an_example_is_copied_and_replaces_nothing(tmp_path):
    output = command_here("examples", "copy", "equinox_mlp", "--to", "there", cwd=tmp_path)
    assert output.exit_code == 0, output.stderr
    copied = tmp_path / "there" / "equinox_mlp.py"
    assert copied.read_bytes() == (ROOT / "examples" / "equinox_mlp.py").read_bytes()
    copied.write_text("mine")
    again = command_here("examples", "copy", "--to", "there", cwd=tmp_path)
    assert again.exit_code == 2
    assert copied.read_text() == "mine"
    assert [path.name for path in copied.parent.iterdir()] == ["equinox_mlp.py"]


def test_an_example_that_there_is_not_is_refused_with_what_was_meant(tmp_path):
    output = command_here("examples", "copy", "equinox_mpl.py", cwd=tmp_path)
    assert output.exit_code == 2
    assert "did you mean 'equinox_mlp.py'" in output.stderr
