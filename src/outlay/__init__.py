"""Lay JAX programs out over devices: see where every array lives, prove it, run it.

The public names, in the order of the line, stand in `__init__.pyi`; each is imported when first used, so that
`import outlay` does not import JAX (`outlay --help` and the launcher's parent process need that). Applications that are
released beside this package, such as outlay-brain, put a package of their own into it.
"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)  # before any import that looks there

from outlay.core import backend_watch
from outlay.core.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__, applications={"brain": "brain"})

backend_watch.watch()
