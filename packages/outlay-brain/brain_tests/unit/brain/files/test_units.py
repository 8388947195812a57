"""What a unit in a file says is what is computed."""

import numpy as np
import pytest

from outlay.brain.files.read_brain import read_brain
from outlay.brain.module import BrainError

TEXT = """\
connections = ["inputs:x -> A:in_spikes"]
inputs.x.shape = [3]
[modules.A]
type = "neuron"
count = 2
graded = true
[modules.A.soma]
type = "leaky"
resistance = "100 MOhm"
"""


def test_a_resistance_is_what_its_unit_says(tmp_path):
    """Of Spark's somas it is divided by tau, and MOhm is refused; of the physical one 100 MOhm and 100 pA are 10 mV."""
    (tmp_path / "a.toml").write_text(TEXT)
    with pytest.raises(BrainError, match=r"a\.toml:9 modules\.A\.soma\.resistance(.|\n)*'100 MOhm'(.|\n)*type = .lif"):
        read_brain(tmp_path / "a.toml")
    (tmp_path / "b.toml").write_text(TEXT.replace("leaky", "lif"))
    soma = read_brain(tmp_path / "b.toml").modules["A"].soma
    state, current = soma.init(None, 1, dt=0.5, dtype=np.float32), np.full(1, 100.0, np.float32)
    for _ in range(400):
        state, _ = soma.step(state, current, dt=0.5)
    np.testing.assert_allclose(state["potential"], [10.0], rtol=1e-4)
