import json
import math

from outlay.train.metrics_file import MetricsFile


def test_each_line_is_on_disk_when_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path) as file:
        file.write({"step": 1, "loss": 0.5})
        assert json.loads(path.read_text()) == {"step": 1, "loss": 0.5}


def test_values_that_are_not_finite_are_valid_json(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path) as file:
        file.write({"loss": math.nan, "norm": math.inf})
    assert path.read_text() == '{"loss": null, "norm": null}\n'
