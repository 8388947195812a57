from types import SimpleNamespace

import pytest

from outlay.cli.known_problems import known_problems

CPU = SimpleNamespace(platform="cpu")
SAME = {"jax": "1.0", "jaxlib": "1.0"}


@pytest.mark.parametrize(
    ("devices", "environment", "versions", "problem"),
    [
        ([CPU] * 2, {"XLA_FLAGS": "–xla_dump_to=x"}, SAME, "typographic dash"),
        ([CPU] * 2, {}, {"jax": "1.1", "jaxlib": "1.0"}, "jax 1.1 and jaxlib 1.0 differ"),
        ([CPU] * 2, {"JAX_DISABLE_JIT": "1"}, SAME, "unset it"),
        ([], {}, SAME, "JAX does not start"),
        ([CPU], {}, SAME, "outlay.simulate(8)"),
        ([CPU] * 2, {"SLURM_NTASKS": "4"}, SAME, "SLURM started 4 processes"),
    ],
)
def test_each_problem_is_recognised_with_its_fix(devices, environment, versions, problem, monkeypatch, tmp_path):
    monkeypatch.setattr("outlay.cli.known_problems._GPU", tmp_path / "no_gpu")
    (found,) = known_problems(devices, environment, versions)
    assert problem in found


def test_an_unused_gpu_is_noticed(monkeypatch, tmp_path):
    monkeypatch.setattr("outlay.cli.known_problems._GPU", tmp_path)
    (found,) = known_problems([CPU] * 2, {}, SAME)
    assert "pip install -U 'jax[cuda13]'" in found


def test_a_healthy_place_has_none(monkeypatch, tmp_path):
    monkeypatch.setattr("outlay.cli.known_problems._GPU", tmp_path / "no_gpu")
    assert not list(known_problems([CPU] * 2, {"XLA_FLAGS": "--xla_dump_to=x", "SLURM_NTASKS": "1"}, SAME))
