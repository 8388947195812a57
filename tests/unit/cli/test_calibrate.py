"""`outlay calibrate` as a user meets it, on two devices; tests/unit/analysis/cost has more."""

import json
import tomllib

import jax
import pytest
from typer.testing import CliRunner

from outlay.analysis.cost import calibrate as measuring
from outlay.analysis.cost.calibrate import Sizes
from outlay.cli.main import app

pytestmark = pytest.mark.compiles

SMALL = Sizes(exchanged=(2**8, 2**10), copied=2**10, product=(8, 8), widths=(8, 16), patience=0)


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    monkeypatch.setattr(measuring, "CPU_SIZES", SMALL)
    monkeypatch.setattr(measuring, "attached_devices", lambda: jax.devices()[:2])  # of all, which it takes
    path = tmp_path / "targets.toml"
    path.write_text("")
    monkeypatch.setenv("OUTLAY_TARGETS", str(path))


def test_the_table_goes_to_stdout_and_the_file_beside_the_users_own(tmp_path):
    result = CliRunner().invoke(app, ["calibrate"])
    assert result.exit_code == 0, result.output
    assert "all-reduce" in result.stdout
    assert "measuring" not in result.stdout
    assert "measuring all-to-all of 2" in result.stderr
    path = tmp_path / "calibrated.toml"
    assert f"wrote {path}" in result.stderr
    written = tomllib.loads(path.read_text())
    assert set(written["cpu"]["measured"]["collectives"]["all-reduce"]) == {"2"}


def test_json_and_another_file(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "attached_devices", lambda: jax.devices()[:1])  # which has none to exchange with
    path = tmp_path / "new" / "mine.toml"
    result = CliRunner().invoke(app, ["calibrate", "--json", "--output", str(path)])
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert shown.pop("key") == "cpu"
    assert tomllib.loads(path.read_text())["cpu"] == shown


def test_other_devices_than_jax_has_started_with():
    result = CliRunner().invoke(app, ["calibrate", "--devices", "3"])
    assert result.exit_code == 2
    assert "outlay.simulate(3) comes too late" in result.stderr
