import io

from rich.console import Console

from outlay.train.progress import Progress


def shown(*, terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100, highlight=False)
    with Progress(40, 16, console) as progress:
        for step in range(1, 41):
            progress.show({"step": step, "loss": 1 / step, "seconds": step / 2})
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
