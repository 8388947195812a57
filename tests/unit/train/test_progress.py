import io

from rich.console import Console

from outlay.train.progress import Progress


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
