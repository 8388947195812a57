"""The site: `make docs` builds it, executes its tutorials, and fails on any warning. It needs no network."""

import atexit
import gc
import importlib.util
import logging
import os
import re
import sysconfig
import tempfile
from pathlib import Path

from sphinx.pycode import ModuleAnalyzer

# Sphinx makes millions of small objects, most of which stay. Looking for cycles among them took two fifths of its time.
gc.disable()

project = "Outlay"
author = "the Outlay developers"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = [
    "_build",
    "_gallery",
    "jupyter_execute",
    "conf.py",
    "make_caught_mistakes.py",
    "guides/*.py",
    "tutorials/programs/*",
]

html_theme = "furo"
html_title = "Outlay"
html_static_path = ["_static"]
# What `make gallery` has made, if it has: the page about it has a link then, and else the command.
html_extra_path = ["_gallery"] if Path(__file__).with_name("_gallery").is_dir() else []
html_css_files = ["outlay.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
highlight_language = "text"  # blocks that name no language are messages and paths

# Tutorials are Python scripts with cells; every page with cells is executed, every time: a cached output could lie.
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 400
nb_execution_show_tb = True
suppress_warnings = ["misc.highlighting_failure"]  # an error that a page shows is no program: JAX quotes with backticks
nb_merge_streams = True
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

# Cells run `outlay` and must find the one of this environment; what they print is for a page, not for a terminal.
os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
os.environ |= {"NO_COLOR": "1", "COLUMNS": "106", "TERM": "dumb"}
# No one's own IPython settings, and no warning from every kernel that its local sockets are not encrypted; and no
# programs that an earlier search had compiled here.
_own = tempfile.TemporaryDirectory(prefix="outlay-docs-")
atexit.register(_own.cleanup)
os.environ["XDG_CACHE_HOME"] = str(Path(_own.name, "cache"))
_profile = Path(_own.name, "profile_default")
_profile.mkdir()
# To JAX a cell is a file, whose name has the number of the process. Without that number, a cache of compiled programs
# has what an earlier build of the page compiled.
(_profile / "ipython_kernel_config.py").write_text(
    """\
import ipykernel.compiler

c.IPKernelApp.log_level = "ERROR"
ipykernel.compiler.get_tmp_directory = lambda: "/ipykernel"
""",
    encoding="utf-8",
)
os.environ["IPYTHONDIR"] = _own.name
logging.getLogger("traitlets").setLevel(logging.WARNING)

# Docstrings write code in single backticks, as in Markdown.
default_role = "code"
napoleon_use_ivar = True
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80


def _take_docstring_of_data(app, what, name, obj, options, lines):
    """Give data the docstring that stands below them, in the module that the stub names: their type's says nothing."""
    facade, _, attribute = name.rpartition(".")
    if what != "data" or facade != "outlay.kit":
        return
    stub = Path(importlib.util.find_spec(facade).origin).with_suffix(".pyi").read_text(encoding="utf-8")
    source = re.search(rf"^from \.([\w.]+) import {attribute} as", stub, re.MULTILINE)
    written = ModuleAnalyzer.for_module(f"outlay.{source[1]}").find_attr_docs()
    lines[:] = written.get(("", attribute), [])


def setup(app):
    app.connect("autodoc-process-docstring", _take_docstring_of_data)
    if html_extra_path:
        app.tags.add("with_gallery")
