"""`%%bash` cells for the guides, in a folder of their own that goes away with the page."""

import os
import shutil
import subprocess
import tempfile

from IPython.core.magic import register_cell_magic


def scratch_folder(*files):
    """Move to a new folder that holds copies of these files, which is removed with what is returned."""
    scratch = tempfile.TemporaryDirectory(prefix="outlay-")
    for file in files:
        shutil.copy(file, scratch.name)
    os.chdir(scratch.name)
    return scratch


@register_cell_magic
def bash(line, cell):
    """As IPython's own, which breaks long output in the middle of lines."""
    done = subprocess.run(["bash", "-c", cell], check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(done.stdout.decode())
    done.check_returncode()  # after its output, which says why
