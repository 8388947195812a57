import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from rich.console import Console

import outlay
from outlay.train.progress import Progress, in_notebook


def shown(*, terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100, highlight=False)
    with Progress(40, "16 samples", lambda rate: f"{16 * rate:,.0f} samples/s", console) as progress:
        for step in range(1, 41):
            progress.show(step, step / 2, f"loss {1 / step:.4f}")
    return file.getvalue()


def test_piped_it_is_a_few_plain_lines():
    lines = shown(terminal=False).splitlines()
    assert lines[0] == "40 steps of 16 samples: compiling"
    assert lines[1] == "step 4/40  loss 0.2500  32 samples/s  18 s left"
    assert lines[-1] == "step 40/40  loss 0.0250  32 samples/s  0 s left"
    assert len(lines) == 11
    assert "\x1b" not in shown(terminal=False)


def test_on_a_terminal_it_is_a_live_bar():
    text = shown(terminal=True)
    assert "\x1b" in text
    assert "step 40/40" in text
    assert "loss 0.0250  32 samples/s" in text


def test_a_run_that_continues_in_chunks_counts_its_speed_and_its_lines_from_there():
    file = io.StringIO()
    after = {"step": 60, "seconds": 100.0}
    with Progress(
        100,
        "0.5 ms",
        lambda rate: f"{rate:g} steps/s",
        Console(file=file, width=100, highlight=False),
        position=lambda step: f"{step / 2:g}/50 ms",
        after=after,
    ) as progress:
        for step in (64, 68, 72, 100):
            progress.show(step, 100.0 + (step - 60) / 4, "")
    assert file.getvalue().splitlines() == [
        "100 steps of 0.5 ms, continued after step 60: compiling",
        "36/50 ms  4 steps/s  7 s left",
        "50/50 ms  4 steps/s  0 s left",
    ]


@pytest.fixture
def notebook():
    """What a notebook's kernel is to a program: a shell with a kernel, which publishes what cells show."""
    shell = InteractiveShell.instance()
    shell.kernel = object()
    shell.display_pub = CapturingDisplayPublisher()
    yield shell.display_pub
    InteractiveShell.clear_instance()


def test_a_notebook_updates_one_bar_with_the_metrics_and_the_curve(notebook):
    def step(state, batch):
        return (state + batch.sum(), {"loss": state + batch.mean()})

    program = outlay.program(
        step, lambda: jnp.zeros(()), np.ones(8, np.float32), layout=outlay.data_parallel(), mesh=outlay.mesh(data=8)
    )
    outlay.fit(program, [np.ones(8, np.float32)] * 5, steps=5, key=jax.random.key(0))
    first, *updates = notebook.outputs
    identity = first["transient"]["display_id"]
    assert updates
    assert all(each["update"] and each["transient"]["display_id"] == identity for each in updates)
    assert "compiling" in first["data"]["text/html"]
    last = updates[-1]["data"]["text/html"]
    assert '<progress value="5" max="5"' in last
    assert "step 5/5" in last
    assert "<polyline" in last


def test_outside_of_a_notebook_there_is_no_bar_of_one():
    assert not in_notebook()
