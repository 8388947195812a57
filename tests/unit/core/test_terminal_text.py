"""Tables as text: the same wherever they are printed."""

import subprocess
import sys

import pytest

from outlay.core.terminal_text import table, to_text

IN_A_NOTEBOOK = """
import sys, types

class ZMQInteractiveShell: ...

ipython = types.ModuleType("IPython")
sys.modules["IPython"] = ipython
import builtins
builtins.get_ipython = lambda: ZMQInteractiveShell()
from outlay.core.terminal_text import table, to_text
sys.stdout.write(to_text(table(["a"], [["1"]])))
"""


def test_cells_are_plain_text_and_columns_align():
    built = table(["path", "bytes"], [["[bold]w[/bold]", "4"], ["b", "1024"]], right=["bytes"])
    assert to_text(built).splitlines() == ["path            bytes", "[bold]w[/bold]      4", "b                1024"]


@pytest.mark.processes
def test_in_a_notebook_a_table_is_still_returned_as_text():
    """rich takes a kernel for a display, and would show the table instead of writing it."""
    done = subprocess.run([sys.executable, "-c", IN_A_NOTEBOOK], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["a", "1"]
