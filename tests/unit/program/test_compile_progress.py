"""What takes long is named on a terminal, and nowhere else."""

import io
import threading

from outlay.program.compile_progress import progress_on_terminal


class Terminal(io.StringIO):
    """A terminal, or a log, that notices when something is written."""

    def __init__(self, *, is_terminal=True):
        super().__init__()
        self._is_terminal, self.written = is_terminal, threading.Event()

    def isatty(self):
        return self._is_terminal

    def flush(self):
        self.written.set()


def test_what_takes_long_is_named_with_the_time_so_far():
    terminal = Terminal()
    with progress_on_terminal(lambda: "compiling step for 64 of TPU v5", terminal, first=0.0):
        assert terminal.written.wait(60)
    assert terminal.getvalue().startswith("compiling step for 64 of TPU v5: ")
    assert terminal.getvalue().endswith(" so far\n")


def test_what_is_done_soon_is_not_named_and_nothing_goes_to_a_log():
    terminal, log = Terminal(), Terminal(is_terminal=False)
    with progress_on_terminal(lambda: "compiling", terminal), progress_on_terminal(lambda: "", log, first=0.0):
        pass
    assert (terminal.getvalue(), log.getvalue()) == ("", "")
